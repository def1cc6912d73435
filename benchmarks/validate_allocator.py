"""Etude's model of PyTorch's caching allocator against the allocator itself, asked for the same.

    python benchmarks/validate_allocator.py peaks/

`peaks/` is of `measure_peaks.py`: allocations and frees of programs on a GPU, from their start to the end of the third
step, and what was allocated and reserved at most.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from etude.cost.allocator import AllocatorAction, AllocatorEvents, AllocatorTimeline, simulate_allocator

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


def compared(file: Path) -> tuple[list[str], list[float]]:
    """Cells of a row, and the errors of the peaks reserved and allocated."""
    measured = json.loads(file.with_name(file.name.replace(".events.npz", ".peaks.json")).read_text())
    columns = dict(np.load(file))
    found: AllocatorTimeline = simulate_allocator(recorded_events(columns))
    last = measured["after"]["step_3"]
    real = last["peak_reserved_bytes"], last["peak_allocated_bytes"]
    model = found.peak_reserved_bytes, found.peak_allocated_bytes
    errors = [m / r - 1 for m, r in zip(model, real, strict=True)]
    differs = np.flatnonzero(found.reserved_bytes != segment_bytes(columns))
    row = [file.name.removesuffix(".events.npz"), f"{len(found.reserved_bytes):,}"]
    row += [f"{real[0] / 2**20:,.0f}", f"{errors[0]:+.2%}", f"{real[1] / 2**20:,.1f}", f"{errors[1]:+.3%}"]
    return [*row, f"{differs[0]:,}" if len(differs) else "never"], errors


def main() -> int:
    files = sorted(Path(sys.argv[1]).glob("*.events.npz"))
    print(f"{'program':28}{'events':>9}{'reserved MiB':>14}{'model':>9}{'allocated MiB':>15}{'model':>9}  differs from")
    errors = []
    for file in files:
        row, found = compared(file)
        errors.append([abs(e) for e in found])
        print(f"{row[0]:28}{row[1]:>9}{row[2]:>14}{row[3]:>9}{row[4]:>15}{row[5]:>9}  {row[6]}")
    for name, each in zip(("reserved", "allocated"), zip(*errors, strict=True), strict=True):
        print(f"{name}: median {statistics.median(each):.2%}, worst {max(each):.2%} of {len(each)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
