"""Plots as SVG that follow the page's theme, work without a script, and can be read aloud."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from etude.tell.view.lengths import sized
from etude.tell.view.markup import Markup, escaped, joined

__all__ = ["Axis", "Line", "PlotPoint", "StripInterval", "fitted", "picture", "plot", "strip"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: what it measures, its number format, whether it is logarithmic."""

    label: str
    show: Callable[[float], str]
    log: bool = False
    low: float = 0.0
    high: float = 1.0

    def at(self, value: float) -> float:
        """Position of a value, 0 to 1."""
        if not self.log:
            return (value - self.low) / ((self.high - self.low) or 1.0)
        return (math.log(value) - math.log(self.low)) / ((math.log(self.high) - math.log(self.low)) or 1.0)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, (last - first) // 6 + 1)
            between = (1, 2, 5) if last - first < 3 else (1,)
            found = [m * 10.0**k for k in range(first, last + 1, step) for m in between]
            return [t for t in found if t <= self.high * (1 + 1e-9)]
        width = nice((self.high - self.low) / 5)
        first, last = math.ceil(self.low / width - 1e-9), math.floor(self.high / width + 1e-9)
        found = [k * width for k in range(first, last + 1)]
        shown = [self.show(tick) for tick in found]  # whole numbers round: two ticks may not have one label
        return [tick for number, tick in enumerate(found) if shown[number] not in shown[:number]]


def nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def fitted(label: str, show: Callable[[float], str], values: Sequence[float], *, log: bool) -> Axis:
    """An axis that covers these values with some room."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if log:
        low, high = (min(known), max(known)) if known else (1.0, 10.0)
        return Axis(
            label, show, True, 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high * 1.0001))
        )
    high = max(known, default=1.0) or 1.0
    return Axis(label, show, False, 0.0, nice(high / 5) * math.ceil(high / nice(high / 5) - 1e-9))


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A point of a scatter plot; `weight` from 0 to 1 is its size."""

    x: float
    y: float
    sort: str
    tip: str
    weight: float = 0.3


Line = tuple[str, str, Sequence[tuple[float, float]]]
"""Class, label, points."""

_LEFT, _BOTTOM, _TOP, _RIGHT = 112, 44, 14, 34
"""Room around a plot for the figures of its axes."""


def tag(name: str, text: str = "", /, **given: object) -> Markup:
    """An element; `class_` is its class, `text_anchor` becomes `text-anchor`, floats are cut to a tenth. Text and
    values are escaped."""
    said = []
    for key, value in given.items():
        shown = f"{value:.1f}" if isinstance(value, float) else escape(str(value))
        said.append(f'{key.rstrip("_").replace("_", "-")}="{shown}"')
    return Markup(f"<{name} {' '.join(said)}>{escaped(text)}</{name}>")


def picture(label: str, width: float, height: float, parts: Iterable[str], *, most: float = 0.0) -> Markup:
    """An SVG of these parts; `most`: of at most that many pixels."""
    chart = f"chart {sized(round(most), 'most')}" if most else "chart"
    return tag(
        "svg", joined(parts), class_=chart, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", aria_label=label
    )


def plot(
    label: str, x: Axis, y: Axis, marks: Sequence[PlotPoint] = (), lines: Sequence[Line] = (), *,
    size: tuple[int, int] = (680, 350),
) -> Markup:  # fmt: skip
    """Points and lines on two axes."""
    width, height = size

    def place(px: float, py: float) -> tuple[float, float]:
        return _LEFT + x.at(px) * (width - _LEFT - _RIGHT), height - _BOTTOM - y.at(py) * (height - _BOTTOM - _TOP)

    parts = list(_frame(x, y, place, width, height))
    for kind, name, points in lines:
        shown = [place(*p) for p in points]
        parts.append(tag("polyline", class_=kind, points=" ".join(f"{px:.1f},{py:.1f}" for px, py in shown)))
        if name and shown:
            px, py = shown[-1]
            at = {"x": min(px, width - _RIGHT) - 4.0, "y": max(py - 7, 12.0)}
            parts.append(tag("text", name, class_="strong", text_anchor="end", **at))
    for mark in sorted(marks, key=lambda m: -m.weight):
        px, py = place(mark.x, mark.y)
        radius = 3.0 + 9.0 * math.sqrt(mark.weight)
        parts.append(tag("circle", class_=f"mark f-{mark.sort}", tabindex=0, cx=px, cy=py, r=radius, data_tip=mark.tip,
                         role="img", aria_label=mark.tip))  # fmt: skip
    return picture(label, width, height, parts, most=width)


def _frame(
    x: Axis, y: Axis, place: Callable[[float, float], tuple[float, float]], width: int, height: int
) -> Iterator[str]:
    foot = height - _BOTTOM
    for tick in x.ticks():
        px, _ = place(tick, y.low)
        yield tag("line", class_="grid", x1=px, x2=px, y1=_TOP, y2=foot)
        yield tag("text", x.show(tick), x=px, y=foot + 16, text_anchor="middle")
    for tick in y.ticks():
        _, py = place(x.low, tick)
        yield tag("line", class_="grid", x1=_LEFT, x2=width - _RIGHT, y1=py, y2=py)
        yield tag("text", y.show(tick), x=_LEFT - 7, y=py + 4, text_anchor="end")
    middle = {"text_anchor": "middle", "class_": "strong"}
    yield tag("text", x.label, x=(_LEFT + width - _RIGHT) / 2, y=height - 6, **middle)
    yield tag("text", y.label, transform="rotate(-90)", x=-foot / 2, y=13, **middle)


@dataclass(frozen=True, slots=True)
class StripInterval:
    """An interval of a strip."""

    start: float
    end: float
    sort: str
    tip: str


def strip(
    label: str, stretches: Sequence[StripInterval], low: float, high: float, show: Callable[[float], str]
) -> Markup:
    """A band over time."""
    width, edge = 1100, 2
    scale = (width - 2 * edge) / ((high - low) or 1.0)
    parts = [tag("rect", x=edge, y=4, width=width - 2 * edge, height=30, rx=4, class_="f-idle", opacity=0.4)]
    for s in stretches:
        wide = f"{max(0.4, (s.end - s.start) * scale):.2f}"
        parts.append(tag("rect", x=f"{edge + (s.start - low) * scale:.2f}", y=4, width=wide, height=30,
                         class_=f"f-{s.sort}", data_tip=s.tip))  # fmt: skip
    for at in Axis("", show, False, 0.0, (high - low) or 1.0).ticks():
        place = edge + at * scale
        anchor = "start" if not at else "end" if place > width - 30 else "middle"
        parts.append(tag("text", show(at), x=place, y=52, text_anchor=anchor))
    return picture(label, width, 60, parts)
