"""Etude's model of PyTorch's caching allocator against the allocator itself, asked for the same.

    python benchmarks/validate_allocator.py peaks/

`peaks/` is of `measure_peaks.py`: allocations and frees of programs on a GPU, from their start to the end of the third
step, and what was allocated and reserved at most. `known`: with the addresses at which the driver put the segments,
which decide between free blocks of one size; Etude's own are an approximation.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from etude.cost.allocator import AllocatorAction, AllocatorEvents, simulate_allocator

ACTIONS = {
    "alloc": AllocatorAction.ALLOC,
    "free_requested": AllocatorAction.FREE_REQUESTED,
    "free_completed": AllocatorAction.FREE_COMPLETED,
}


def recorded_events(columns: dict[str, np.ndarray]) -> AllocatorEvents:
    """What the allocator was asked for: blocks by their addresses."""
    action = np.array([ACTIONS.get(str(name), 0) for name in columns["actions"]], np.uint8)[columns["action"]]
    asked = action > 0
    return AllocatorEvents.of(
        action[asked], columns["address"][asked], columns["size_bytes"][asked], columns["stream"][asked]
    )


def segment_bytes(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Bytes that the allocator had reserved after each event that it was asked for."""
    sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    by_event = np.array([sign.get(str(name), 0) for name in columns["actions"]])[columns["action"]]
    reserved = np.cumsum(by_event * columns["size_bytes"])
    return reserved[np.array([str(name) in ACTIONS for name in columns["actions"]])[columns["action"]]]


class Row(NamedTuple):
    name: str
    events: int
    reserved_bytes: int
    allocated_bytes: int
    errors: tuple[float, float, float, float]
    """Of the peaks reserved and allocated, and of the same with known addresses."""
    differs: int | None
    """The first event after which another amount is reserved."""


def compared(file: Path) -> Row:
    measured = json.loads(file.with_name(file.name.replace(".events.npz", ".peaks.json")).read_text())
    columns = dict(np.load(file))
    events, segments = recorded_events(columns), columns["actions"][columns["action"]] == "segment_alloc"
    last = measured["after"]["step_3"]
    real = last["peak_reserved_bytes"], last["peak_allocated_bytes"]
    found = simulate_allocator(events)
    known = simulate_allocator(events, segment_addresses=columns["address"][segments])
    peaks = [(one.peak_reserved_bytes, one.peak_allocated_bytes) for one in (found, known)]
    errors = tuple(m / r - 1 for pair in peaks for m, r in zip(pair, real, strict=True))
    differs = np.flatnonzero(found.reserved_bytes != segment_bytes(columns))
    name = file.name.removesuffix(".events.npz")
    return Row(name, len(events), *real, errors, int(differs[0]) if len(differs) else None)


def main() -> int:
    rows = [compared(file) for file in sorted(Path(sys.argv[1]).glob("*.events.npz"))]
    print(
        f"{'program':24}{'events':>8}{'reserved':>12}{'model':>8}{'known':>8}{'allocated':>14}{'model':>9}{'known':>9}"
    )
    for row in rows:
        held, used = f"{row.reserved_bytes / 2**20:,.0f} MiB", f"{row.allocated_bytes / 2**20:,.1f} MiB"
        a, b, c, d = row.errors
        differs = "" if row.differs is None else f"  differs from event {row.differs:,}"
        print(f"{row.name:24}{row.events:8,}{held:>12}{a:+8.2%}{c:+8.2%}{used:>14}{b:+9.3%}{d:+9.3%}{differs}")
    for at, name in enumerate(("reserved", "allocated", "reserved, known addresses", "allocated, known addresses")):
        each = [abs(row.errors[at]) for row in rows]
        exact = f"{sum(e == 0 for e in each)} of {len(each)} to the byte"
        print(f"{name}: median {statistics.median(each):.2%}, worst {max(each):.2%}, {exact}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
