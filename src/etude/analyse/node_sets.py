"""Nodes whose ranks all lie above all others: what few steps can show of a node, where they cannot of single ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Final

import numpy as np

from etude.analyse.slower_sets import Episode
from etude.kernels.arrays import F64, I64

__all__ = ["log_ways", "nodes_apart"]

FEWEST: Final = 4
"""Ranks of a node, and of the others, at least."""
SIDE: Final = 0.12
"""Part of the ranks of a side that may lie beyond the others."""
CHANCE: Final = 1e-3
"""Highest probability that ranks come in this order by chance, in one of the nodes."""


def nodes_apart(values: F64, ranks: I64, node: int, least: float) -> Iterator[Episode]:
    """Values are ranks x steps; at most one node of the job."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        level = np.nanmean(values, axis=1)
    known = np.isfinite(level)
    of, steps = ranks // node, values.shape[1]
    found = []
    for one in np.unique(of).tolist():
        inside, outside = level[known & (of == one)], level[known & (of != one)]
        if len(inside) < FEWEST or len(outside) < FEWEST:
            continue
        low = np.quantile(inside, SIDE, method="lower")
        high = np.quantile(outside, 1 - SIDE, method="higher")
        height = float(np.median(inside) - np.median(outside))
        ways = log_ways(len(inside) + len(outside), len(inside))
        if low - high > least / 2 and height > least and len(np.unique(of)) * np.exp(-ways) < CHANCE:
            found.append((one, height, ways))
    if len(found) == 1:
        one, height, ways = found[0]
        rows = tuple(np.flatnonzero(of == one).tolist())
        yield Episode(rows, "whole", 0, steps - 1, height, ways, steps=tuple(range(steps)))


def log_ways(count: int, chosen: int) -> float:
    """Logarithm of the number of ways to choose some of these."""
    at = np.arange(1, min(chosen, count - chosen) + 1)
    return float(np.log((count - at + 1) / at).sum())
