"""Arguments before a command sees them: addresses become paths of this machine, several files of one job one argument.

Whatever a command reads may be an address (`s3://bucket/run/`); it is fetched, and the command reads the copy. A
command that takes one job also takes its files one by one, as a shell writes out `run/*.json`.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from etude.base.parameters import parameters_of

LONGEST: Final = 200
"""Letters of a list of files that can be written as one path; a longer one is put into a file."""

_held: list[Any] = []
"""Temporary files that last as long as the process."""


def rewritten(name: str, command: Any, args: list[str]) -> list[str]:
    """The arguments as the command gets them. What belongs to another program, as in `etude collect`, stays."""
    if not any("://" in arg or not arg.startswith("-") for arg in args):
        return args
    found, places = list(args), []
    for at, option in values(command.params, args):
        places += [] if option else [at]
        kind = _kind(command, option, len(places) - 1)
        if kind == "command":
            return found
        said, equals, value = args[at].partition("=") if option and args[at].startswith("-") else ("", "", args[at])
        if "://" in value:
            found[at] = said + equals + _here(value, written=kind == "out")
    return _one_job(command.params, found, places)


def _kind(command: Any, option: str, place: int) -> str:
    """The kind of the parameter that a value is for: that of an option, or else of the argument at its place. Empty
    where it is not known: of a misspelt option, and of what is not a declared verb."""
    verb = getattr(command, "verb", None)
    known = parameters_of(verb.asks) if verb is not None else {}
    if option:
        named = [p.name for p in command.params if option in (*p.opts, *p.secondary_opts)]
        own = named[0].removeprefix("_option_") if named else ""
        p = known.get(own) or known.get(own.removesuffix("_"))
        return p.kind if p is not None else ""
    arguments = [p for p in known.values() if p.is_argument]
    return arguments[min(place, len(arguments) - 1)].kind if arguments else ""


def values(params: Sequence[Any], args: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(Position, option) of every value; arguments that belong to no option have none."""
    takes = {
        name: not (getattr(p, "is_flag", False) or getattr(p, "count", False))
        for p in params
        if p.param_type_name == "option"
        for name in (*p.opts, *p.secondary_opts)
    }
    at, behind = 0, False
    while at < len(args):
        arg = args[at]
        if behind or not arg.startswith("-") or arg == "-":
            yield at, ""
        elif arg == "--":
            behind = True
        elif "=" in arg:
            yield at, arg.partition("=")[0]
        elif takes.get(arg) and at + 1 < len(args):
            at += 1
            yield at, arg
        at += 1


def _here(value: str, written: bool) -> str:
    from etude.base import remote
    from etude.base.errors import UsageError
    from etude.base.talk import progress

    if not remote.url_of(value):
        return value
    if written:
        hint = "write it to a local folder, then copy it with the tool of that storage"
        raise UsageError("output can only be written to this machine", where=value, hint=hint)
    total = remote.size_of(value) if sys.stderr.isatty() else None  # asked for twice only where a bar is drawn
    with progress(f"fetching {value}", total) as advance:
        return str(remote.fetch(value, advance))


def _has_unknown_option(params: Sequence[Any], args: Sequence[str]) -> bool:
    """Whether an option is misspelt. Then the argument after it may not be a path, and the command's own message
    reports it."""
    known = {name for p in params if p.param_type_name == "option" for name in (*p.opts, *p.secondary_opts)}
    said = [arg.partition("=")[0] for arg in args[: args.index("--") if "--" in args else None]]
    return any(
        name.startswith("-") and name != "-" and not {name, name[:2]} & known and name != "--help" for name in said
    )


def _one_job(params: Sequence[Any], args: list[str], places: list[int]) -> list[str]:
    """Joins several files into one argument, as the files of one job, if the command takes one job. Raises UsageError
    if only some of them exist."""
    wanted = [p for p in params if p.param_type_name == "argument"]
    if len(places) < 2 or len(wanted) != 1 or wanted[0].nargs != 1 or wanted[0].name != "path":
        return args
    paths = [args[at] for at in places]
    absent = [path for path in paths if not Path(path).exists()]
    if absent and len(absent) < len(paths) and not _has_unknown_option(params, args):
        from etude.base.errors import UsageError

        raise UsageError("no such file", where=absent[0], hint="several files are the ranks of one job")
    if not all(Path(path).is_file() for path in paths):
        return args
    joined = ",".join(paths)
    if len(joined) > LONGEST or any("," in path for path in paths):
        file = tempfile.NamedTemporaryFile("w", prefix="etude-", suffix=".list", encoding="utf-8")  # noqa: SIM115
        file.write("\n".join(str(Path(path).resolve()) for path in paths))
        file.flush()
        _held.append(file)
        joined = f"@{file.name}"
    return [joined if at == places[0] else arg for at, arg in enumerate(args) if at == places[0] or at not in places]
