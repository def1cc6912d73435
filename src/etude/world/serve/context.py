"""Replicas whose ranks have parts of each sequence: of the tokens of a prompt, and of all keys and values.

A rank has one part of a prompt, and all others' keys pass by it: while it attends to those of one, the next arrive,
and only the first are there at once. Tokens out are on every rank, which attends to its part of their keys; what ranks
found is summed over them in every layer.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from etude.cost.ops import DTYPE_BYTES
from etude.kernels.arrays import F64
from etude.machine.system import Level, System
from etude.make.generate.model import Model
from etude.world.serve.network import all_reduce_ns
from etude.world.serve.steps import StepCost


def in_parts(cost: StepCost, parts: int) -> StepCost:
    """The cost on one of the ranks, without what these send: of a device's work, or its energy."""
    prompts, tokens = _apart(cost)
    fewer = np.array([np.interp(cost.keys / parts, cost.keys, row) for row in tokens])
    return _with(cost, prompts / parts, fewer, parts)


def in_context(cost: StepCost, model: Model, system: System, tp: int, parts: int, token_bytes: float) -> StepCost:
    """The time of a pass. `token_bytes`: keys and values of a token on a rank, in all layers."""
    level, alone = level_of(system, tp * parts), in_parts(cost, parts)
    prompts, tokens = _apart(alone)
    passed_ns = _passed_ns(level, model, parts, token_bytes * (cost.chunk[:, None] + cost.past[None, :]) / parts)
    first, later = prompts / parts, prompts * (parts - 1) / parts
    ring = np.where(prompts > 0, first + np.maximum(later, passed_ns), 0.0)
    found_bytes = cost.decode * model.hidden / tp * DTYPE_BYTES["bf16"]
    summed = np.where(cost.decode > 0, model.layers * all_reduce_ns(level, parts, found_bytes), 0.0)
    return _with(alone, ring, tokens + summed[:, None], parts)


def level_of(system: System, ranks: int) -> Level:
    """The innermost level that holds this many ranks."""
    held = accumulate((level.size for level in system.levels), mul)
    return next((one for one, size in zip(system.levels, held, strict=True) if size >= ranks), system.levels[-1])


def _passed_ns(level: Level, model: Model, parts: int, part_bytes: Any) -> Any:
    """Until the keys of all others have passed by, in each layer one part after another."""
    return (parts - 1) * (model.layers * level.latency_ns + part_bytes * 1e9 / level.bandwidth_bytes_per_s)


def _apart(cost: StepCost) -> tuple[F64, F64]:
    """Attention of prompts, and of tokens out."""
    return cost.grid_ns[:, :, 0, 0], cost.grid_ns[0, 0]


def _with(cost: StepCost, prompts: F64, tokens: F64, parts: int) -> StepCost:
    grid = prompts[:, :, None, None] + tokens[None, None, :, :]
    chain_ns = np.array([cost.chain_ns[0] / (parts if cost.parts[0] == 1.0 else 1.0), cost.chain_ns[1]])
    return cost._replace(attention_ns=grid.ravel(), chain_ns=chain_ns, parts=np.array([float(parts)]))
