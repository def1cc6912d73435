"""Lookup in the call tree of a trace."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64


def owners(parent: NDArray[Any], position: I64) -> I64:
    """For each node its own position, or that of its nearest ancestor that has one; -1 if there is none."""
    owner = position.copy()
    up = np.where(parent >= 0, parent, -1).astype(np.int64)
    while True:
        open_ = np.flatnonzero((owner < 0) & (up >= 0))
        if not len(open_):
            return owner
        owner[open_] = position[up[open_]]
        up[open_] = np.where(owner[open_] < 0, parent[up[open_]], -1)
