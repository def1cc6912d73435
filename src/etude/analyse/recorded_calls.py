"""Collectives numbered by a recorder, by group and rank: which call each rank made, its properties, and where the rank
hangs.

The number is the attribute `comm_seq`: that of the call in its group. Without such numbers the k-th call of one rank
need not be the k-th of another, since a recording may begin late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.model.attrs import decode_value
from etude.model.match import WORLD
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

__all__ = ["Members", "Place", "SeenCall", "Stands", "numbered_calls", "recorded_number"]

NUMBER: Final = "comm_seq"

Place = tuple[int, int]
"""Number of the call in its group, and which of those of that number (several are coalesced into one)."""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One call as one rank made it."""

    what: str
    in_sizes: tuple[int, ...] | None
    """Elements of each tensor; None where not recorded."""
    out_sizes: tuple[int, ...] | None
    dtype: str
    row: int
    is_open: bool
    started: bool | None
    """Whether its device began it; None if not recorded."""

    @property
    def sign(self) -> tuple[object, ...]:
        return self.what, self.in_sizes, self.out_sizes, self.dtype

    def __str__(self) -> str:
        sizes = self.in_sizes or self.out_sizes
        return self.what if sizes is None else f"{self.what} ({sum(sizes):,} elements, {self.dtype or 'type unknown'})"


Members = dict[int, dict[Place, SeenCall]]
"""Calls of each rank of one group."""
Stands = dict[int, tuple[int, Place]]
"""Group and call of each rank that hangs."""


def numbered_calls(run: Run) -> tuple[dict[int, Members], Stands]:
    """(calls by group and rank; for each rank that hangs, the group and the number of the call)."""
    job = run.job
    groups: dict[int, Members] = {}
    stands: Stands = {}
    for at, rank in enumerate(job.ranks.tolist()):
        trace = job.traces[int(job.trace_of[at])]
        if not any(attr.name == NUMBER for layout in trace.layouts for attr in layout):
            continue
        slots = job.group_of[job.group_start[at] : job.group_start[at + 1]]
        start, end = run.timing.block(at)
        values = _attributes(trace)
        count: Counter[tuple[int, int]] = Counter()
        for row in sorted(values):
            number = values[row].get(NUMBER)
            if number is None or trace.kind[row] != Kind.COLL:
                continue
            slot = int(trace.group[row])
            group = int(slots[slot]) if slot >= 0 else WORLD
            place = number, count[group, number]
            count[group, number] += 1
            is_open = bool(start[row] != UNKNOWN and end[row] == UNKNOWN)
            groups.setdefault(group, {}).setdefault(rank, {})[place] = _seen(trace, row, values[row], is_open)
            if is_open:
                stands.setdefault(rank, (group, place))
    return groups, stands


def recorded_number(trace: Trace, row: int) -> int | None:
    """The number of a call as the recorder counted it."""
    if not any(attr.name == NUMBER for attr in trace.layouts[trace.layout[row]]):
        return None
    return next(int(value) for attr, value in trace.attributes(row) if attr.name == NUMBER)


def _attributes(trace: Trace) -> dict[int, dict[str, Any]]:
    """By row: the attributes that no column holds."""
    found: dict[int, dict[str, Any]] = {}
    for (name, kind), (nodes, cells) in trace.attr_cells().items():
        if name in (NUMBER, "comm_state", "dtype", "in_sizes", "out_sizes"):
            for row, cell in zip(nodes.tolist(), cells.tolist(), strict=True):
                found.setdefault(row, {})[name] = decode_value(trace.heap, kind, cell)
    return found


def _seen(trace: Trace, row: int, values: Mapping[str, Any], is_open: bool) -> SeenCall:
    collective = Collective(int(trace.collective[row]))
    what = collective.name.lower() if collective != Collective.OTHER else trace.text("name", row)
    sizes = [None if values.get(name) is None else tuple(values[name]) for name in ("in_sizes", "out_sizes")]
    state = values.get("comm_state")
    started = None if state is None else state != "scheduled"
    return SeenCall(what, sizes[0], sizes[1], str(values.get("dtype", "")), row, is_open, started)
