"""Results of placed workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.world.serve.devices.run import PlacementRun
from etude.world.serve.results import spread


def placed_summary(run: PlacementRun, place: str) -> dict[str, Any]:
    """The makespan is from the first start of a session to the last end; `fetch_s`, `load_s` and `run_s` are sums over
    devices."""
    sessions = run.sessions
    begin, end = np.array(sessions.begin_ns), np.zeros(len(sessions.begin_ns), np.int64)
    np.maximum.at(end, np.array(sessions.session_of), run.state.finish)
    latency = (end - begin) / 1e9
    makespan = (end.max() - begin.min()) / 1e9
    work = run.work.sum(axis=0)
    return {
        "place": place,
        "sessions": len(begin),
        "calls": len(run.work),
        "makespan_s": float(makespan),
        "p95_s": float(np.quantile(latency, 0.95)),
        "latency_s": spread(latency),
        "loads": run.loads,
        "fetch_s": float(work[0] / 1e9),
        "load_s": float(work[1] / 1e9),
        "run_s": float(work[2] / 1e9),
        "found_tokens": int(work[3]),
        "split": int((run.parts > 1).sum()),
    }


def beside(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with its makespan and P95 relative to the first, which is round robin."""
    first = found[0]
    return [
        {**one, **{f"{name}_over_roundrobin": one[f"{name}_s"] / first[f"{name}_s"] for name in ("makespan", "p95")}}
        for one in found
    ]
