"""The command of a verb: its arguments and options from the declaration, its result on stdout.

Values travel as texts and are read once, by `etude.base.figures`, so that flags, YAML, Python and MCP say the same of
a mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from enum import Enum
from keyword import iskeyword
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from etude.base.errors import AnswerNo, UsageError
from etude.base.parameters import FLAGS, YAML, VerbParameter, parameters_of, unknown
from etude.base.talk import say
from etude.base.trust import command_line, trusting
from etude.surface.cli.registry import readers_of
from etude.surface.verb import Verb, resolve

FILE: Final = "YAML file of parameters, by the names of the flags; flags override it."
TRUST: Final = "Let files that are given run programs and Python code."
METAVAR: Final = {
    "count": "N", "number": "NUMBER", "fraction": "NUMBER", "power": "WATT", "time": "TIME", "bytes": "SIZE",
    "bandwidth": "RATE", "rate": "RATE", "choice": "NAME", "noun": "NAME", "path": "PATH", "paths": "PATH",
    "out": "PATH",
}  # fmt: skip
"""Kind -> what represents a value; TEXT for the others."""


class VerbCommand(TyperCommand):
    """A command whose unknown options are looked up in other verbs, and which has `--help-all` for rare options."""

    verb: Verb[Any, Any, Any]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        before = args[: args.index("--") if "--" in args else None]
        if "--help-all" in before and rare(self.verb):
            vars(self)["show_all"] = True
            print(ctx.get_help(), end="")
            raise typer.Exit
        try:
            return super().parse_args(ctx, args)
        except Exception as problem:  # Click's, from whichever Click Typer carries
            said = getattr(problem, "option_name", "")
            if not said.startswith("--") or type(problem).__name__ != "NoSuchOption":
                raise
            name = said.removeprefix("--").replace("-", "_")
            raise unknown(
                name, parameters_of(self.verb.asks), FLAGS, self.verb.name, readers_of(name, self.verb.name)
            ) from None


def rare(verb: Verb[Any, Any, Any]) -> set[str]:
    """Names of parameters that only `--help-all` shows."""
    return {name for name, p in parameters_of(verb.asks).items() if p.about.get("rare")}


def command_of(verb: Verb[Any, Any, Any]) -> Any:
    """The command, as Typer runs it."""
    part = typer.Typer(rich_markup_mode="rich", add_completion=False)

    def run(**given: Any) -> int:
        return run_command(verb, {name: value for name, value in given.items() if value not in (None, [], ())})

    parameters = [q for p in parameters_of(verb.asks).values() for q in _typer_parameters(p)]
    parameters.append(_parameter("yaml", str, typer.Option("--yaml", help=FILE, metavar="PATH", show_default=False)))
    if "trust" not in parameters_of(verb.asks):
        parameters.append(_parameter("trust", bool, typer.Option("--trust", help=TRUST, hidden=True)))
    run.__name__ = verb.name.replace(" ", "_").replace("-", "_")
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {q.name: q.annotation for q in parameters}
    own = {"allow_interspersed_args": not any(p.kind == "command" for p in parameters_of(verb.asks).values())}
    part.command(verb.name, help=verb.help.replace("\n  ", "\n\n  ", 0), cls=VerbCommand, context_settings=own)(run)
    command = typer.main.get_command(part)
    needed = {name for name, p in parameters_of(verb.asks).items() if p.is_required}
    vars(command).update(name=verb.name, verb=verb, needed=needed, rare_options=len(rare(verb)))
    return command


class GroupCommand(TyperCommand):
    """A word that is nothing but the verbs behind it: it shows them, and refuses any other word."""

    is_group = True

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        from etude.surface.cli.groups import below, misplaced, no_such

        if not args:
            print(ctx.get_help(), end="")
            raise typer.Exit(2)
        known = below(self.name or "")
        if args[0].startswith("-") and args[0] not in ctx.help_option_names:
            for word in args:
                if word in known:
                    raise misplaced(ctx.command_path, word, args[0])
        elif args[0] not in ctx.help_option_names:
            raise no_such(ctx.command_path, args[0], known)
        return super().parse_args(ctx, args)


def group_of(name: str, line: str) -> Any:
    """The command of a word that has verbs behind it and does nothing itself."""
    return GroupCommand(name, help=line, rich_markup_mode="rich", callback=lambda: None)


def run_command(verb: Verb[Any, Any, Any], given: Mapping[str, Any]) -> int:
    """Runs a verb with what Typer has parsed; a file of `--yaml` is below the flags."""
    with trusting() if given.get("trust") else nullcontext(), command_line(_texts(given)):
        return _run_command(verb, by_name(given))


def _texts(given: Mapping[str, Any]) -> Iterator[str]:
    """What the command line itself says; the file of `--yaml` says the rest."""
    for value in given.values():
        yield from [value] if isinstance(value, str) else value if isinstance(value, list) else []


def _run_command(verb: Verb[Any, Any, Any], said: dict[str, Any]) -> int:
    from etude.base.figures import read_mapping
    from etude.surface.cli.output import emit, print_read, shortened

    if "trust" not in parameters_of(verb.asks):
        said.pop("trust", None)
    file = said.pop("yaml", None)
    resolved = resolve(verb, {**_of_file(verb, read_mapping(file), file), **said} if file else said, FLAGS, readers_of)
    how: dict[str, Any] = {name: True for name in ("json", "csv", "md") if getattr(resolved.output, name, False)}
    try:
        result = verb.run(resolved.inputs)
    except AnswerNo as problem:
        if verb.refusal is not None and "json" in how and (told := verb.refusal(problem)) is not None:
            emit(told, json=True)
        raise
    if verb.show is not None and not how:
        verb.show(result)
        _say_unknown(verb, resolved.given)
        return verb.code(result)
    if verb.reads is not None and not how:
        print_read(verb.reads(result))
        for line in verb.says(result):
            say(line)
        _say_unknown(verb, resolved.given)
        return verb.code(result)
    if verb.table is not None and "json" not in how:
        record = verb.table(result)
    else:
        record = verb.with_basis(verb.record(result))
    if record is None:  # under torchrun, one process speaks for all
        return verb.code(result)
    is_read = hasattr(record, "schema") and verb.show is None and not how.keys() & {"json", "csv"}
    emit(shortened(record) if is_read else record, **how)
    return verb.code(result)


def _say_unknown(verb: Verb[Any, Any, Any], given: Mapping[str, Any]) -> None:
    for line in verb.without_evidence(given):
        say(line)


def by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameter -> value; an argument may be given in its place or as a flag, not both."""
    found: dict[str, Any] = {}
    for identifier, value in given.items():
        name = identifier.removeprefix("_option_")
        name = name[:-1] if iskeyword(name[:-1]) else name
        if name in found:
            raise UsageError(f"{name.upper()} is given twice", hint=f"leave out --{name.replace('_', '-')}")
        found[name] = value
    return found


def _of_file(verb: Verb[Any, Any, Any], keys: Mapping[str, Any], file: str) -> dict[str, Any]:
    known, found = parameters_of(verb.asks), {}
    for key, value in keys.items():
        name = str(key).replace("-", "_")
        if name not in known:
            problem = unknown(name, known, YAML, verb.name, readers_of(name, verb.name))
            raise UsageError(problem.problem, where=file, hint=problem.hint)
        found[name] = value
    return found


def _typer_parameters(p: VerbParameter) -> list[inspect.Parameter]:
    """The argument or option of a parameter; an argument has an option of its name as well, which is shown if it has
    further names (`-o`)."""
    several = p.kind in ("several", "paths", "command")
    kind: Any = bool if p.kind in ("flag", "switch") else list[str] if several else str
    text, metavar = help_text(p), p.about.get("metavar") or (None if p.is_argument else METAVAR.get(p.kind, "TEXT"))
    if not p.is_argument:
        return [_parameter(p.name, kind, typer.Option(*_names(p), **_option(p, text, metavar)))]
    option = typer.Option(*_names(p), **_option(p, "The same, as an option.", METAVAR.get(p.kind, "TEXT")))
    option.hidden = not p.about.get("names")
    named = metavar or p.name.upper() + ("..." if several else "")
    shown = named if p.is_required else f"[{named}]"
    made = typer.Argument(help=text, metavar=shown.strip("[]"), show_default=False)
    return [_parameter(p.name, kind, made), _parameter(f"_option_{p.name}", kind, option)]


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    where = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        f"{name}_" if iskeyword(name) else name, where, default=None, annotation=Annotated[kind | None, info]
    )


def _names(p: VerbParameter) -> list[str]:
    """The spellings of an option, the one that is shown first: with underscores where another tool has it so."""
    own, more = f"--{p.name.replace('_', '-')}", list(p.about.get("names", ()))
    short = [name for name in more if not name.startswith("--")]
    theirs = [name for name in more if name == f"--{p.name}" != own]
    if p.kind == "flag":
        return [f"{own}/--no-{p.name.replace('_', '-')}"]
    return [*theirs, own, *short, *(name for name in more if name.startswith("--") and name not in theirs)]


def _option(p: VerbParameter, text: str, metavar: str | None) -> dict[str, Any]:
    more = {} if p.kind in ("flag", "switch") else {"metavar": metavar}
    return {"help": text, "show_default": False, "hidden": bool(p.about.get("rare")), **more} | (
        {"rich_help_panel": p.panel} if p.panel else {}
    )


def help_text(p: VerbParameter) -> str:
    """One sentence, then choices, range and default in brackets."""
    text = str(p.about["doc"])
    text = text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
    notes = []
    if p.kind == "choice":
        notes.append("one of " + ", ".join(str(one.value) for one in p.about["of"] if one.value))
    if p.about.get("least"):
        notes.append(f"at least {p.about['least']:g}")
    if p.about.get("most") is not None:
        notes.append(f"at most {p.about['most']:g}")
    if p.is_required:
        notes.append("required")
    elif "default:" not in text and (usual := default_text(p)):
        notes.append(f"default: {usual}")
    return " ".join([text, *([f"[{'; '.join(notes)}]"] if notes else [])])


def default_text(p: VerbParameter) -> str:
    """A default as a user would write it; nothing where there is none to speak of."""
    from etude.base.units import format_bandwidth, format_bytes, format_time

    value = p.default
    if value in (None, "", (), {}, []):
        return ""
    if isinstance(value, bool):
        return ("on" if value else "off") if p.kind == "flag" else ""
    if isinstance(value, Enum):
        return str(value.value)
    forms: dict[str, Any] = {"time": format_time, "bytes": format_bytes, "bandwidth": format_bandwidth}
    if p.kind in forms:
        return str(forms[p.kind](int(value))) if value else "0"
    return f"{value:g}" if isinstance(value, float) else str(value)
