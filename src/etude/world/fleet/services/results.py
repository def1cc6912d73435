"""Results of services on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.world.fleet.contract import contract, flat
from etude.world.fleet.services.loop import ServiceTurns


def services_record(found: ServiceTurns) -> dict[str, Any]:
    """The record that `etude fleet --json` prints."""
    late = found.end_ns > found.deadline_ns
    latency, wait = found.end_ns - found.arrival_ns, found.start_ns - found.arrival_ns
    whole = int(found.end_ns.max())
    rows = []
    for k, one in enumerate(found.services):
        mine = found.service == k
        rows.append(
            {
                "name": one.name,
                "requests": int(mine.sum()),
                "missed": float(late[mine].mean()) if mine.any() else 0.0,
                "latency_s": spread(latency[mine]),
                "exits": np.bincount(found.exit[mine], minlength=one.exits).tolist(),
                "exit_s": {str(size): (found.costs[k][:, j] / 1e9).tolist() for j, size in enumerate(found.spec.sizes)},
            }
        )
    depth = (found.exit + 1) / np.array([one.exits for one in found.services])[found.service]
    return contract(whole / 1e9, found.busy_ns / 1e9, flat(rows)) | {
        "kind": "services", "policy": found.spec.policy, "requests": len(found.service),
        "missed": float(late.mean()), "latency_s": spread(latency), "wait_s": spread(wait),
        "depth": float(depth.mean()), "batch": len(found.service) / found.batches,
        "device_s": {"busy": found.busy_ns / 1e9, "idle": (whole - found.busy_ns) / 1e9, "there": whole / 1e9},
        "utilisation": found.busy_ns / whole, "services": rows,
    }  # fmt: skip


def services_tables(found: ServiceTurns, record: dict[str, Any]) -> dict[str, pa.Table]:
    names = pa.array([one.name for one in found.services], pa.string())
    requests = pa.table(
        {
            "service": names.take(pa.array(found.service)),
            **request_columns(found.arrival_ns, found.start_ns, found.end_ns),
            "deadline_s": found.deadline_ns / 1e9,
            "exit": found.exit,
        }
    )
    states = batches(found.start_ns, found.end_ns, found.service, names)
    return {"requests": requests, "states": states, "jobs": pa.Table.from_pylist(record["jobs"])}


def request_columns(arrival_ns: I64, start_ns: I64, end_ns: I64) -> dict[str, NDArray[np.float64]]:
    return {
        "arrival_s": arrival_ns / 1e9,
        "start_s": start_ns / 1e9,
        "end_s": end_ns / 1e9,
        "wait_s": (start_ns - arrival_ns) / 1e9,
        "latency_s": (end_ns - arrival_ns) / 1e9,
    }


def batches(start_ns: I64, end_ns: I64, of: I64, names: pa.Array) -> pa.Table:
    """A row for each batch: times, service or task, and number of requests."""
    key = np.stack([start_ns, of, end_ns])
    rows, many = np.unique(key, axis=1, return_counts=True)
    return pa.table(
        {"start_s": rows[0] / 1e9, "end_s": rows[2] / 1e9, "state": names.take(pa.array(rows[1])), "requests": many}
    )


def spread(times_ns: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(times_ns):
        return None
    at = np.percentile(times_ns, [50, 95, 99]) / 1e9
    return {"mean": float(times_ns.mean()) / 1e9, "p50": float(at[0]), "p95": float(at[1]), "p99": float(at[2])}
