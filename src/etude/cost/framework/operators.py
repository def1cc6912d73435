"""Times of PyTorch's operators that do not follow from their work, a row for each name.

    table = open_framework()
    table.of("aten::mul").inside_ns       # of the host

`pytorch.csv` beside this file is what `benchmarks/fit_framework.py` wrote from recordings of eager programs.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

ANY: Final = "*"
"""The row of operators that have none of their own."""
MEASURED_ON: Final = "an H200 and its host (PyTorch 2.11)"
LISTS: Final = ("aten::_foreach_", "aten::_fused_")
"""Operators on lists of tensors, for each of which Python does something."""
WEIGHTS_OF: Final = {"aten::convolution": 1, "aten::convolution_backward": 2}
FEW_CHANNELS: Final = 4
OF_VOLUMES: Final = 5
"""Axes of the weights of a convolution of volumes."""


class FrameworkOperator(NamedTuple):
    """Means of a call."""

    ahead_ns: float
    """Of the host, from the end of the operator before it; of an operator on lists for each of its tensors."""
    inside_ns: float
    """Of the host, in it and in what it calls; likewise."""
    fixed_ns: float
    """Of the device, whatever the size."""
    factor: float
    """On what the formulas of the device give for its work."""
    programs: int
    """That it was recorded in."""

    def device_ns(self, formula_ns: float) -> float:
        return self.fixed_ns + self.factor * formula_ns

    def host_ns(self, name: str, tensors: int) -> tuple[float, float]:
        """(Before it, in it.)"""
        each = max(tensors, 1) if on_lists(name) else 1
        return self.ahead_ns * each, self.inside_ns * each


@dataclass(frozen=True, slots=True)
class FrameworkOperators:
    rows: Mapping[str, FrameworkOperator]

    def of(self, name: str, shapes: Sequence[Sequence[int]] = ()) -> FrameworkOperator | None:
        """Its row: of its form, of its name, or of the same in place."""
        names = (form_of(name, shapes), name, f"{name}_")
        return next((self.rows[word] for word in names if word in self.rows), None)

    @property
    def next_list_ns(self) -> float:
        """Of the host for each tensor, between an operator on lists and the next of the same optimizer: what it does
        for all its weights comes before the first."""
        return median(row.ahead_ns for name, row in self.rows.items() if on_lists(name))

    @property
    def any(self) -> FrameworkOperator:
        return self.rows[ANY]


def form_of(name: str, shapes: Sequence[Sequence[int]]) -> str:
    """Its name; of convolutions that do not run on matrix units, because each channel has filters of its own or because
    there are few channels, and of those of volumes, with a word for that."""
    of_weights = WEIGHTS_OF.get(name, -1)
    if not 0 <= of_weights < len(shapes):
        return name
    channels = shapes[of_weights][1]
    if channels == 1:
        return f"{name} by channel"
    if channels <= FEW_CHANNELS:
        return f"{name} of few channels"
    return f"{name} of volumes" if len(shapes[of_weights]) == OF_VOLUMES else name


def on_lists(name: str) -> bool:
    return name.startswith(LISTS)


@cache
def open_framework() -> FrameworkOperators:
    with (Path(__file__).parent / "pytorch.csv").open(encoding="utf-8", newline="") as file:
        return FrameworkOperators({row.pop("name"): _row(row) for row in csv.DictReader(file)})


def _row(row: Mapping[str, str]) -> FrameworkOperator:
    ahead, inside, fixed, factor = (float(row[name]) for name in ("ahead_ns", "inside_ns", "fixed_ns", "factor"))
    return FrameworkOperator(ahead, inside, fixed, factor, int(row["programs"]))
