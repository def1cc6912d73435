"""Results of a workflow: times of sessions, the sum of their calls and their critical path, costs and budgets."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import F64
from etude.world.serve.results import spread
from etude.world.serve.workflow.run import WorkflowRun

COUNTS: Final = ("found", "made", "passes", "preempted", "stolen")


def task_table(ran: WorkflowRun) -> pa.Table:
    """A row for each call."""
    ways = [call.task.ways[int(k)] for call, k in zip(ran.calls, ran.way, strict=True)]
    found = np.zeros(len(ran.calls), np.int64)
    for pool in ran.pools.values():
        found[pool.rows] = pool.state.request["hit"][: len(pool.rows)]
    return pa.table(
        {
            "session": [call.session for call in ran.calls],
            "task": [call.task.name for call in ran.calls],
            "turn": [call.turn for call in ran.calls],
            "tenant": [_tenant(ran, call.session) for call in ran.calls],
            "on": [way.model or way.tool for way in ways],
            "model": [bool(way.model) for way in ways],
            "ready_s": ran.ready_ns / 1e9,
            "begin_s": ran.begin_at_ns / 1e9,
            "end_s": ran.end_ns / 1e9,
            "prompt": [call.prompt if way.model else 0 for call, way in zip(ran.calls, ways, strict=True)],
            "output": [call.output for call in ran.calls],
            "cache_hit_tokens": found,
            "cost": [way.cost for way in ways],
            "label": [way.label for way in ways],
        }
    )


def _tenant(ran: WorkflowRun, session: int) -> str:
    names = list(ran.flow.tenants)
    return names[session % len(names)] if names else ""


def session_table(ran: WorkflowRun) -> pa.Table:
    """A row for each session. `sum_s` is that of the times of its calls, without waits for a place at an endpoint;
    `critical_path_s` the longest chain of them in the order of the data; `label` the lowest of its calls."""
    n = ran.flow.sessions
    took = (ran.end_ns - ran.begin_at_ns) / 1e9
    begin = np.array(ran.begin_ns) / 1e9
    total, path, end, cost, label = (np.zeros(n) for _ in range(5))
    label[:] = np.inf
    longest = np.zeros(len(ran.calls))
    for call in ran.calls:  # calls are in topological order
        k, s = call.number, call.session
        way = call.task.ways[int(ran.way[k])]
        longest[k] = took[k] + max((longest[other] for other in ran.needs[k]), default=0.0)
        total[s] += took[k]
        path[s] = max(path[s], longest[k])
        end[s] = max(end[s], ran.end_ns[k] / 1e9)
        cost[s] += way.cost
        label[s] = min(label[s], way.label)
    return pa.table(
        {
            "session": np.arange(n), "tenant": [_tenant(ran, s) for s in range(n)], "begin_s": begin,
            "end_s": end, "latency_s": end - begin, "sum_s": total,
            "critical_path_s": path, "cost": cost, "label": label,
        }
    )  # fmt: skip


def _over(name: str, values: F64, limit: float) -> F64:
    """Ratio of each session's value to its limit; for a label, the inverse."""
    return limit / np.maximum(values, 1e-12) if name == "label" else values / limit


def workflow_summary(ran: WorkflowRun) -> dict[str, Any]:
    """The record of `etude serve workflow --json`."""
    table, calls = session_table(ran), task_table(ran)
    column = {name: table[name].to_numpy() for name in table.column_names}
    over = {name: _over(name, column[name], limit) for name, limit in ran.flow.budget.items()}
    any_broken = np.zeros(len(column["cost"]), bool)
    for ratio in over.values():
        any_broken |= ratio > 1 + 1e-12
    models = {}
    for name, pool in ran.pools.items():
        counts = {name: int(pool.state.replica[name].sum()) for name in COUNTS}
        prompts = int(pool.state.request["prompt"][: len(pool.rows)].sum())
        models[name] = {
            "calls": len(pool.rows),
            "prompt_tokens": prompts,
            "output_tokens": counts["made"],
            "cache_hit_tokens": counts["found"],
            "passes": counts["passes"],
            "preemptions": counts["preempted"],
            "stolen": counts["stolen"],
            "kv_peak": float((pool.state.replica["peak"] / pool.state.replica["room"]).max()),
        }
    return {
        "workflow": ran.flow.name,
        "order": ran.order,
        "sessions": ran.flow.sessions,
        "calls": len(ran.calls),
        "model_calls": int(np.sum(calls["model"].to_numpy(zero_copy_only=False))),
        "duration_s": float(column["end_s"].max()),
        **{name: spread(column[name]) for name in ("latency_s", "sum_s", "critical_path_s")},
        "bound": float((column["sum_s"] / np.maximum(column["critical_path_s"], 1e-12)).mean()),
        "cost": float(column["cost"].mean()),
        "label": float(column["label"].mean()),
        "violations": int(any_broken.sum()),
        "broken": {name: int((ratio > 1 + 1e-12).sum()) for name, ratio in over.items()},
        "worst": {name: float(ratio.max()) for name, ratio in over.items()},
        "cache_hit_tokens": sum(one["cache_hit_tokens"] for one in models.values()),
        "models": models,
    }
