"""Linear programs, with whole numbers where they are asked for, by HiGHS.

program = Program()
n = program.variable(cost=2.0, whole=True)
program.row({n: 3.0}, least=10.0)
program.solve().values          # [4.]: nothing was rounded on the way
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64

INFEASIBLE = 2
"""What `scipy.optimize.milp` says of a program without a solution."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    values: NDArray[np.float64]
    """Value of each variable; integer ones are whole."""
    took_s: float
    """On the clock; never part of a result."""


@dataclass(slots=True)
class IntegerProgram:
    """Minimises the sum of cost times value. Every row is `least <= sum of terms <= most`."""

    costs: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)

    def variable(self, cost: float = 0.0, most: float = inf, whole: bool = False) -> int:
        """Number of a new variable between 0 and `most`."""
        self.costs.append(cost)
        self.most.append(most)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, terms: Mapping[int, float], least: float = -inf, most: float = inf) -> None:
        """Scaled by its largest term, since the solver's tolerances are absolute."""
        scale = max((abs(term) for term in terms.values()), default=0.0) or 1.0
        self.rows.append(({i: term / scale for i, term in terms.items()}, least / scale, most / scale))

    def solve(self) -> Solution | None:
        """None where nothing satisfies all rows. Whole numbers are searched until none is better."""
        if not self.costs:
            return Solution(np.zeros(0), 0.0) if all(least <= 0 <= most for _, least, most in self.rows) else None
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [(r, i, term) for r, (terms, _, _) in enumerate(self.rows) for i, term in terms.items() if term]
        at = np.array([(r, i) for r, i, _ in entries], np.int64).reshape(-1, 2)
        matrix = csr_array(
            ([term for _, _, term in entries], (at[:, 0], at[:, 1])), shape=(len(self.rows), len(self.costs))
        )
        scale = max((abs(cost) for cost in self.costs), default=0.0) or 1.0
        began = perf_counter()
        with _no_stdout():
            found = milp(
                np.array(self.costs) / scale,
                integrality=np.array(self.whole, np.int64),
                bounds=Bounds(0.0, np.array(self.most)),
                options={"mip_rel_gap": 0.0},
                constraints=LinearConstraint(matrix, [row[1] for row in self.rows], [row[2] for row in self.rows]),
            )
        if found.status == INFEASIBLE:
            return None
        if found.x is None or not found.success:
            raise UsageError(f"the program was not solved: {found.message}")
        values = np.where(self.whole, np.round(found.x), np.maximum(found.x, 0.0))
        return Solution(values, perf_counter() - began)


def every_sum(parts: Sequence[tuple[F64, F64]], most: F64, limit: int, noun: str) -> tuple[F64, F64, NDArray[np.int32]]:
    """Every choice of one row of each part: sums of costs, sums of loads, and the rows that were chosen. `parts`: cost
    and loads of each row. What exceeds the `most` of a load is left out, part by part."""
    count = math.prod(len(costs) for costs, _ in parts)
    if count > limit:
        raise UsageError(f"{count:,} {noun} are more than {limit:,}", hint="--method ilp")
    totals, loads, chosen = np.zeros(1), np.zeros((1, len(most))), np.zeros((1, 0), np.int32)
    for costs, own in parts:
        totals = (totals[:, None] + costs).ravel()
        loads = (loads[:, None, :] + own).reshape(-1, len(most))
        here = np.tile(np.arange(len(costs), dtype=np.int32), len(chosen))
        chosen = np.column_stack([np.repeat(chosen, len(costs), axis=0), here])
        fits = (loads <= most * (1 + 1e-9)).all(axis=1)
        totals, loads, chosen = totals[fits], loads[fits], chosen[fits]
    return totals, loads, chosen


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """Nothing reaches file descriptor 1: HiGHS prints some lines there whatever its options say, amid our JSON."""
    if os.name != "posix":
        yield
        return
    import ctypes

    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        libc.fflush(None)  # what C has buffered, before the descriptor is stdout again
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
