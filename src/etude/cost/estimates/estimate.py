"""Estimate: a value, the ranges that hold it in half and in nine of ten such cases, and what they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A predicted figure. Ranges are symmetric in the logarithm: what a value may be too large by, its inverse may be
    too small by."""

    value: float
    half: float | None
    """Half of such cases have |ln(measured / predicted)| below it; None: nothing is known of them."""
    most: float | None
    """Nine of ten."""
    basis: Mapping[str, Any]
    """Rows and sources behind the ranges, and what is farther from them than their middle."""

    @property
    def low(self) -> float | None:
        return None if self.most is None else self.value * math.exp(-self.most)

    @property
    def high(self) -> float | None:
        return None if self.most is None else self.value * math.exp(self.most)

    @property
    def low_50(self) -> float | None:
        return None if self.half is None else self.value * math.exp(-self.half)

    @property
    def high_50(self) -> float | None:
        return None if self.half is None else self.value * math.exp(self.half)

    def at(self, value: float) -> Estimate:
        """Another figure that is proportional to this one, or to its inverse."""
        return replace(self, value=value)

    @property
    def about(self) -> str:
        """What the range is, and what it rests on."""
        said = str(self.basis["text"])
        return said if self.most is None else f"9 of 10, by {said}"

    def text(self, write: Callable[[float], str]) -> str:
        """`825 ms (760–930)`: the value and the range of nine in ten, in the unit of the value."""
        shown = write(self.value)
        if self.low is None or self.high is None:
            return f"{shown} ({self.basis['text']})"
        number, unit = _number(shown)
        scale = number / self.value if number and self.value else 1.0
        return f"{shown}{range_text(self.low * scale, self.high * scale, '%' if unit == '%' else '')}"


def columns(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """`low`, `high` (nine of ten), `low_50`, `high_50` (half) and `basis` of each figure, by its name."""
    names = ("low", "high", "low_50", "high_50")
    found: dict[str, dict[str, Any]] = {
        name: {figure: getattr(one, name) for figure, one in estimates.items()} for name in names
    }
    return found | {"basis": {figure: dict(one.basis) for figure, one in estimates.items()}}


def range_of(record: Mapping[str, Any], figure: str) -> str:
    """` (760–930)` of a figure of a record with `columns`; empty where nothing is known."""
    return range_text(*(record.get(end, {}).get(figure) for end in ("low", "high")))


def said_range(record: Mapping[str, Any], figure: str) -> str:
    """What the range of a figure of such a record is, and what it rests on."""
    text, known = record["basis"][figure]["text"], record["low"][figure] is not None
    return f"9 of 10, by {text}" if known else text


def range_text(low: float | None, high: float | None, unit: str = "") -> str:
    """` (760–930)`; empty where nothing is known."""
    return "" if low is None or high is None else f" ({_digits(low)}–{_digits(high)}{unit})"


def _number(text: str) -> tuple[float, str]:
    """`825 ms` as a number and its unit."""
    head = text.rstrip("%").partition(" ")
    try:
        return float(head[0].replace(",", "")), "%" if text.endswith("%") else head[2]
    except ValueError:
        return 0.0, ""


def _digits(value: float) -> str:
    """In three digits, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    rounded = round(value, 2 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
