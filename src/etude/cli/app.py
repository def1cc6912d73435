"""The Typer app that commands register themselves with, and the panels they sit in.

@app.command(rich_help_panel=LOOK)
def info(path: Path, json: AsJson = False) -> None:
    \"\"\"What is in a trace or a job\"\"\"
"""

import sys
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from etude import __version__
from etude.cli.running import Settings

LOOK = "Look"
CONVERT = "Convert"
MAKE = "Make and change"
RUN = "Run"

HELP = """Execution traces of machine-learning jobs (MLCommons Chakra), from end to end.

[bold]First steps[/bold]

  etude demo                      see all of it on an embedded job
  etude collect -o run/ -- torchrun train.py
                                  record a PyTorch script as it is
  etude link run/ -o job/         what waits for what in it: a Chakra job
  etude info job/                 what is in it: a folder of name.{rank}.et
  etude check job/                is it sound? exit code 1 if not
  etude convert job/ out/ --to parquet
                                  another format, nothing lost
  etude query out/ "select ..."   SQL over its nodes
  etude diff job/ out/            first difference; exit code 1 if any
  etude simulate job/ --system dgx-h100
                                  what it does on another machine

Results go to stdout, talk to stderr; --json makes results JSON.
"""


UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Modules that Typer's help imports and this app never uses, and the name that it takes from each."""


class Root(TyperGroup):
    """`etude` itself. Typer's help imports parts of Rich, a third of the time it takes, for modes that are not ours."""

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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="ETUDE_DEBUG", help="Show where an error came from.")
    ] = False,
) -> int:
    if isinstance(context.obj, Settings):
        context.obj.debug = debug
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")  # empty if Rich has printed it already
        return 2
    return 0
