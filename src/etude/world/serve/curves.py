"""Curves of step costs, for loops that do not simulate passes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.world.serve.pass_time import times_ns
from etude.world.serve.steps import PassContent, StepCost


def decode_curve(cost: StepCost, most: int, context: int) -> NDArray[np.float64]:
    """Time in ns of a pass in which k sequences get one token each, with `context` keys each: row k is for k sequences,
    row 0 is 0."""
    shapes = [PassContent(0, 0.0, k, k * context, k, context) for k in range(1, most + 1)]
    return np.concatenate([[0.0], times_ns(cost, shapes)])


def slowed(cost: StepCost, factor: float) -> StepCost:
    """Step cost of a device with only part of its resources: kernels take `factor` times as long, the host does not."""
    return cost._replace(
        layers_ns=cost.layers_ns * factor,
        head_ns=cost.head_ns * factor,
        attention_ns=cost.attention_ns * factor,
        chain_ns=cost.chain_ns * np.array([factor, 1.0]),
    )
