"""Cells of one colour, the stronger the more: between any two things, and of each thing over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from etude.tell.view.lengths import sized
from etude.tell.view.markup import Markup
from etude.tell.view.plots import Axis, picture, tag

__all__ = ["heat", "heat_over_time"]


def heat(label: str, values: Sequence[Sequence[float]], names: Sequence[str], show: Callable[[float], str]) -> Markup:
    """A square of cells: row i, column j is what goes from i to j. The more, the further from the background colour."""
    n = len(names)
    most = max((v for row in values for v in row), default=0.0) or 1.0
    cell = max(6.0, min(34.0, 460.0 / max(1, n)))
    left, top = 64, 30
    size = cell * n
    parts = []
    for i in range(0, n, max(1, math.ceil(n / (size / 30)))):
        at = cell * i + cell / 2
        parts.append(tag("text", names[i], x=left - 7, y=top + at + 4, text_anchor="end"))
        parts.append(tag("text", names[i], x=left + at, y=top - 8, text_anchor="middle"))
    for i, j in itertools.product(range(n), range(n)):
        share = 100 * math.sqrt(values[i][j] / most)
        tip = f"{names[i]} to {names[j]}\n{show(values[i][j])}"
        parts.append(tag("rect", x=left + cell * j, y=top + cell * i, width=cell - 1, height=cell - 1, rx=2,
                         class_=sized(round(share), "heat"), data_tip=tip))  # fmt: skip
    return picture(label, left + size + 10, top + size + 10, parts, most=left + size + 10)


def heat_over_time(
    label: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    edges: Sequence[float],
    time: Callable[[float], str],
    show: Callable[[float], str],
    most: float = 0.0,
) -> Markup:
    """A row of cells for each thing, from left to right in time; `most` has the strongest colour."""
    most = most or max((value for _, values in rows for value in values), default=0.0) or 1.0
    left, width, high, low = 300, 780.0, 16, edges[0]
    scale = width / ((edges[-1] - low) or 1.0)
    parts = []
    for row, (name, values) in enumerate(rows):
        parts.append(tag("text", name, x=left - 7, y=high * row + 12, text_anchor="end"))
        for begin, end, value in zip(edges, edges[1:], values, strict=False):
            share = round(100 * math.sqrt(max(value, 0.0) / most))
            tip = f"{name}\n{time(begin - low)} to {time(end - low)}: {show(value)}"
            parts.append(tag("rect", x=left + (begin - low) * scale, y=high * row, width=(end - begin) * scale,
                             height=high - 1, class_=sized(min(share, 100), "heat"), data_tip=tip))  # fmt: skip
    for at in Axis("", time, False, 0.0, (edges[-1] - low) or 1.0).ticks():
        anchor = "start" if not at else "middle"
        parts.append(tag("text", time(at), x=left + at * scale, y=high * len(rows) + 16, text_anchor=anchor))
    return picture(label, left + width + 20, high * len(rows) + 24, parts)
