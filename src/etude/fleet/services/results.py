"""What services on one device came to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.fleet.services.loop import Turns


def services_record(found: Turns) -> dict[str, Any]:
    """As `etude fleet --json` prints it."""
    late = found.end_ns > found.deadline_ns
    latency, wait = found.end_ns - found.arrival_ns, found.start_ns - found.arrival_ns
    whole = int(found.end_ns.max())
    rows = []
    for k, one in enumerate(found.services):
        mine = found.service == k
        rows.append({
            "name": one.name, "requests": int(mine.sum()), "missed": float(late[mine].mean()) if mine.any() else 0.0,
            "latency_s": spread(latency[mine]),
            "exits": np.bincount(found.exit[mine], minlength=one.exits).tolist(),
            "exit_s": {str(size): (found.costs[k][:, j] / 1e9).tolist() for j, size in enumerate(found.spec.sizes)},
        })  # fmt: skip
    depth = (found.exit + 1) / np.array([one.exits for one in found.services])[found.service]
    return {
        "duration_s": whole / 1e9, "policy": found.spec.policy, "requests": len(found.service),
        "missed": float(late.mean()), "latency_s": spread(latency), "wait_s": spread(wait),
        "depth": float(depth.mean()), "batch": len(found.service) / found.batches,
        "device_s": {"busy": found.busy_ns / 1e9, "idle": (whole - found.busy_ns) / 1e9, "there": whole / 1e9},
        "utilisation": found.busy_ns / whole, "services": rows,
    }  # fmt: skip


def spread(times_ns: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(times_ns):
        return None
    at = np.percentile(times_ns, [50, 95, 99]) / 1e9
    return {"mean": float(times_ns.mean()) / 1e9, "p50": float(at[0]), "p95": float(at[1]), "p99": float(at[2])}
