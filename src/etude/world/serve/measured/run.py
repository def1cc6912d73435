"""MeasuredRun: a run of an engine as input of the loop, and its measured values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64
from etude.world.serve.engine import Engine
from etude.world.serve.requests import Requests
from etude.world.serve.steps import StepCost


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MeasuredRun:
    requests: Requests
    engine: Engine
    cost: StepCost
    measured: dict[str, float]
    """Means over requests, in seconds: `ttft_s`, `tpot_s`, `latency_s`."""
    since: str
    """Whether times count from the arrival of a request, or from when the engine took it in (`queued`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `serve`."""
    assumed: list[str] = field(default_factory=list)
    unstated: list[str] = field(default_factory=list)
    """Values that the files do not state, and what was taken instead."""


def means(begin_s: F64, first_s: F64, last_s: F64, output: NDArray[np.int64]) -> dict[str, float]:
    """Means over measured requests: the first token, each further one (if any), the whole answer."""
    more = output > 1
    return {
        "ttft_s": float((first_s - begin_s).mean()),
        "tpot_s": float(((last_s - first_s)[more] / (output - 1)[more]).mean()) if more.any() else float("nan"),
        "latency_s": float((last_s - begin_s).mean()),
    }
