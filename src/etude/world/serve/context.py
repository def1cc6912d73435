"""Replicas whose ranks have parts of each sequence: of the tokens of a prompt, and of all keys and values.

A rank has one part of a prompt, and all others' keys pass by it: while it attends to those of one, the next arrive,
and only the first are there at once. Tokens out are on every rank, which attends to its part of their keys; what ranks
found is summed over them in every layer.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import F64
from etude.machine.system import System
from etude.make.generate.model import Model
from etude.world.serve.network import all_reduce_ns, level_of
from etude.world.serve.network import token_bytes as token_bytes_of
from etude.world.serve.steps import StepCost


def in_parts(cost: StepCost, parts: int) -> StepCost:
    """The cost on one of the ranks, without what these send: of a device's work, or its energy."""
    prompts, tokens = _attention(cost)
    fewer = np.array([np.interp(cost.keys / parts, cost.keys, row) for row in tokens])
    chain_ns = cost.chain_ns / np.array([parts, 1.0])
    return _with_attention(cost, prompts / parts, fewer)._replace(chain_ns=chain_ns, parts=np.array([float(parts)]))


def in_context(cost: StepCost, model: Model, system: System, tp: int, parts: int, token_bytes: float) -> StepCost:
    """The time of a pass. `token_bytes`: keys and values of a token on a rank, in all layers."""
    level, alone = level_of(system, tp * parts), in_parts(cost, parts)
    prompts, tokens = _attention(alone)
    part_bytes = token_bytes * (cost.chunk[:, None] + cost.past[None, :]) / parts
    passed_ns = (parts - 1) * (model.layers * level.latency_ns + part_bytes * 1e9 / level.bandwidth_bytes_per_s)
    ring = np.where(prompts > 0, prompts / parts + np.maximum(prompts * (parts - 1) / parts, passed_ns), 0.0)
    found_bytes = token_bytes_of(model, cost.decode) / tp
    summed = np.where(cost.decode > 0, model.layers * all_reduce_ns(level, parts, found_bytes), 0.0)
    return _with_attention(alone, ring, tokens + summed[:, None])


def _attention(cost: StepCost) -> tuple[F64, F64]:
    """Of prompts, by chunk and past, and of tokens out, by how many and their keys."""
    return cost.grid_ns[:, :, 0, 0], cost.grid_ns[0, 0]


def _with_attention(cost: StepCost, prompts: F64, tokens: F64) -> StepCost:
    return cost._replace(attention_ns=(prompts[:, :, None, None] + tokens[None, None, :, :]).ravel())
