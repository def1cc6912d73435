"""Results of experts as functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.world.fleet.contract import contract, flat
from etude.world.fleet.functions.loop import FunctionRequests
from etude.world.fleet.services.results import spread


def functions_record(found: FunctionRequests) -> dict[str, Any]:
    """The record that `etude fleet --json` prints. Useful and lost time are means over instances: computing, starting
    (`restart`), and kept without a call (`idle`). Byte seconds count an instance from its start to its end; `of_full`
    is relative to one full model that is always loaded, for all tenants together."""
    spec, pieces = found.spec, found.pieces
    seconds = found.duration_ns / 1e9
    copies = 1 if spec.shared else spec.tenants
    dense = pieces.dense_bytes * copies * seconds
    held_ns, time_ns, cold = found.held_ns(), np.array(found.times, np.int64), np.array(found.colds, bool)
    experts = float(held_ns.astype(np.float64) @ found.sizes) * pieces.expert_bytes / 1e9
    full = pieces.dense_bytes + pieces.layers * pieces.experts * pieces.expert_bytes
    # A call in the first `keep` may be cold only because nothing was loaded yet, however often its function is called.
    settled = time_ns > (spec.keep_ns or 0)
    calls, late = len(time_ns), int(settled.sum())
    started = int(cold.sum()) + (len(found.sizes) if spec.keep_ns is None else 0)
    held = float(held_ns.sum()) or 1.0
    latency, rows = found.end_ns - found.arrival_ns, []
    for k in range(spec.tenants):
        mine = found.tenant == k
        rows.append({"name": f"tenant {k}", "requests": int(mine.sum()), "latency_s": spread(latency[mine])})
    base = contract(
        seconds,
        seconds * found.busy_ns / held,
        flat(rows),
        lost={"restart": seconds * found.starting_ns / held},
        tokens=len(found.arrival_ns) * spec.output,
    )
    return base | {
        "kind": "functions", "requests": len(found.arrival_ns), "tenants": spec.tenants,
        "functions": len(found.sizes),
        "experts_per_function": spec.experts_per_function, "instances": started,
        "function_bytes": spec.experts_per_function * pieces.expert_bytes, "dense_bytes": pieces.dense_bytes,
        "full_bytes": full, "invocations": calls, "invocation_s": calls * spec.invoke_ns / 1e9,
        "cold": int(cold.sum()), "waited_s": found.waited_ns / 1e9,
        "after_keep": {"invocations": late, "cold": int(cold[settled].sum())},
        "resident_byte_s": {"dense": dense, "experts": experts, "all": dense + experts},
        "of_full": (dense + experts) / (full * seconds),
        "first_s": spread(found.first_ns - found.arrival_ns), "latency_s": spread(latency),
        "instance_s": {"busy": found.busy_ns / 1e9, "starting": found.starting_ns / 1e9,
                       "idle": (int(held_ns.sum()) - found.busy_ns - found.starting_ns) / 1e9,
                       "held": int(held_ns.sum()) / 1e9},
    }  # fmt: skip


def functions_tables(found: FunctionRequests, record: dict[str, Any]) -> dict[str, pa.Table]:
    """Tables of requests, of calls (`states`: time, and whether a cold start), and of tenants."""
    requests = pa.table({
        "tenant": found.tenant, "arrival_s": found.arrival_ns / 1e9, "first_s": found.first_ns / 1e9,
        "end_s": found.end_ns / 1e9, "latency_s": (found.end_ns - found.arrival_ns) / 1e9,
    })  # fmt: skip
    states = pa.table({"time_s": np.array(found.times, np.int64) / 1e9, "cold": np.array(found.colds, bool)})
    return {"requests": requests, "states": states, "jobs": pa.Table.from_pylist(record["jobs"])}
