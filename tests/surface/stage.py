"""A folder in which the examples of all verbs can be resolved: the files that they name are there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.parameters import VerbParameter
from etude.surface.cli.build import by_name, command_of
from etude.surface.cli.registry import all_verbs
from etude.surface.verb import Verb

VERBS = {verb.name: verb for verb in all_verbs()}


def given_by(verb: Verb[Any, Any, Any], line: str) -> dict[str, Any]:
    """What a command line gives to a verb, by parameter; nothing of it is run."""
    words = shlex.split(line.partition(" # ")[0])[1 + len(verb.name.split()) :]
    command = command_of(verb)
    found: dict[str, Any] = {}
    command.callback = lambda **given: found.update(given)
    command.main(words, standalone_mode=False, prog_name=f"etude {verb.name}")
    return by_name({name: value for name, value in found.items() if value not in (None, [], ())})


def bases(verb: Verb[Any, Any, Any]) -> list[dict[str, Any]]:
    """What each example of a verb gives: the requests that are varied."""
    longer = [f"etude {name} " for name in VERBS if name.startswith(f"{verb.name} ")]
    found = [given_by(verb, line) for line in verb.examples if not f"{line} ".startswith(tuple(longer))]
    assert found, f"`etude {verb.name}` has no example in its help"
    return found


def alternatives(p: VerbParameter) -> Iterator[Any]:
    """Valid values of a parameter that differ from its default."""
    if "like" in p.about:
        likes = p.about["like"]
        yield from likes if isinstance(likes, list) else [likes]
    elif p.kind in ("switch", "flag"):
        yield not p.default
    elif p.kind == "choice":
        yield from (one.value for one in p.about["of"] if one.value and one != p.default)
    elif p.kind == "count":
        yield from (n for n in (int(p.default or 0) + 1, 2, 1, 8) if n != p.default and n <= p.about.get("most", n))
    elif p.kind in KINDS:
        yield KINDS[p.kind]
    else:
        raise AssertionError(
            f"`{p.name}` is of kind `{p.kind}` and has no `like`: a valid value for examples and tests"
        )


KINDS = {
    "time": "7s", "bytes": "3MB", "bandwidth": "3GB/s", "rate": "3T", "power": "321", "fraction": "0.37",
    "number": "1.75", "path": "stage.txt", "paths": "stage.txt", "out": "new.out",
}  # fmt: skip


def canonical(value: Any) -> Any:
    """A value as nested tuples and texts: equal where all that a run would read is equal."""
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Enum):
        return (type(value).__name__, value.name)
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *((f.name, canonical(getattr(value, f.name))) for f in fields(value)))
    if isinstance(value, dict):
        return ("dict", *((canonical(k), canonical(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(canonical, value))
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted(map(repr, value)))
    if callable(value):
        return ("function", getattr(value, "__qualname__", repr(value)))
    return value if isinstance(value, (str, int, float, bool, bytes, type(None), Path)) else repr(value)


def make_stage(folder: Path) -> None:
    """The files that examples name: each file `stage_*.py` of this folder has a `make(folder)` for its verbs."""
    (folder / "stage.txt").write_text("")
    for path in sorted(Path(__file__).parent.glob("stage_*.py")):
        import_module(f"surface.{path.stem}").make(folder)
