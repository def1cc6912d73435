"""What the allocations of a profiler's trace were for, what was alive at the peak, and what grows from step to step.

weights       there before the recording began, or kept from a forward pass to the end
gradients     allocated in a backward pass, alive after it
optimizer     allocated in a step of the optimizer, alive after it
activations   allocated in a forward pass, alive in the backward pass
workspaces    released in the phase that allocated them
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.drifting import FEWEST_STEPS, WARM, growth
from etude.analyse.grouping import table
from etude.kernels.arrays import F64, I64

__all__ = ["KINDS", "allocation_owners", "memory_growth", "step_ends"]

KINDS: Final = ("weights", "gradients", "optimizer", "activations", "workspaces")


def allocation_owners(found: pa.Table) -> pa.Table:
    """What was alive at the peak of each device and what is at the end: device, kind, owner (module or operator),
    count, size_bytes at the peak, last_bytes at the end; the most first. `found` is a table of allocations with the
    step, phase, operator and module of each."""
    rows: list[dict[str, Any]] = []
    devices = np.array(found["device"].to_pylist(), object)
    for device in dict.fromkeys(devices.tolist()):
        mine = found.filter(pa.array(devices == device))
        level = np.asarray(mine["allocated_bytes"].fill_null(0).to_numpy(), np.int64)
        size = np.asarray(mine["size_bytes"].fill_null(0).to_numpy(), np.int64)
        released = _released(np.asarray(mine["address"].fill_null(0).to_numpy(), np.int64), size)
        kind = _kinds(mine, size, released)
        modules, operators = mine["module"].to_pylist(), mine["operator"].to_pylist()
        top = int(level.argmax())
        made = np.flatnonzero(size > 0)
        at_peak = (made <= top) & (released[made] > top)
        at_end = released[made] == len(size)
        sums: dict[tuple[str, str], list[int]] = {}
        known = [0, 0]
        for row, peak, last in zip(made.tolist(), at_peak.tolist(), at_end.tolist(), strict=True):
            if peak or last:
                entry = sums.setdefault((kind[row], modules[row] or operators[row]), [0, 0, 0])
                entry[0] += peak
                entry[1] += peak * int(size[row])
                entry[2] += last * int(size[row])
                known[0] += peak * int(size[row])
                known[1] += last * int(size[row])
        before = [int(level[top]) - known[0], int(level[-1]) - known[1]]
        if max(before) > 0:
            sums["weights", "before the recording"] = [0, max(before[0], 0), max(before[1], 0)]
        for (what, owner), (count, peak_bytes, last_bytes) in sums.items():
            key = {"device": device, "kind": what, "owner": owner}
            rows.append(key | {"count": count, "size_bytes": peak_bytes, "last_bytes": last_bytes})
    rows.sort(key=lambda row: (row["device"], -row["size_bytes"], -row["last_bytes"], row["kind"], row["owner"]))
    kinds = {"device": pa.string(), "kind": pa.string(), "owner": pa.string()}
    return table(rows, kinds | dict.fromkeys(("count", "size_bytes", "last_bytes"), pa.int64()))


def _released(address: I64, size: I64) -> I64:
    """Row of the release of each allocation; the number of rows if it is never released."""
    order = np.lexsort((np.arange(len(address)), address))
    follows = np.full(len(address), len(address))
    next_one = order[1:]
    good = (address[next_one] == address[order[:-1]]) & (size[next_one] < 0)
    follows[order[:-1][good]] = next_one[good]
    return follows


def _kinds(found: pa.Table, size: I64, released: I64) -> list[str]:
    phase = np.array([*found["phase"].to_pylist(), "never"], object)
    step = np.append(np.asarray(found["step"].to_numpy(), np.int64), -2)
    mine, other = phase[:-1], phase[released]
    later = (step[released] != step[:-1]) | (released == len(size))
    kind = np.full(len(size), "workspaces", object)
    kind[(mine == "forward") & (other == "backward")] = "activations"
    kind[(mine == "forward") & later & (other != "backward")] = "weights"
    kind[(mine == "backward") & (later | (other != "backward"))] = "gradients"
    kind[(mine == "optimizer") & (later | (other != "optimizer"))] = "optimizer"
    return list(kind)


def step_ends(found: pa.Table) -> tuple[list[str], I64, F64]:
    """(devices, steps, bytes allocated at the end of each step, devices x steps)."""
    step = np.asarray(found["step"].to_numpy(), np.int64)
    steps = np.unique(step[step >= 0])
    devices = np.array(found["device"].to_pylist(), object)
    names = list(dict.fromkeys(devices.tolist()))
    held = np.full((len(names), len(steps)), np.nan)
    time = np.asarray(found["time_ns"].to_numpy(), np.int64)
    if not len(steps):
        return names, steps, held
    last = np.array([int(time[step == one].max()) for one in steps.tolist()])
    for row, name in enumerate(names):
        mine = np.flatnonzero(devices == name)
        level = np.asarray(found["allocated_bytes"].fill_null(0).to_numpy(), np.int64)[mine]
        at = np.searchsorted(time[mine], last, "right") - 1
        held[row] = np.where(at >= 0, level[np.maximum(at, 0)], np.nan)
    return names, steps, held


def memory_growth(found: pa.Table, capacity: dict[str, int]) -> pa.Table:
    """How memory grows from step to step, one row per device: steps, first_bytes and last_bytes (at the ends of the
    first step that counts and of the last), bytes_per_step and its 95% interval (low, high), leaks (true, false; null
    if there are fewer than 12 steps), capacity_bytes, steps_left until it is full, and what grew most."""
    devices, steps, held = step_ends(found)
    rows = []
    for name, values in zip(devices, held, strict=True):
        grown = growth(values) if len(steps) >= FEWEST_STEPS else None
        late = values[WARM:] if len(values) > WARM else values
        size = capacity.get(name)
        leaks = None if grown is None else grown.leaks
        left = None
        if grown is not None and grown.leaks and size is not None:
            left = max(int((size - values[-1]) / grown.slope), 0)
        rows.append(
            {
                "device": name,
                "steps": len(steps),
                "first_bytes": int(late[0]) if len(late) else None,
                "last_bytes": int(late[-1]) if len(late) else None,
                "bytes_per_step": grown.slope if grown else None,
                "low_bytes": grown.slope - 1.96 * grown.error if grown else None,
                "high_bytes": grown.slope + 1.96 * grown.error if grown else None,
                "leaks": leaks,
                "capacity_bytes": size,
                "steps_left": left,
                "grows": _grows(found, name, steps) if leaks else None,
            }
        )
    kinds: dict[str, Any] = {"device": pa.string(), "steps": pa.int64(), "first_bytes": pa.int64()}
    kinds |= {"last_bytes": pa.int64(), "bytes_per_step": pa.float64(), "low_bytes": pa.float64()}
    kinds |= {"high_bytes": pa.float64(), "leaks": pa.bool_(), "capacity_bytes": pa.int64(), "steps_left": pa.int64()}
    return table(rows, kinds | {"grows": pa.string()})


def _grows(found: pa.Table, device: str, steps: I64) -> str:
    """Owner of most bytes that were allocated after the first steps and are there at the end."""
    mine = found.filter(pa.array(np.array(found["device"].to_pylist(), object) == device))
    size = np.asarray(mine["size_bytes"].fill_null(0).to_numpy(), np.int64)
    released = _released(np.asarray(mine["address"].fill_null(0).to_numpy(), np.int64), size)
    late = np.asarray(mine["step"].to_numpy(), np.int64) >= steps[min(WARM, len(steps) - 1)]
    sums: dict[str, int] = {}
    modules, operators = mine["module"].to_pylist(), mine["operator"].to_pylist()
    for row in np.flatnonzero((size > 0) & (released == len(size)) & late).tolist():
        owner = modules[row] or operators[row]
        sums[owner] = sums.get(owner, 0) + int(size[row])
    return max(sums, key=lambda owner: sums[owner], default="")
