"""Measured runs of serving engines, simulated again by the loop: measured and predicted values.

replayed("measured/vllm_runs/RTX4090/Llama-3.1-8B", ops="measured/vllm_profiles/RTX4090/.../bf16")
replayed("measured/h200_serving", config="llama8b-chat-light-chunked", steps="recorded")
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.world.serve.measured.reference import reference_run
from etude.world.serve.measured.run import MeasuredRun
from etude.world.serve.measured.vllm import vllm_run
from etude.world.serve.results import request_times
from etude.world.serve.serving import serve

NAMES = ("ttft_s", "tpot_s", "latency_s")


def replayed(
    folder: str | PathLike[str], *, ops: Path | None = None, config: str = "", steps: str = ""
) -> dict[str, Any]:
    """`measured` and `predicted`: means over requests, in seconds."""
    return beside_run(measured_run(folder, ops=ops, config=config, steps=steps))


def measured_run(
    folder: str | PathLike[str], *, ops: Path | None = None, config: str = "", steps: str = ""
) -> MeasuredRun:
    """The run of a folder, as input of the loop."""
    place = Path(folder)
    if not place.is_dir():
        raise UsageError("there is no such folder", where=str(folder))
    if (place / "meta.json").is_file():
        if config or steps:
            raise UsageError("--config and --steps need a folder with configs_*.json", where=str(folder))
        return vllm_run(place, ops)
    if ops is not None:
        raise UsageError("--ops needs a run with meta.json", where=str(folder))
    return reference_run(place, config, steps or "catalogue")


def beside_run(run: MeasuredRun) -> dict[str, Any]:
    """The record of `etude serve --run FOLDER`: the requests of a run, served again."""
    found = serve(run.requests, run.engine, run.cost, **run.options)
    times = request_times(found, since=run.since)
    predicted = {name: float(np.nanmean(times[name])) for name in NAMES}
    return {
        "measured": run.measured,
        "predicted": predicted,
        "error": {name: predicted[name] / run.measured[name] - 1.0 for name in NAMES},
        "assumed": run.assumed,
    }
