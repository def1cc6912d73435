"""Shapes of JSON values and of columns: types and ranges as data, and what does not have them refused with its place.

    SPREAD = keys(mean=SECONDS, p50=SECONDS, p99=SECONDS)
    check_value({"mean": 1.5, "p50": "x", "p99": 2}, SPREAD, Place("run/served.json"))
    # run/served.json: p50: expected a number, not `x`

Keys that a shape does not name may be there, with any plain value in them, unless it is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, Final

from etude.base.errors import FormatError

LARGEST: Final = 1e30
SMALLEST: Final = 1e-100
"""Numbers nearer to 0 are no result of anything, and logarithms of them are not finite."""
SLACK: Final = -1e-3
"""Differences of large sums are this far below 0 at most."""
DEEPEST: Final = 40
NOUNS: Final = {
    "number": "a number",
    "whole": "a whole number",
    "text": "a text",
    "flag": "true or false",
    "keys": "keys and values",
    "list": "a list",
}
"""Kind of a shape -> what it is called; `any` is any plain value."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a value may be, or each value of a column."""

    kind: str
    least: float = -LARGEST
    most: float = LARGEST
    null: bool = False
    """It may be null; in a column of numbers also NaN."""
    optional: bool = False
    """It may be left out."""
    among: tuple[str, ...] = ()
    """The texts that it may be; none: any."""
    inner: Mapping[str, Shape] = field(default_factory=dict)
    """Key -> what is there."""
    rest: Shape | None = None
    """Every other key, or every entry of a list; None: any plain value."""
    closed: bool = False
    """No other keys."""

    def or_null(self) -> Shape:
        return replace(self, null=True)

    def or_none(self) -> Shape:
        """It may be null or left out."""
        return replace(self, null=True, optional=True)

    def alone(self) -> Shape:
        """No other keys than those that it names."""
        return replace(self, closed=True)

    def if_there(self) -> Shape:
        """It may be left out, and is not null."""
        return replace(self, optional=True)


ANY: Final = Shape("any", null=True)
NUMBER: Final = Shape("number")
AMOUNT: Final = Shape("number", least=SLACK)
SECONDS: Final = Shape("number", least=SLACK, most=1e12)
POSITIVE: Final = Shape("number", least=1e-12, most=1e12)
SHARE: Final = Shape("number", least=-1e-6, most=1 + 1e-6)
COUNT: Final = Shape("whole", least=0, most=1e18)
SOME: Final = Shape("whole", least=1, most=1e18)
WHOLE: Final = Shape("whole", least=-9.3e18, most=9.3e18)
"""Any of 64 bits: the largest ones mean never."""
TEXT: Final = Shape("text")
FLAG: Final = Shape("flag")


def keys(rest: Shape | None = None, /, **inner: Shape) -> Shape:
    """A mapping with these keys; `rest`: the shape of all others."""
    return Shape("keys", inner=inner, rest=rest)


def several(of: Shape, least: int = 0) -> Shape:
    """A list of at least this number of entries."""
    return Shape("list", least=least, most=inf, rest=of)


def names_in(text: str) -> tuple[str, ...]:
    """The words of a text, as a list of names is written."""
    return tuple(text.split())


def of_each(shape: Shape, text: str) -> dict[str, Shape]:
    """The same shape for several names with spaces between them."""
    return dict.fromkeys(names_in(text), shape)


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a value is, for messages."""

    path: str
    at: str = ""
    hint: str = ""

    def below(self, key: object) -> ValuePlace:
        shown = f"[{key}]" if isinstance(key, int) else str(key)[:60]
        return ValuePlace(
            self.path, f"{self.at}.{shown}" if self.at and shown[0:1] != "[" else self.at + shown, self.hint
        )

    def wrong(self, problem: str) -> FormatError:
        return FormatError(problem, path=self.path, where=self.at, hint=self.hint)


def check_value(value: Any, shape: Shape, place: ValuePlace, depth: int = 0) -> None:
    """Raises FormatError if a JSON value does not have a shape."""
    if depth > DEEPEST:
        raise place.wrong("is nested too deeply")
    if value is None:
        if not shape.null:
            raise place.wrong(f"expected {NOUNS[shape.kind]}, not null")
    elif shape.kind == "any":
        _check_plain(value, place, depth)
    elif not _is_kind(value, shape.kind):
        raise place.wrong(f"expected {NOUNS[shape.kind]}, not {shown(value)}")
    elif shape.kind == "keys":
        _check_keys(value, shape, place, depth)
    elif shape.kind == "list":
        if len(value) < shape.least:
            raise place.wrong(f"has {len(value)} entries, but needs {shape.least}")
        for number, entry in enumerate(value):
            check_value(entry, shape.rest or ANY, place.below(number), depth + 1)
    elif shape.kind in ("number", "whole"):
        check_range(value, shape, place)
    elif shape.among and value not in shape.among:
        raise place.wrong(f"{shown(value)} is not known; known: {', '.join(shape.among)}")


def _check_keys(value: Mapping[str, Any], shape: Shape, place: ValuePlace, depth: int) -> None:
    for name, one in shape.inner.items():
        if name in value:
            check_value(value[name], one, place.below(name), depth + 1)
        elif not one.optional:
            raise place.wrong(f"has no `{name}`")
    for name in value.keys() - shape.inner.keys():
        if shape.closed:
            raise place.wrong(f"unknown key `{name[:60]}`")
        check_value(value[name], shape.rest or ANY, place.below(name), depth + 1)


def _check_plain(value: Any, place: ValuePlace, depth: int) -> None:
    if isinstance(value, Mapping):
        check_value(value, Shape("keys"), place, depth)
    elif isinstance(value, list):
        check_value(value, several(ANY), place, depth)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        check_range(value, NUMBER, place)


def _is_kind(value: Any, kind: str) -> bool:
    if kind in ("number", "whole"):
        return isinstance(value, int if kind == "whole" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"text": str, "flag": bool, "keys": Mapping, "list": list}[kind])


def check_range(value: float, shape: Shape, place: ValuePlace) -> None:
    """Raises FormatError if a number is out of the range of a shape, or no number."""
    if not _is_finite(value) and value not in (shape.least, shape.most):
        raise place.wrong(f"{shown(value)} is not a number")
    if value < shape.least:
        raise place.wrong(f"{shown(value)} is less than {shape.least:g}")
    if value > shape.most:
        raise place.wrong(f"{shown(value)} is more than {shape.most:g}")
    if value and abs(value) < SMALLEST:
        raise place.wrong(f"{shown(value)} is too small to be a result")


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float can be
        return True


def shown(value: Any) -> str:
    """A value in a message."""
    try:
        text = f"`{value}`" if isinstance(value, str) else str(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists within lists
        text = f"a {type(value).__name__} that is too long"
    return text if len(text) <= 60 else f"{text[:57]}..."
