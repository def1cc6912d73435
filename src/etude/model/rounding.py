"""Rounds numbers so that they show magnitudes but no shapes: no power of two is among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def on_grid(values: NDArray[Any], per_octave: int) -> NDArray[np.int64]:
    """Numbers rounded to the nearest of `per_octave` values per octave, which avoid powers of two; 0 stays."""
    with np.errstate(divide="ignore"):
        step = np.floor(np.log2(np.maximum(values, 1e-9)) * per_octave) + 0.5
    return np.where(values > 0, np.maximum(np.rint(np.exp2(step / per_octave)), 1), 0).astype(np.int64)
