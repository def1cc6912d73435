"""The points of a sweep: a grid of axes or a list of points, a condition, a sample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np

from etude.base.errors import UsageError
from etude.decide.study.expressions import evaluated

Point: TypeAlias = dict[str, Any]
MOST_POINTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Points, each a value for every axis. A grid has all combinations, the last axis fastest.

    Space(axes={"tp": [1, 2, 4], "pp": [1, 2]}, when="tp * pp <= 4")
    """

    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    """A list of points instead of a grid."""
    when: str = ""
    """Points for which this expression is false are left out."""
    sample: int = 0
    """This many of the points, drawn without repetition; 0: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.axes and self.rows:
            raise UsageError("a space is a grid or a list of points, not both", where="sweep")
        for name, given in self.axes.items():
            if not isinstance(given, list | tuple) or not given:
                raise UsageError(f"`{name}` has no list of values", where="sweep", hint=f"{name}: [1, 2, 4]")
        if len({tuple(row) for row in map(sorted, self.rows)}) > 1:
            raise UsageError("points of a list have different keys", where="sweep")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.axes) or (tuple(self.rows[0]) if self.rows else ())

    def points(self) -> list[Point]:
        size = prod(map(len, self.axes.values())) if self.axes else len(self.rows)
        if size > MOST_POINTS:
            raise UsageError(f"{size:,} points", where="sweep", hint=f"at most {MOST_POINTS:,}; leave values out")
        found = [p for p in self._all() if not self.when or bool(evaluated(self.when, p, "when"))]
        if self.sample and self.sample < len(found):
            drawn = np.random.default_rng(self.seed).choice(len(found), self.sample, replace=False)
            found = [found[i] for i in np.sort(drawn)]
        if not found:
            raise UsageError("no point is left", where="sweep", hint="loosen `when`")
        return found

    def _all(self) -> Iterator[Point]:
        if self.rows:
            yield from (dict(row) for row in self.rows)
            return
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))
