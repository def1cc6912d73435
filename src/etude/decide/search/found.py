"""The result of a search."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best candidate and the frontier, with the number of candidates.

    Every candidate of the space was tried or pruned: `tried + sum(pruned.values()) == space`.
    """

    best: Row
    """The chosen candidate and its scores."""
    frontier: list[Row]
    """Candidates that no other beats in every score; with one score, only the best."""
    tried: int
    """Candidates whose score was computed."""
    pruned: Mapping[str, int] = field(default_factory=dict)
    """Why candidates were left out, and how many for that reason."""
    space: int = 0
    """Total number of candidates."""
    rows: list[Row] = field(default_factory=list)
    """Tried candidates, the best first; shown as the table."""
    notes: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    """Remarks on the result that differ from run to run, such as the time of a solver; not in the record."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further results of this kind of search, next to the rest in the record."""

    def __repr__(self) -> str:
        best = ", ".join(f"{key}={value}" for key, value in list(self.best.items())[:6])
        return f"Found({best}; {self.tried:,} of {self.space:,} candidates tried)"

    def _repr_html_(self) -> str:
        from etude.decide.search.page import found_html

        return found_html(self)

    def record(self) -> dict[str, Any]:
        return {
            "best": self.best, "frontier": self.frontier, "tried": self.tried, "pruned": sum(self.pruned.values()),
            "space": self.space, "pruned_why": dict(self.pruned), "rows": self.rows or self.frontier,
            "notes": list(self.notes), **self.more,
        }  # fmt: skip


def frontier(rows: Sequence[Row], scores: Mapping[str, int]) -> list[Row]:
    """Rows that no other beats in every score, in order of the first one; the first of equal rows. `scores`: name -> 1
    if less is better, -1 if more is."""
    keys = [tuple(sign * row[name] for name, sign in scores.items()) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (keys[i], i))
    kept: list[int] = []
    for i in order:
        if not any(all(a <= b for a, b in zip(keys[k], keys[i], strict=True)) for k in kept):
            kept.append(i)
    return [rows[i] for i in kept]


def dominated(bound: Row, rows: Iterable[Row], scores: Mapping[str, int]) -> bool:
    """Whether some row is at least as good as these scores in every one."""
    mine = {name: sign * bound[name] for name, sign in scores.items()}
    return any(all(sign * row[name] <= mine[name] for name, sign in scores.items()) for row in rows)
