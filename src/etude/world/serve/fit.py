"""fit_stack(tables, shapes, measured_ns): the factors of a stack that fit measured passes best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from etude.kernels.arrays import F64
from etude.world.serve.catalogue import PassTables
from etude.world.serve.pass_time import times_ns
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import PassContent

WIDEST: Final = 0.3
"""Errors beyond this have no more weight: log of predicted over measured."""
LEAST: Final = 0.002


def descend(
    start: dict[str, float], error: Callable[[dict[str, float]], float], *, rounds: int = 60
) -> dict[str, float]:
    """The values with the least error, one after another: each is multiplied and divided by a step that halves when
    nothing improves."""
    best, least, step = dict(start), error(start), 0.25
    for _ in range(rounds):
        before = least
        for name in best:
            for factor in (1.0 + step, 1.0 / (1.0 + step)):
                tried = {**best, name: best[name] * factor}
                found = error(tried)
                if found < least:
                    best, least = tried, found
        if least > before * (1.0 - 1e-4):
            step /= 2
            if step < LEAST:
                break
    return best


def fit_stack(
    tables: PassTables, shapes: Sequence[PassContent], measured_ns: F64, start: dict[str, float], **options: Any
) -> ServingStack:
    """The values named in `start`, starting from these; the others keep their defaults."""

    def error(figures: dict[str, float]) -> float:
        cost = tables.step_cost(ServingStack(**cast("dict[str, Any]", figures)), **options)
        off = np.abs(np.log(times_ns(cost, shapes) / measured_ns))
        return float(np.minimum(off, WIDEST).mean() + 0.1 * off.mean())

    return ServingStack(**cast("dict[str, Any]", descend(start, error)))
