"""`etude` itself: which verb the words of a command line mean, and its command, loaded when it is called."""

import sys
from functools import cache
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from etude import __version__
from etude.surface.cli import plain_values
from etude.surface.cli.arguments import rewritten
from etude.surface.cli.commands import ANALYSE, COMMANDS, CONVERT, GROUPS, LOOK, MAKE, OTHER_NAMES, RUN, file_of
from etude.surface.cli.groups import check_below
from etude.surface.cli.running import Settings

__all__ = ["ANALYSE", "CONVERT", "LOOK", "MAKE", "RUN", "app"]

HELP = """Execution traces of machine-learning jobs (MLCommons Chakra), from end to end.

[bold]First steps[/bold]

  etude demo                      see all of it on an embedded job
  etude collect -o run/ -- torchrun train.py
                                  record a PyTorch script as it is
  etude link run/ -o job/         add dependencies: a Chakra job
  etude info job/                 what is in it: a folder of name.{rank}.et
  etude check job/                is it sound? exit code 1 if not
  etude convert job/ out/ --to parquet
                                  another format, nothing lost
  etude query out/ "select ..."   SQL over its nodes
  etude diff job/ out/            first difference; exit code 1 if any
  etude simulate job/ --system dgx-h100
                                  how it runs on another machine
  etude report run/               where the time goes, and why, on one page
  etude generate llama3-8b --gpus 16 --tp 2 -o job/
                                  the job of a model and a plan, without a run
  etude predict llama3-8b --gpus 16 --tp 2 --system dgx-h100
                                  its step time there, tokens/s, memory

Results go to stdout, messages to stderr; --json prints results as JSON.
"""


ALONE = ("--force", "-f", "--json")
"""Options without a value, which may have been typed before the second word of a command."""
UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Modules that Typer's help imports and this app never uses, and the name that it takes from each."""


class Root(TyperGroup):
    """`etude` itself: lists its commands from the table, and loads one when it is called.

    Typer's help imports parts of Rich, a third of the time it takes, for modes that are not ours.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {name: self.commands.get(name) or _listed(name) for name in COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A command may have two words: `etude generate micro`."""
        name, command, rest = command_meant(args, typed=True)
        if command is None:
            return super().resolve_command(ctx, args)
        self.commands[name] = command
        check_below(name, command.params, rest)
        return name, command, rewritten(name, command, rest)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        stand_ins = [name for name in UNUSED if name not in sys.modules]
        for name in stand_ins:
            module = ModuleType(name)
            vars(module)[UNUSED[name]] = type(UNUSED[name], (), {})
            sys.modules[name] = module
        try:
            super().format_help(ctx, formatter)
        finally:
            for name in stand_ins:
                del sys.modules[name]


def _listed(name: str) -> TyperCommand:
    """A command with only its help line, for help and completion: its module is not imported."""
    panel, line = COMMANDS[name]
    return TyperCommand(name, help=line, rich_help_panel=panel, rich_markup_mode="rich")


def command_meant(args: list[str], *, typed: bool = False) -> tuple[str, Any, list[str]]:
    """The command that the words call, with its name and what is left of them; None: there is none. `typed`: what it
    reads is there already, so that a word that is not a file may be a mistyped verb."""
    args = [OTHER_NAMES.get(word, word) for word in args[:1]] + args[1:]
    for words in (2, 1):
        name = " ".join(args[:words])
        if len(args) >= words and name in COMMANDS:
            name, rest = _verb_meant(name, args[words:], typed=typed)
            return name, _loaded(name), rest
    return " ".join(args[:1]), None, args


def _verb_meant(name: str, args: list[str], *, typed: bool = False) -> tuple[str, list[str]]:
    """The verb that the words mean, and what is left of them: one of several words in the file of the first, or the
    one that an old spelling means (`serve --workflow` is `serve workflow`). `meant` of a file gets all that
    follows its word, and gives the verb, or the verb and what is left."""
    from etude.surface.cli.registry import module_named, verbs_in

    inner = verbs_in(file_of(name))
    words, rest = name, args
    while rest and any(f"{one} ".startswith(f"{words} {rest[0]} ") for one in inner):
        words, rest = f"{words} {rest[0]}", rest[1:]
    meant = getattr(module_named(file_of(name)), "meant", None)
    if meant is None or (words != name and words in inner):
        return words, rest
    if typed and words == name and args and (not args[0].startswith("-") or args[0] in ALONE):
        check_below(name, (), args[:2] if args[0] in ALONE else args[:1])
    found = meant(args)
    verb, left = found if isinstance(found, tuple) else (found, args)
    return (verb, left) if verb else (words, left if isinstance(found, tuple) else rest)


@cache
def _loaded(name: str) -> Any:
    from etude.surface.cli.build import command_of, group_of
    from etude.surface.cli.help import dressed
    from etude.surface.cli.panels import panels
    from etude.surface.cli.registry import verbs_in

    file = file_of(name) if name in COMMANDS else file_of(name.partition(" ")[0])
    inner, line = verbs_in(file), COMMANDS[name][1] if name in COMMANDS else GROUPS.get(name, "")
    command = command_of(inner[name]) if name in inner else group_of(name, line)
    command.rich_help_panel = COMMANDS[name][0] if name in COMMANDS else None
    return dressed(command, panels)


plain_values.install()
app = typer.Typer(
    name="etude",
    cls=Root,
    help=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"etude {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="ETUDE_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> int:
    if isinstance(context.obj, Settings):
        context.obj.debug = debug
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")  # empty if Rich has printed it already
        return 2
    return 0
