"""Results of a stream of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etude.world.serve.images.serving import ServedImages
from etude.world.serve.requests import NO_DEADLINE
from etude.world.serve.results import spread


def image_summary(served: ServedImages, *, latency_limit_s: float = 0.0) -> dict[str, Any]:
    """A request meets its limit if it is done by its deadline, or otherwise within `latency_limit_s`, if given. Device
    seconds: `busy` with a task, `set_up`, and `idle`, including the other devices of a group whose text or pixels are
    on one device."""
    requests, tasks = served.requests, served.tasks
    latency = (served.finish_ns - requests.arrival_ns) / 1e9
    limit = np.where(requests.deadline_ns < NO_DEADLINE, requests.deadline_ns / 1e9, latency_limit_s or np.inf)
    kept = latency <= limit
    start, end, set_up, degree = (tasks[name].to_numpy() for name in ("start_ns", "end_ns", "set_up_ns", "degree"))
    steps = pc.equal(tasks["task"], "steps").to_numpy(zero_copy_only=False)
    users = np.where(steps, degree, 1)
    busy, setting = float(((end - start - set_up) * users).sum()) / 1e9, float((set_up * degree).sum()) / 1e9
    duration = float(served.finish_ns.max()) / 1e9
    sharing = pc.list_value_length(tasks["requests"]).to_numpy()
    taken = tasks["steps"].to_numpy() * sharing
    return {
        "requests": len(requests),
        "finished": int((served.finish_ns >= 0).sum()),
        "duration_s": duration,
        "latency_s": spread(latency),
        "within_limits": float(kept.mean()),
        "goodput_rps": float(kept.sum()) / duration,
        "throughput_rps": len(requests) / duration,
        "steps": int(taken.sum()),
        "mean_degree": float((taken * degree).sum() / max(taken.sum(), 1)),
        "set_ups": int((set_up > 0).sum()),
        "device_s": {
            "busy": busy,
            "set_up": setting,
            "idle": served.gpus * duration - busy - setting,
            "all": served.gpus * duration,
        },
    }


def image_tables(served: ServedImages) -> dict[str, pa.Table]:
    """`requests`: in order of arrival; `tasks`: what groups did, in order of their ends."""
    of, tasks = served.requests, served.tasks
    frames, height, width = of.sizes[of.size].T
    limited = of.deadline_ns < NO_DEADLINE
    requests = pa.table({
        "arrival_s": of.arrival_ns / 1e9, "frames": frames, "height": height, "width": width, "steps": of.steps,
        "deadline_s": pa.array(of.deadline_ns / 1e9, pa.float64(), mask=~limited), "end_s": served.finish_ns / 1e9,
        "latency_s": (served.finish_ns - of.arrival_ns) / 1e9,
    })  # fmt: skip
    seconds = {f"{name}_s": tasks[f"{name}_ns"].to_numpy() / 1e9 for name in ("start", "end", "set_up")}
    rest = {name: tasks[name] for name in ("requests", "task", "steps", "degree", "devices")}
    return {"requests": requests, "tasks": pa.table(seconds | rest)}
