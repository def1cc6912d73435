"""When tokens come, as every part of Etude counts it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def token_times(arrival: Any, first: Any, last: Any, tokens: Any) -> tuple[F64, F64]:
    """(ttft, tpot) of requests, in the unit of the three times: until the first token, and the mean of each further
    one. tpot is NaN of a request for one token."""
    pace = (last - first) / np.maximum(tokens - 1, 1)
    return (first - arrival).astype(np.float64), np.where(tokens > 1, pace, np.nan)
