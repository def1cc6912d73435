"""From a file to what was found."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.parameters import PYTHON, unknown
from etude.base.trust import limited
from etude.decide.search.found import Found
from etude.decide.search.given import Given, SearchRequest

KINDS: Final[dict[str, tuple[str, str]]] = {
    "plans": ("etude.decide.search.plans.search", "plans of a model on a cluster: any of their axes, simulated"),
    "commands": ("etude.decide.search.commands", "any axes of a command of Etude, scored by what it prints"),
    "memory": ("etude.decide.search.memory", "what a small device stores and what its host, and which computes it"),
    "mix": ("etude.decide.search.mix", "how many devices of each kind serve each model"),
    "placement": ("etude.decide.search.placement", "the device of each rank of a job, scored by simulation on links"),
    "shares": ("etude.decide.search.shares", "tokens and heads of context-parallel ranks, on devices of several kinds"),
    "workflows": ("etude.decide.search.workflows", "a pattern of several models, and the model of each of its roles"),
    "regions": ("etude.decide.search.regions", "where requests are computed, within a latency budget"),
    "chain": ("etude.decide.search.chain", "where a chain of layers is cut over devices in order"),
    "split": ("etude.decide.search.split", "which kernels and neurons of a network each small device computes"),
    "routes": ("etude.decide.search.routes", "whether requests of satellites are computed there or by a large model"),
}
"""Kind -> (module with `solve(given, asked)`, what is chosen)."""


PLACEMENT: Final = "placement"
PARALLEL: Final = frozenset({"workers", "ray"})
DRAWN_BY: Final = {"plans": ("greedy", "anneal"), "commands": ("greedy", "anneal"), "placement": ("anneal",)}
"""Kind -> methods of it that draw at random."""
OPTIONS: Final = ("workers", "ray", "seed", "again")
"""What some kinds of search read and others do not."""


def options_read(given: Given, method: str = "", said: Mapping[str, str] | None = None) -> frozenset[str]:
    """Which of OPTIONS a search of this space by this method reads. Raises UsageError if others are `said`: name ->
    how it is spelled."""
    read = _read(given, method)
    for name, spelled in (said or {}).items():
        if name in OPTIONS and name not in read:
            raise unused(given, method, spelled)
    return read


def _read(given: Given, method: str) -> frozenset[str]:
    keys, kind = given.keys, given.kind
    found = set(PARALLEL if kind in ("plans", "commands", "placement", "shares", "workflows") else ())
    if kind == "mix" and "throughput" not in keys:
        found |= {*PARALLEL, "seed"}
    links = keys.get("links")
    is_drawn = {
        "chain": isinstance(links, list) and any(isinstance(_of(link, "rates"), Mapping) for link in links),
        "routes": isinstance(keys.get("requests"), Mapping),
        "workflows": True,
        "plans": PLACEMENT in over_names(keys.get("over")),
    }
    if method in DRAWN_BY.get(kind, ()) or is_drawn.get(kind):
        found.add("seed")
    return frozenset(found | ({"again"} if kind == "chain" else set()))


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def over_names(given: Any) -> list[str]:
    """Names of axes, as a file has them."""
    names = given.split(",") if isinstance(given, str) else given if isinstance(given, (list, Mapping)) else ()
    return [str(name).partition("=")[0].strip() for name in names]


def unused(given: Given, method: str, said: str) -> UsageError:
    """The error for an option that a search of this space does not read."""
    by = f" by method `{method}`" if method in DRAWN_BY.get(given.kind, ()) or method == "all" else ""
    return UsageError(f"{said} is not read by a search over {given.kind}{by}", where=given.where, hint="leave it out")


def is_space(path: str | PathLike[str]) -> bool:
    """A YAML file with the key `search`."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return False
    import yaml

    try:
        given = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(given, Mapping) and "search" in given


def read_space(path: str | PathLike[str], changed: Mapping[str, Any] | None = None) -> Given:
    """The space in a file; `changed` replaces keys of it."""
    import yaml

    file = Path(path)
    if not file.is_file():
        raise UsageError("no such file", where=str(file), hint="a YAML file with `search: KIND`")
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UsageError(f"not YAML: {' '.join(str(problem).split())}", where=str(file)) from None
    if not isinstance(found, Mapping) or "search" not in found:
        raise UsageError("no key `search`", where=str(file), hint=f"search: {'|'.join(KINDS)}")
    keys = {str(k): v for k, v in found.items() if k != "search"} | dict(changed or {})
    return Given(kind=str(found["search"]), keys=keys, where=file.name, folder=file.parent)


def solve(given: Given, asked: SearchRequest) -> Found:
    if given.kind not in KINDS:
        raise UsageError(
            f"unknown kind `{given.kind}`", where=f"{given.where}: search", hint=f"known: {', '.join(KINDS)}"
        )
    begin(asked)
    with nullcontext() if asked.trust else limited():
        found = import_module(KINDS[given.kind][0]).solve(given, asked)
    assert isinstance(found, Found)
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
