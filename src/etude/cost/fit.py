"""Constants from measurements: a small search over positive parameters, kept near prior values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64


def fit(
    predict: Callable[[F64], F64],
    measured: F64,
    start: F64,
    spread: F64,
    *,
    noise: float = 0.1,
    outlier: float = np.inf,
) -> F64:
    """Positive parameters for which `predict` comes close to `measured`, by the mean of |log ratio|.

    A row that is off by more than the factor `outlier` counts as that and no more.

    `start` are the prior values and `spread` the factor by which each may differ: a parameter that the measurements do
    not determine stays where it started. `noise` is the expected scatter of a row: the larger it is, the more rows it
    takes to move a parameter. Nelder-Mead in logarithms; deterministic.
    """
    scale = np.log(spread)
    weight = noise / (2 * len(measured))

    def loss(z: F64) -> float:
        ratio = np.log(np.maximum(predict(start * np.exp(z * scale)), 1e-9) / measured)
        return float(np.mean(np.minimum(np.abs(ratio), np.log(outlier))) + weight * np.sum(z**2))

    z = np.zeros(len(start))
    for _ in range(3):  # a restart leaves the flat simplex that a first search ends in
        z = _nelder_mead(loss, z)
    return np.asarray(start * np.exp(z * scale))


def _nelder_mead(loss: Callable[[F64], float], start: F64, *, step: float = 0.5, rounds: int = 400) -> F64:
    points = [start, *(start + step * row for row in np.eye(len(start)))]
    values = [loss(p) for p in points]
    for _ in range(rounds):
        order = np.argsort(values, kind="stable")
        points, values = [points[i] for i in order], [values[i] for i in order]
        centre, worst = np.mean(points[:-1], axis=0), points[-1]
        if values[-1] - values[0] < 1e-6:
            break
        candidate, value = _tried(loss, centre, worst, 1.0)
        if value < values[0]:
            further, further_value = _tried(loss, centre, worst, 2.0)
            if further_value < value:
                candidate, value = further, further_value
        elif value >= values[-2]:
            candidate, value = _tried(loss, centre, worst, -0.5)
        if value < values[-1]:
            points[-1], values[-1] = candidate, value
        else:
            points = [points[0], *(points[0] + 0.5 * (p - points[0]) for p in points[1:])]
            values = [values[0], *(loss(p) for p in points[1:])]
    return points[int(np.argmin(values))]


def _tried(loss: Callable[[F64], float], centre: F64, worst: F64, factor: float) -> tuple[F64, float]:
    """A point on the line from the worst through the centre, and its loss."""
    point = centre + factor * (centre - worst)
    return point, loss(point)


def fold_of(keys: Sequence[str], folds: int) -> NDArray[np.int64]:
    """A fold for each row by the hash of its identity: the same on every machine, whatever the order."""
    return np.array([int(hashlib.sha256(k.encode()).hexdigest(), 16) % folds for k in keys], np.int64)
