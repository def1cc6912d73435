"""Timing: when each node ran, and where these times came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from etude.base.errors import TraceError
from etude.base.units import format_time
from etude.kernels.arrays import I32, I64, distinct_values
from etude.model.schema import UNKNOWN


class Origin(IntEnum):
    NONE = 0
    MEASURED = 1
    SIMULATED = 2
    REPLAYED = 3


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Timing:
    """Start and end of every node, in blocks: one per rank if measured, one per class of ranks if folded.

    The i-th rank that is present has block block_of[i]; row j of a block is node j. UNKNOWN means no time.

    timing: etude.extend.Timing = run.timing
    """

    origin: Origin
    start_ns: tuple[I64, ...]
    end_ns: tuple[I64, ...]
    block_of: I32
    clock_offset_ns: I64
    """Added to a rank's times to map them to the first rank's clock; zeros if unknown."""
    aligned: bool = False
    partial: bool = False

    def __post_init__(self) -> None:
        if len(self.start_ns) != len(self.end_ns):
            raise TraceError(f"timing has {len(self.start_ns)} blocks of starts and {len(self.end_ns)} of ends")
        for number, (start, end) in enumerate(zip(self.start_ns, self.end_ns, strict=True)):
            if len(start) != len(end):
                raise TraceError(f"timing block {number}: {len(start)} starts and {len(end)} ends")
            start.flags.writeable = end.flags.writeable = False
        if len(self.block_of) and not 0 <= self.block_of.min() <= self.block_of.max() < len(self.start_ns):
            raise TraceError(f"timing names a block outside its {len(self.start_ns)}")

    def __repr__(self) -> str:
        return f"Timing({self.told()}; {len(self.block_of):,} ranks, {len(self.start_ns):,} blocks)"

    def told(self) -> str:
        """Source of the times, and time from the first start to the last end: `simulated, 12.3 ms`."""
        span, cut = self.span(), ", partial" if self.partial else ""
        took = format_time(span[1] - span[0]) if span is not None else "no times"
        return f"{self.origin.name.lower()}, {took}{cut}"

    def _repr_html_(self) -> str:
        from etude.model.shown import timing_html

        return timing_html(self)

    def block(self, index: int) -> tuple[I64, I64]:
        """(start_ns, end_ns) of the index-th rank that is present."""
        b = int(self.block_of[index])
        return self.start_ns[b], self.end_ns[b]

    def of_rank(self, index: int) -> Timing:
        """The times of the index-th rank alone."""
        start, end = self.block(index)
        return replace(
            self,
            start_ns=(start,),
            end_ns=(end,),
            block_of=np.zeros(1, np.int32),
            clock_offset_ns=self.clock_offset_ns[index : index + 1],
        )

    def last_ends(self) -> I64:
        """When the last node of each rank present ends, on its own clock; UNKNOWN: no end is known."""
        ends = np.array([end.max(initial=UNKNOWN) for end in self.end_ns] or [UNKNOWN], np.int64)
        return ends[self.block_of]

    def span(self) -> tuple[int, int] | None:
        """First start and last end over all ranks, on the common clock; None if no time is known."""
        first, last = None, None
        for block in distinct_values(self.block_of).tolist():
            offsets = self.clock_offset_ns[self.block_of == block]
            start, end = self.start_ns[block], self.end_ns[block]
            start, end = start[start != UNKNOWN], end[end != UNKNOWN]
            if len(start):
                first = min(int(start.min()) + int(offsets.min()), first if first is not None else 2**63)
            if len(end):
                last = max(int(end.max()) + int(offsets.max()), last if last is not None else -(2**63))
        return None if first is None or last is None else (first, last)


def no_times(sizes: list[int]) -> Timing:
    """Timing of ranks with this many nodes, none of which has a known time."""
    unknown = {size: np.full(size, UNKNOWN, np.int64) for size in set(sizes)}
    blocks = list(unknown.values())
    number = {size: block for block, size in enumerate(unknown)}
    return Timing(
        origin=Origin.NONE,
        start_ns=tuple(blocks),
        end_ns=tuple(blocks),
        block_of=np.array([number[size] for size in sizes], np.int32),
        clock_offset_ns=np.zeros(len(sizes), np.int64),
    )


def measured(starts: list[I64], durations: list[I64]) -> Timing | None:
    """Timing from recorded starts and durations, one block per rank; None if nothing was recorded."""
    if not any((s != UNKNOWN).any() for s in starts):
        return None
    ends = [
        np.where((s == UNKNOWN) | (d == UNKNOWN), UNKNOWN, s + np.where(d == UNKNOWN, 0, d))
        for s, d in zip(starts, durations, strict=True)
    ]
    return Timing(
        origin=Origin.MEASURED,
        start_ns=tuple(starts),
        end_ns=tuple(ends),
        block_of=np.arange(len(starts), dtype=np.int32),
        clock_offset_ns=np.zeros(len(starts), np.int64),
    )
