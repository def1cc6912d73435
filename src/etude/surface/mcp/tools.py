"""What can be asked of a server: the verbs that are tools, called with what a client gives, within its access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.excerpts import bounded, rows_of
from etude.base.parameters import MCP, parameters_of, unknown
from etude.base.trust import limited
from etude.surface.mcp.access import FolderAccess
from etude.surface.mcp.schema import is_written, needed, offered
from etude.surface.verb import Verb, resolve

NOWHERE: Final = "/dev/null"
"""The folder that may be written where nothing may."""


def tools(access: FolderAccess, verbs: Iterable[Verb[Any, Any, Any]]) -> dict[str, Verb[Any, Any, Any]]:
    """Name -> verb, of those that are tools, and those behind their words. What only writes is not offered without a
    folder to write to."""
    known = {verb.name: verb for verb in verbs}
    words = {name for name, verb in known.items() if verb.tool}
    offers = [
        verb for name, verb in known.items() if (name.partition(" ")[0] in words if verb.tool is None else verb.tool)
    ]
    within = [verb for verb in offers if access.write is not None or not is_written(verb)]
    return {verb.name.replace(" ", "_").replace("-", "_"): verb for verb in within}


def call(verb: Verb[Any, Any, Any], given: Mapping[str, Any], access: FolderAccess) -> dict[str, Any]:
    """The answer of a tool, bounded, with the notes that a reader would see."""
    said = StringIO()
    with limited(access.write or NOWHERE), redirect_stderr(said), redirect_stdout(said):
        asked = _within(verb, _flat(verb, given), access)
        result = verb.run(resolve(verb, asked, MCP).inputs)
        found = _plain(verb.with_basis((verb.answer or verb.record)(result)))
    notes = [line.removeprefix("note: ") for line in said.getvalue().splitlines() if line.startswith("note: ")]
    return bounded(found | ({"notes": notes} if notes and "notes" not in found else {}))


def _flat(verb: Verb[Any, Any, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, with the keys of an object in place of a file as parameters of their own: those of a plan."""
    known, found = parameters_of(verb.asks), dict(given)
    for name, value in given.items():
        if isinstance(value, Mapping) and name in known and known[name].kind == "path":
            del found[name]
            if twice := [key for key in value if key in given]:
                raise UsageError(f"`{twice[0]}` is given twice", hint=f"leave it out of `{name}`")
            found |= value
    return found


def _within(verb: Verb[Any, Any, Any], given: Mapping[str, Any], access: FolderAccess) -> dict[str, Any]:
    """What is given, with every path in it one that the server may open or write."""
    known = {p.name: p for p in offered(verb, writes=True)}
    found = {}
    for name, value in given.items():
        if name not in known:
            raise unknown(name, known, MCP, verb.name)
        p = known[name]
        found[name] = access.plain(name, value) if _is_text(p.kind, p.about) else _path(p.kind, value, access)
    for name, p in known.items():
        if p.kind == "out" and needed(p) and name not in found:
            raise UsageError(f"`{name}` is missing", hint="the name of the file that is written")
    return found


def _is_text(kind: str, about: Mapping[str, Any]) -> bool:
    return kind in ("text", "several", "list", "texts", "one") and not about.get("plain")


def _path(kind: str, value: Any, access: FolderAccess) -> Any:
    if kind == "paths":
        return [_path("path", one, access) for one in ([value] if isinstance(value, str) else value)]
    if isinstance(value, str) and kind in ("path", "noun", "out"):
        open_as = {"path": access.readable, "noun": access.noun, "out": access.writable}[kind]
        return str(open_as(value))
    return value


def _plain(found: Any) -> dict[str, Any]:
    """An answer as an object: tables with their columns and number of rows."""
    if hasattr(found, "to_batches"):
        return rows_of(found)
    if isinstance(found, Mapping):
        return {name: rows_of(value) if hasattr(value, "to_batches") else value for name, value in found.items()}
    return {"rows": found} if isinstance(found, list | tuple) else {"result": found}
