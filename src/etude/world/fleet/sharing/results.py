"""Results of jobs on a shared cluster: the record of `etude fleet --jobs --json`, and its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.world.fleet.sharing.gangs import UNKNOWN, Shared


def _spread(seconds: F64) -> dict[str, float] | None:
    if not len(seconds):
        return None
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99])
    return {"mean": float(seconds.mean()), "p50": float(p50), "p90": float(p90), "p99": float(p99),
            "max": float(seconds.max())}  # fmt: skip


def shared_record(shared: Shared, *, policy: str = "") -> dict[str, Any]:
    """The record. `useful_s` and the parts of `lost_s` are means over available devices, and add up to `duration_s`."""
    jobs, ended = shared.jobs, shared.end_ns != UNKNOWN
    first = int(jobs.arrival_ns.min())
    if not ended.any():
        raise UsageError("no job ended", where=shared.cluster.name, hint="use a longer horizon, or more devices")
    last = int(shared.end_ns[ended].max())
    if shared.stuck:
        last = max(last, shared.series[-1][0])
    seconds = (last - first) / 1e9
    there_s = float(shared.there_ns) / 1e9 or max(shared.cluster.devices, 1) * seconds
    device_s = [float(one.sum()) / 1e9 for one in (shared.service_ns, shared.switch_ns, shared.redo_ns)]
    useful, switched, redone = (seconds * one / there_s if there_s else 0.0 for one in device_s)
    jct = (shared.end_ns - jobs.arrival_ns)[ended] / 1e9
    wait = shared.waited_ns[ended] / 1e9
    known = ended & (jobs.recorded_wait_ns >= 0)
    slow = jct / np.maximum(jobs.work_ns[ended] / 1e9, 1e-9)
    paid = float(shared.cost.sum()) + shared.idle_cost
    missed = (shared.end_ns > jobs.deadline_ns)[ended]
    return {
        "duration_s": seconds,
        "useful_s": useful,
        "useful_fraction": useful / seconds,
        "goodput_tokens_per_s": None,
        "interruptions": int(shared.preemptions.sum()),
        "lost_s": {"detect": 0.0, "restart": switched, "redo": redone, "checkpoint": 0.0,
                   "degraded": 0.0, "idle": seconds - useful - switched - redone},
        "device_s": {"useful": device_s[0], "redone": device_s[2], "set_up": device_s[1],
                     "idle": there_s - sum(device_s), "there": there_s},
        "policy": policy,
        "devices": shared.cluster.devices,
        "nodes": len(shared.cluster),
        "jobs_done": int(ended.sum()),
        "jobs_refused": len(shared.refused),
        "jobs_stuck": shared.stuck,
        "cold_starts": int(shared.cold.sum()),
        "wait_s": _spread(wait),
        "waited_jobs": int((wait > 0).sum()),
        "recorded_wait_s": _spread(jobs.recorded_wait_ns[known] / 1e9),
        "jct_s": _spread(jct),
        "slowdown": _spread(slow),
        "fairness": float(slow.sum() ** 2 / (len(slow) * (slow**2).sum())),
        "deadlines_missed": int(missed.sum()),
        "utilisation": useful / seconds,
        "energy_j": None,
        "cost": paid or None,
        "cost_of_jobs": float(shared.cost.sum()) or None,
    }  # fmt: skip


def shared_tables(shared: Shared) -> dict[str, pa.Table]:
    jobs = shared.jobs

    def seconds(ns: NDArray[np.int64]) -> pa.Array:
        return pa.array(ns / 1e9, pa.float64(), mask=ns < 0)

    time, running, waiting, used = (np.array(column) for column in zip(*shared.series, strict=True))
    table = pa.table({
        "name": pa.array(jobs.name, pa.string()), "tenant": pa.array(jobs.tenant, pa.string()),
        "arrival_s": jobs.arrival_ns / 1e9, "start_s": seconds(shared.start_ns), "end_s": seconds(shared.end_ns),
        "wait_s": seconds(shared.waited_ns), "recorded_wait_s": seconds(jobs.recorded_wait_ns),
        "duration_s": jobs.work_ns / 1e9, "gpus": jobs.gpus, "gpu_milli": jobs.gpu_milli,
        "service_gpu_s": shared.service_ns / 1e9, "preemptions": shared.preemptions,
        "set_up_gpu_s": shared.switch_ns / 1e9, "redone_gpu_s": shared.redo_ns / 1e9, "cost": shared.cost,
    })  # fmt: skip
    states = pa.table({"time_s": time / 1e9, "running": running, "waiting": waiting, "devices": used})
    return {"jobs": table, "states": states}
