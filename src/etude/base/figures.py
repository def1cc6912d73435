"""Frozen dataclasses read from plain mappings (YAML, JSON), with the place of whatever is wrong.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Link:
        bandwidth: float = figure("bandwidth", "payload, one direction")
        latency_ns: int = figure("time", "one hop", 500)

    read(Link, {"bandwidth": "50GB/s"}, "my.yaml: link")

A key is the field's name, less the unit that its kind implies (`latency_ns` is read from `latency`, since the text
carries a unit; `latency_ns` is read too). Unknown keys are refused, and so is every figure outside its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields
from enum import Enum
from functools import cache
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar

from etude.base.errors import ClusterError, UsageError
from etude.base.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_time,
)

T = TypeVar("T")

_SUFFIX: Final = {"time": "_ns", "bytes": "_bytes", "bandwidth": "_bytes_per_s", "rate": "_flop_per_s", "power": "_w"}
_WRITE: Final[dict[str, Callable[..., str]]] = {
    "time": format_time,
    "bytes": format_bytes,
    "bandwidth": format_bandwidth,
    "rate": format_count,
}
_SCALARS: Final[dict[Any, str]] = {int: "count", float: "number", str: "text"}
"""What a list may have besides dataclasses."""
EXAMPLE: Final = {
    "time": "500ns",
    "bytes": "80GB",
    "bandwidth": "450GB/s",
    "rate": "989T",
    "power": "700",
    "count": "8",
    "fraction": "0.8",
    "number": "1.5",
    "flag": "true",
    "text": "a text",
    "texts": "a text, or a text for each key",
    "path": "run/",
    "noun": "a name, a file, or the value itself",
    "paths": "run/",
    "out": "out/",
    "several": "a text",
    "command": "python train.py",
}
"""How a value of each kind is written."""


def figure(
    kind: str, doc: str, default: Any = MISSING, *, zero: bool | None = None, of: type[Any] | None = None, **more: Any
) -> Any:
    """A field of a dataclass that `read` fills. `zero`: 0 is allowed, as it is by itself where it is the default;
    `of`: the dataclass or enum inside, by itself that of the default; str for a noun that is given by its name alone.

    `more` is what a surface shows or checks besides:
      least, most   bounds of a number
      needs         the field is read only with another: `disaggregate`, `preemption_mode=swap`, `requests|rate`
      like          a valid value that differs from the default, for examples and tests
      names         further spellings as a flag: `-s`, `--device`
      panel, rare   its panel of the help; shown by --help-all alone
      metavar       what represents its value in the help
      key           its name on surfaces, where the field has another: `as` is a word of Python
      plain         a text that never names a file: assistants may give any
      local         not for assistants: it reaches beyond the files of a server
    """
    if unknown := more.keys() - MORE:
        raise TypeError(f"figure: unknown {', '.join(sorted(unknown))}")
    if kind == "choice" and of is None:
        of = type(default)
    if zero is None:
        zero = default == 0 and type(default) in (int, float)
    about = {"kind": kind, "doc": doc, "zero": zero, "of": of, **more}
    if default is MISSING:
        return field(metadata=about)
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=about)
    return field(default=default, metadata=about)


MORE: Final = frozenset(
    {"least", "most", "needs", "like", "names", "panel", "rare", "metavar", "place", "key", "plain", "local"}
)


def text(doc: str, **more: Any) -> Any:
    """A figure that is a text, empty if it is not given."""
    return figure("text", doc, "", **more)


def switch(doc: str, **more: Any) -> Any:
    """A figure that is on or off, and off if it is not given."""
    return figure("switch", doc, False, **more)


def argument(kind: str, doc: str, default: Any = MISSING, **more: Any) -> Any:
    """A figure that is given by its place on a command line, not by a flag; `--name` is understood too."""
    return figure(kind, doc, default, place="argument", **more)


def part(
    cls: type[Any], panel: str = "", *, but: tuple[str, ...] = (), only: tuple[str, ...] = (), later: bool = False
) -> Any:
    """A field that is a dataclass of figures, whose fields are parameters of the whole: `--block-size` of an engine.
    `later`: what its figures need may come from a file or a recipe, and is checked by whoever puts them together."""
    about = {"kind": "part", "doc": "", "zero": False, "of": cls, "panel": panel, "but": but, "only": only}
    about["later"] = later
    return field(default=None, metadata=about)


def key_of(f: Field[Any]) -> str:
    """The key that a field is read from."""
    if "key" in f.metadata:
        return str(f.metadata["key"])
    return f.name.removesuffix(_SUFFIX.get(f.metadata["kind"].removeprefix("map of "), "\0"))


def read(cls: type[T], given: Any, where: str) -> T:
    """An instance of `cls` from a mapping; `where` names the mapping in messages."""
    if not isinstance(given, Mapping):
        raise ClusterError(f"expected keys and values, not {_shown(given)}", where=where)
    known = {key_of(f): f for f in fields(cls) if f.metadata}  # type: ignore[arg-type]
    given = _by_key(given, known, where)
    values = {}
    for key, f in known.items():
        if key in given:
            values[f.name] = _value(f, given[key], f"{where}: {key}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ClusterError(f"key `{key}` is missing", where=where, hint=f"for example {key}: {_example(f)}")
    try:
        return cls(**values)
    except ClusterError as problem:
        place = ": ".join(filter(None, (where, problem.where)))
        raise ClusterError(problem.problem, where=place, hint=problem.hint) from None


@contextmanager
def usage_errors(where: str = "") -> Iterator[None]:
    """Turns what is wrong in a file, or with a figure, into an error of use; `where` if the problem has no place."""
    try:
        yield
    except ClusterError as problem:
        raise UsageError(problem.problem, where=problem.where or where, hint=problem.hint) from None


def _by_key(given: Mapping[str, Any], known: Mapping[str, Field[Any]], where: str) -> dict[str, Any]:
    """The same with the name of a field (`latency_ns`, in that unit) as good as its key, so that what `asdict` gives is
    read too. None where a field is None by itself is as good as nothing."""
    names = {f.name: key for key, f in known.items()}
    found: dict[str, Any] = {}
    for key, value in given.items():
        own = names.get(key, key)
        if own not in known:
            raise ClusterError(f"unknown key `{key}`", where=where, hint=f"known: {', '.join(known)}")
        if own in found:
            raise ClusterError(f"`{own}` is given twice, also as `{key}`", where=where, hint="leave one of them out")
        if value is not None or known[own].default is not None:
            found[own] = value
    return found


def plain(part: Any) -> dict[str, Any]:
    """The mapping that `read` makes an equal instance of; what has its default is left out."""
    found: dict[str, Any] = {}
    for f in fields(part):
        if not f.metadata:
            continue
        value = getattr(part, f.name)
        usual = f.default_factory() if f.default_factory is not MISSING else f.default
        if usual is MISSING or value != usual:
            found[key_of(f)] = _written(f, value)
    return found


def _written(f: Field[Any], value: Any) -> Any:
    kind, of = f.metadata["kind"], f.metadata["of"]
    if kind == "one":
        return plain(value)
    if kind == "list":
        return [v if of in _SCALARS else plain(v) for v in value]
    if kind == "choice":
        return value.value
    if kind == "texts":
        return value["*"] if set(value) == {"*"} else dict(value)
    if kind.startswith("map of "):
        inner = kind.removeprefix("map of ")
        return _written_map(inner, value)
    return _with_unit(kind, value)


def _written_map(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    if kind.startswith("map of "):
        return {k: _written_map(kind.removeprefix("map of "), v) for k, v in value.items()}
    return {k: plain(v) if kind == "one" else _with_unit(kind, v) for k, v in value.items()}


def _with_unit(kind: str, value: Any) -> Any:
    """A figure with its unit, exactly; a bare number where it has none or is not a whole one."""
    write = _WRITE.get(kind)
    return write(int(value), digits=None) if write and value == int(value) else value


def _example(f: Field[Any]) -> str:
    return EXAMPLE.get(f.metadata["kind"].removeprefix("map of "), "...")


def value_of(f: Field[Any], given: Any, where: str) -> Any:
    """What a field is with this value by itself."""
    return _value(f, given, where)


def _value(f: Field[Any], given: Any, where: str) -> Any:
    kind, of = f.metadata["kind"], f.metadata["of"]
    if kind == "one":
        return read(of, given, where) if of is not None else given
    if kind in ("several", "paths", "command"):
        return _several(given, where)
    if kind == "list":
        if isinstance(given, str) and of in _SCALARS:
            given = given.split(",")
        if not isinstance(given, (list, tuple)):
            raise ClusterError(f"expected a list, not {_shown(given)}", where=where)
        return tuple(_item(of, g, f"{where}[{i}]") for i, g in enumerate(given))
    if kind == "choice":
        return _choice(of, given, where)
    if kind == "texts":
        return _texts(given, where)
    if kind in ("flag", "switch"):
        if not isinstance(given, bool):
            raise ClusterError(f"expected true or false, not {_shown(given)}", where=where)
        return given
    if kind.startswith("map of "):
        return _mapping(kind.removeprefix("map of "), f, given, where)
    if kind in ("path", "out"):
        return _path(given, where)
    if kind == "noun":
        return _path(given, where) if of is str or isinstance(given, (str, PathLike)) else given
    value = scalar(kind, given, where, zero=f.metadata["zero"])
    _check_bounds(f, given, value, where)
    return value


def _several(given: Any, where: str) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, (str, PathLike)) else given
    if not isinstance(texts, (list, tuple)) or not all(isinstance(one, (str, PathLike)) for one in texts):
        raise ClusterError(f"expected a list of texts, not {_shown(given)}", where=where)
    return tuple(fspath(one) for one in texts)


def _path(given: Any, where: str) -> str:
    if not isinstance(given, (str, PathLike)) or not fspath(given):
        raise ClusterError(f"expected a path, not {_shown(given)}", where=where)
    return fspath(given)


def _check_bounds(f: Field[Any], given: Any, value: Any, where: str) -> None:
    least, most = f.metadata.get("least"), f.metadata.get("most")
    if least is not None and value < least:
        raise ClusterError(f"{_shown(given)} is less than {least}", where=where)
    if most is not None and value > most:
        raise ClusterError(f"{_shown(given)} is more than {most:,}", where=where)


def _item(of: type[Any] | None, given: Any, where: str) -> Any:
    if of in _SCALARS:
        return scalar(_SCALARS[of], given, where, zero=True)
    return read(of or dict, given, where)


def _choice(of: type[Enum], given: Any, where: str) -> Enum:
    try:
        return of(given)
    except ValueError:
        known = ", ".join(str(m.value) for m in of if m.value)
        raise ClusterError(f"unknown value {_shown(given)}", where=where, hint=f"known: {known}") from None


def _texts(given: Any, where: str) -> dict[str, str]:
    if isinstance(given, str):
        return {"*": given}
    if not isinstance(given, Mapping) or not all(isinstance(v, str) for v in given.values()):
        raise ClusterError("expected a text, or a text for each key", where=where)
    return dict(given)


def _mapping(kind: str, f: Field[Any], given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ClusterError(f"expected keys and values, not {_shown(given)}", where=where)
    of = f.metadata["of"]
    out: dict[str, Any] = {}
    for key, value in given.items():
        at = f"{where}: {key}"
        if kind == "one":
            out[str(key)] = read(of, value, at)
        elif kind.startswith("map of "):
            out[str(key)] = _mapping(kind.removeprefix("map of "), f, value, at)
        else:
            out[str(key)] = scalar(kind, value, at, zero=f.metadata["zero"])
    return out


def scalar(kind: str, given: Any, where: str, *, zero: bool) -> Any:
    """A value of a kind that is neither a list nor a mapping."""
    if kind == "text":
        if not isinstance(given, str):
            raise ClusterError(f"expected a text, not {_shown(given)}", where=where)
        return given
    value = _number(kind, given, where)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        problem = "is not positive" if not zero else "is negative" if value < 0 else "is not a number"
        raise ClusterError(f"{_shown(given)} {problem}", where=where, hint=f"write for example {EXAMPLE[kind]}")
    if kind == "fraction" and value > 1:
        raise ClusterError(f"{_shown(given)} is more than 1", where=where, hint="a fraction is between 0 and 1")
    return value


def _number(kind: str, given: Any, where: str) -> Any:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise ClusterError(
            f"{_shown(given)} is not a valid value", where=where, hint=f"write for example {EXAMPLE[kind]}"
        )
    if isinstance(given, float) and kind in ("fraction", "number", "power", "time", "rate", "bandwidth"):
        return given
    parse = {"time": parse_time, "bytes": parse_bytes, "bandwidth": parse_bandwidth}.get(kind, parse_count)
    if isinstance(given, str) and kind in ("fraction", "number", "power"):
        try:
            return _watts(given) if kind == "power" else float(given)
        except ValueError:
            what = "fraction" if kind == "fraction" else "number"
            raise ClusterError(f"{_shown(given)} is not a {what}", where=where) from None
    if isinstance(given, int) and given < 0:
        return given  # the caller says so
    try:
        return parse(given)  # type: ignore[arg-type]
    except UsageError as problem:
        raise ClusterError(problem.problem, where=where, hint=problem.hint) from None


def _watts(text: str) -> float:
    """`700`, `700W`, `600kW`, `1.5MW`."""
    number = text.strip().removesuffix("W").removesuffix("w")
    factor = {"k": 1e3, "K": 1e3, "M": 1e6}.get(number[-1:], 1.0)
    return float(number[:-1] if factor > 1 else number) * factor


def _shown(given: Any) -> str:
    try:
        text = repr(given) if not isinstance(given, str) else f"`{given}`"
    except RecursionError:
        text = f"a {type(given).__name__} nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- files -------------------------------------------------------------------------------------------------------------


def read_file(path: str | PathLike[str]) -> Any:
    """What a YAML or JSON file holds."""
    where = fspath(path)
    try:
        text = Path(path).read_text("utf-8")
    except OSError as problem:
        raise ClusterError(str(problem.strerror or problem).lower(), where=where) from None
    except UnicodeDecodeError:
        raise ClusterError("is not a text file", where=where) from None
    return parse(text, where)


def read_mapping(path: str | PathLike[str]) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file."""
    with usage_errors():
        given = read_file(path)
    if not isinstance(given, dict):
        raise UsageError("expected keys and values", where=fspath(path))
    return given


def keys_in(path: str | PathLike[str]) -> set[str]:
    """The keys of a YAML file; none of what is not one, as the name of a model."""
    is_file = fspath(path).endswith((".yaml", ".yml")) and Path(path).is_file()
    return set(read_mapping(path)) if is_file else set()


@cache
def safe_loader() -> Any:
    """PyYAML's loader of plain values: the one in C, ten times as fast, where its library was there. What aliases
    repeat counts each time: a document that would be far larger than it is written is refused."""
    import yaml  # here, so that what needs no file needs no parser

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def get_single_node(self) -> Any:
            return _of_bounded_size(super().get_single_node())

        def get_node(self) -> Any:
            return _of_bounded_size(super().get_node())

    return Loader


MOST_REPEATED: Final = 1_000_000
"""Values of a YAML document with those that its aliases repeat, unless as many are written."""


def _of_bounded_size(root: Any) -> Any:
    """The same node of a document; refused if its aliases repeat too much, or lead back to where they are."""
    import yaml

    size: dict[int, int] = {}
    within: set[int] = set()
    left = [(root, False)] if root is not None else []
    while left:
        node, is_counted = left.pop()
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = [one for pair in inner for one in pair]
        if is_counted:
            within.discard(id(node))
            size[id(node)] = 1 + sum(size[id(one)] for one in inner)
            if size[id(node)] > max(MOST_REPEATED, len(size)):
                raise yaml.MarkedYAMLError(problem="aliases repeat too much", problem_mark=node.start_mark)
        elif id(node) in within:
            raise yaml.MarkedYAMLError(problem="an alias is inside what it names", problem_mark=node.start_mark)
        elif id(node) not in size:
            within.add(id(node))
            left.append((node, True))
            left += [(one, False) for one in inner]
    return root


def parse(text: str, where: str) -> Any:
    """What YAML or JSON holds; a key that occurs twice is refused."""
    import yaml

    class Loader(safe_loader()):  # type: ignore[misc]
        """YAML that refuses a key given twice."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        seen: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if key in seen:
                raise ClusterError(f"key `{key}` appears twice", where=f"{where}: line {key_node.start_mark.line + 1}")
            seen[key] = loader.construct_object(value_node, deep=True)
        return seen

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        at = f"{where}: line {mark.line + 1}" if mark else where
        raise ClusterError(getattr(problem, "problem", None) or "is not YAML", where=at) from None
    except (TypeError, RecursionError, ValueError):
        raise ClusterError("is not plain YAML", where=where) from None


# -- what values say of themselves -------------------------------------------------------------------------------------


def said(value: Any, told: str = "") -> str:
    """One line for `repr`: a description of a value and a digest of all its fields; without one, the fields that
    differ from their defaults. Values that differ in any field differ in it, since caches take it as a key."""
    name = type(value).__qualname__
    if told:
        whole = ",".join(f"{f.name}={getattr(value, f.name)!r}" for f in fields(value))
        return f"{name}({told}, #{sha256(whole.encode()).hexdigest()[:16]})"
    changed = [f for f in fields(value) if not _is_default(f, getattr(value, f.name))]
    return f"{name}({', '.join(f'{f.name}={_spelled(getattr(value, f.name))}' for f in changed)})"


def _is_default(f: Field[Any], value: Any) -> bool:
    default = f.default_factory() if f.default_factory is not MISSING else f.default
    return type(value) is type(default) and bool(value == default)


def _spelled(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
