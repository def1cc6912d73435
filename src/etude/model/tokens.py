"""Token latencies, as every part of Etude counts them."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.kernels.arrays import F64


def token_times(arrival: Any, first: Any, last: Any, tokens: Any) -> tuple[F64, F64]:
    """(ttft, tpot) of requests, in the unit of the three times: time to the first token, and mean time of each further
    one. tpot is NaN for a request of one token."""
    pace = (last - first) / np.maximum(tokens - 1, 1)
    return (first - arrival).astype(np.float64), np.where(tokens > 1, pace, np.nan)
