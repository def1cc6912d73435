"""Step times that vary, for tests and benchmarks of what knows noise."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def noise(rng: np.random.Generator, count: int, kind: str) -> F64:
    """Step times around 1."""
    if kind == "normal":
        return rng.normal(1, 0.02, count)
    if kind == "skewed":
        return 1 + rng.exponential(0.02, count)
    if kind == "hiccups":
        return rng.normal(1, 0.01, count) * np.where(rng.random(count) < 0.1, 3.0, 1.0)
    found, level = np.empty(count), rng.normal(0, 0.02)  # neighbours are alike: correlation 0.5
    for i in range(count):
        level = 0.5 * level + rng.normal(0, 0.02 * np.sqrt(0.75))
        found[i] = 1 + level
    return found
