"""From a file to what was found."""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import safe_loader
from etude.base.parameters import PYTHON, unknown
from etude.base.trust import limited, trusting
from etude.decide.search.found import Found
from etude.decide.search.ranges import with_ranges
from etude.decide.search.request import SearchRequest, SpaceFile
from etude.decide.search.solver import search_space

SPACES: Final = "etude.decide.search.spaces"
OPTIONS: Final = ("workers", "ray", "seed", "again")
"""What some kinds of search read and others do not."""


def known_kinds() -> list[str]:
    """Kinds of search: the files of `spaces`."""
    names = sorted(path.name.removesuffix(".py") for path in files(SPACES).iterdir() if path.name.endswith(".py"))
    return [name for name in names if not name.startswith("_")]


def module_of(given: SpaceFile) -> ModuleType:
    """The file of a kind."""
    kind = given.kind
    if not kind.isidentifier() or kind.startswith("_") or find_spec(f"{SPACES}.{kind}") is None:
        hint = f"known: {', '.join(known_kinds())}"
        raise UsageError(f"unknown kind `{kind}`", where=f"{given.where}: search", hint=hint)
    return import_module(f"{SPACES}.{kind}")


def options_read(given: SpaceFile, method: str = "", said: Mapping[str, str] | None = None) -> frozenset[str]:
    """Which of OPTIONS a search of this space by this method reads. Raises UsageError if others are `said`: name ->
    how it is spelled."""
    kind = module_of(given)
    read: frozenset[str] = kind.options(given.keys, method) if hasattr(kind, "options") else frozenset()
    for name, spelled in (said or {}).items():
        if name in OPTIONS and name not in read:
            raise unused(given, method, spelled)
    return read


def unused(given: SpaceFile, method: str, said: str) -> UsageError:
    """The error for an option that a search of this space does not read."""
    by = f" by method `{method}`" if method else ""
    return UsageError(f"{said} is not read by a search over {given.kind}{by}", where=given.where, hint="leave it out")


def is_space(path: str | PathLike[str]) -> bool:
    """A YAML file with the key `search`."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return False
    import yaml

    try:
        given = yaml.load(file.read_text("utf-8"), safe_loader())
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(given, Mapping) and "search" in given


def read_space(path: str | PathLike[str], changed: Mapping[str, Any] | None = None) -> SpaceFile:
    """The space in a file; `changed` replaces keys of it."""
    import yaml

    file = Path(path)
    if not file.is_file():
        raise UsageError("no such file", where=str(file), hint="a YAML file with `search: KIND`")
    try:
        found = yaml.load(file.read_text("utf-8"), safe_loader())
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UsageError(f"not YAML: {' '.join(str(problem).split())}", where=str(file)) from None
    if not isinstance(found, Mapping) or "search" not in found:
        raise UsageError("no key `search`", where=str(file), hint=f"search: {'|'.join(known_kinds())}")
    keys = {str(k): v for k, v in found.items() if k != "search"} | dict(changed or {})
    return SpaceFile(kind=str(found["search"]), keys=keys, where=file.name, folder=file.parent)


def solve(given: SpaceFile, asked: SearchRequest) -> Found:
    kind = module_of(given)
    begin(asked)
    with trusting() if asked.trust else limited():
        space = kind.space(given, asked)
        found = with_ranges(search_space(space, asked), given.kind, space.scores)
    return kept(found, asked, given.where)


def begin(asked: SearchRequest) -> None:
    """Drops what the folder has of earlier searches, where that is asked for."""
    if asked.fresh and asked.out is not None:
        from etude.decide.study.results import forget

        forget(asked.out)


def kept(found: Found, asked: SearchRequest, title: str) -> Found:
    """The same, with its page and its record in the folder that was asked for."""
    if asked.out is not None:
        from etude.decide.search.page import write

        write(found, asked.out, title)
    return found


def search(space: str | PathLike[str], *, changed: Mapping[str, Any] | None = None, **asked: Any) -> Found:
    """The best of the space in a file: `search("space.yaml", workers=8).best`.

    etude.search("space.yaml").best
    """
    known = [f.name for f in fields(SearchRequest)]
    if lost := [name for name in asked if name not in known]:
        raise unknown(lost[0], dict.fromkeys(known), PYTHON, "search")
    given, how = read_space(space, changed), SearchRequest(**asked)
    read = options_read(given, how.method)
    for name in asked:
        option = name.removesuffix("_s")
        if option in OPTIONS and option not in read and getattr(how, name) != getattr(SearchRequest(), name):
            raise unused(given, how.method, f"`{name}`")
    return solve(given, how)
