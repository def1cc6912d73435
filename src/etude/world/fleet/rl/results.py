"""Results of post-training: the record of `etude fleet --json`, and its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.world.fleet.rl.loop import EXPLORE, ROLLOUT, TRAIN
from etude.world.fleet.rl.run import PoolRollouts
from etude.world.fleet.rl.spec import BORROWED


def rl_record(ran: PoolRollouts) -> dict[str, Any]:
    """The record. `useful_s` and the parts of `lost_s` are means over available devices, and add up to `duration_s`."""
    loop, spec, seconds = ran.loop, ran.loop.priced.spec, ran.loop.end_ns / 1e9
    used, alone = loop.device_ns(), not loop.replicas_on(loop.train_group)
    only = loop.train_devices * seconds * 1e9 - loop.train_ns if alone else 0.0
    idle = used["idle"] + ran.left_over_ns + only
    useful = used["make"] - used["redone"] + used["train"]
    parts = {"useful": useful, "redone": used["redone"], "set_up": used["set_up"], "idle": idle}
    lent = sum(
        sum(one.used_ns[use] for use in ("make", "idle", "set_up")) for one in loop.replicas if one.group == BORROWED
    )
    there = ran.there_ns + lent
    part = {name: seconds * value / there if there else 0.0 for name, value in parts.items()}
    rolled = [one for one in loop.stretches if one.stage == ROLLOUT]
    explored = [one.end_ns - one.start_ns for one in loop.stretches if one.stage == EXPLORE]
    trained = [one for one in loop.stretches if one.stage == TRAIN]
    tokens = loop.done_steps
    updates = spec.steps * spec.tenants
    return {
        "duration_s": seconds,
        "useful_s": part["useful"],
        "useful_fraction": part["useful"] / seconds,
        "goodput_tokens_per_s": tokens / seconds,
        "interruptions": ran.taken,
        "lost_s": {"detect": 0.0, "restart": part["set_up"], "redo": part["redone"], "checkpoint": 0.0,
                   "degraded": 0.0, "idle": part["idle"]},
        "device_s": {name: value / 1e9 for name, value in parts.items()}
        | {"make": used["make"] / 1e9, "train": used["train"] / 1e9, "lent": lent / 1e9, "there": there / 1e9},
        "utilisation": part["useful"] / seconds,
        "updates": updates,
        "updates_per_h": updates / seconds * 3600,
        "step_s": seconds / spec.steps,
        "rollout_s": float(np.mean([one.end_ns - one.start_ns for one in rolled])) / 1e9,
        "rollout_times_s": [(one.end_ns - one.start_ns) / 1e9 for one in rolled if one.tenant == 0],
        "explore_s": float(np.mean(explored)) / 1e9 if explored else 0.0,
        "train_s": float(np.mean([one.end_ns - one.start_ns for one in trained])) / 1e9,
        "tenant_s": float(np.mean([tenant.end_ns for tenant in loop.tenants])) / 1e9,
        "samples": loop.samples_done,
        "tokens": tokens,
        "lost_tokens": loop.lost_steps,
        "tenants": spec.tenants,
        "staleness": max((one.lag for one in rolled), default=0),
        "sync_s": loop.priced.sync_ns / 1e9,
        "sync_bytes": loop.priced.sync_bytes,
        "receivers": loop.priced.receivers,
        "weights_bytes": loop.priced.weights_bytes,
        "devices": sum(replica.devices for replica in loop.replicas) + loop.train_devices * alone,
        "energy_j": None,
        "cost": ran.paid or None,
        **ran.beside,
        "jobs": [
            {"name": f"tenant {k}", "end_s": tenant.end_ns / 1e9, "steps": spec.steps}
            for k, tenant in enumerate(loop.tenants)
        ],
    }  # fmt: skip


def rl_tables(ran: PoolRollouts, record: dict[str, Any]) -> dict[str, pa.Table]:
    loop = ran.loop
    columns = list(zip(*loop.stretches, strict=True))
    tenant, step, stage, start, end, lag = columns
    time, made, waits, trains = (np.array(column) for column in zip(*loop.series, strict=True))
    return {
        "jobs": pa.Table.from_pylist(record["jobs"]),
        "stages": pa.table({
            "tenant": pa.array(tenant, pa.int64()), "step": pa.array(step, pa.int64()),
            "stage": pa.array(stage, pa.string()), "start_s": np.array(start) / 1e9, "end_s": np.array(end) / 1e9,
            "lag": pa.array(lag, pa.int64()),
        }),
        "states": pa.table({"time_s": time / 1e9, "made": made, "waiting": waits, "training": trains}),
    }  # fmt: skip
