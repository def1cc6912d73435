"""Requests measured by an engine or its benchmark client, and the same requests simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError
from etude.capture.ingest.requests import measured_requests
from etude.world.serve.results import request_times
from etude.world.serve.serving import Served

NAMES: Final = ("ttft_s", "tpot_s", "latency_s")


def bench_result(path: Path) -> dict[str, float]:
    """Means over requests, as the client or the engine counts them: `ttft_s`, `tpot_s`, `latency_s`. Values stated in
    the file take precedence."""
    found = measured_requests(path)
    means = {name: found.said.get(name, found.mean_s(name)) for name in NAMES}
    known = {name: value for name, value in means.items() if value is not None}
    if not known:
        raise FormatError("no times of its requests", path=path)
    return known


def beside_bench(measured: dict[str, float], served: Served) -> dict[str, Any]:
    """The record of `etude serve run FILE`."""
    times = request_times(served)
    predicted = {name: float(np.nanmean(times[name])) for name in NAMES if name in measured}
    return {
        "measured": {name: measured[name] for name in predicted},
        "predicted": predicted,
        "error": {name: predicted[name] / measured[name] - 1.0 for name in predicted},
        "assumed": ["times of the client and the server before the engine are not included"],
    }
