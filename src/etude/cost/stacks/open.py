"""The single entry point to a Stack: a name of the catalogue, a name used in tables, or a YAML file."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from etude.base.errors import ClusterError
from etude.base.figures import parse, read_file
from etude.cost.stacks.stack import Stack

DEFAULT: Final = "default"
"""The stack if none is given."""
NONE: Final = "none"
"""The device and the network as the catalogue has them."""


def _folder(*parts: str) -> Traversable:
    return files("etude.cost.stacks").joinpath(*parts)


@cache
def stack_names() -> tuple[str, ...]:
    """Stacks of the catalogue, the default first."""
    found = sorted(f.name.removesuffix(".yaml") for f in _folder("catalogue").iterdir() if f.name.endswith(".yaml"))
    return (DEFAULT, *(name for name in found if name != DEFAULT))


@cache
def _from_catalogue(name: str) -> Stack:
    where = f"stacks/{name}.yaml"
    return Stack.from_dict(parse(_folder("catalogue", f"{name}.yaml").read_text("utf-8"), where), where)


def open_stack(name_or_path: str | PathLike[str]) -> Stack:
    """A stack of the catalogue or of a file; `none` leaves the device as it is."""
    text = fspath(name_or_path)
    if text == NONE:
        return Stack(name=NONE)
    if text in stack_names():
        return _from_catalogue(text)
    if Path(text).is_file() or text.endswith((".yaml", ".yml", ".json")):
        return Stack.from_dict(read_file(text), text)
    if (found := stack_for(text)) is not None:
        return found
    raise ClusterError(
        f"unknown stack `{text}`", hint=f"known: {', '.join(stack_names())}, {NONE}; or the path of a .yaml file"
    )


def stack_for(name: str, year: int | None = None) -> Stack | None:
    """The stack that a table calls so, in that year (without one: the latest); None if there is none."""
    wanted = re.sub(r"[\s_]+", "-", name.strip().lower())
    known = (_from_catalogue(n) for n in stack_names())
    found = [stack for stack in known if wanted == stack.name or wanted in stack.names]
    in_time = [s for s in found if _covers(s.names.get(wanted, ""), year)]
    return in_time[0] if in_time else None


def stack_in(text: str, year: int | None = None) -> Stack | None:
    """The stack that a text names, which may have more words, such as a release: the longest name in it counts."""
    words = re.sub(r"[^a-z0-9.]+", "-", text.lower())
    known = [_from_catalogue(n) for n in stack_names() if n != DEFAULT]
    names = {name for stack in known for name in (stack.name, *stack.names)}
    inside = [name for name in names if re.search(rf"(^|-){re.escape(name)}(-|$)", words)]
    tried = (stack_for(name, year) for name in (text, *sorted(inside, key=lambda one: (-len(one), one))))
    return next((stack for stack in tried if stack is not None), None)


def _covers(years: str, year: int | None) -> bool:
    first, _, last = years.partition("..")
    if year is None:
        return not last
    return (not first or int(first) <= year) and (not last or year <= int(last))


@cache
def _generations() -> dict[str, str]:
    given = parse(_folder("generations.yaml").read_text("utf-8"), "generations.yaml")
    return {word.lower(): name for name, words in given.items() for word in words}


def generation_of(gpu: str) -> str:
    """The generation of a device or GPU by its name; empty if it is not known."""
    words = re.split(r"[^a-z0-9]+", gpu.lower())
    return next((_generations()[word] for word in words if word in _generations()), "")
