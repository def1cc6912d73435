"""Memory of a rank over its step: weights, gradients, optimizer, activations. From the same blocks as the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from etude.generate.blocks.ops import bytes_of
from etude.generate.blocks.recompute import LAYER, NOTHING, is_layer, kept
from etude.generate.blocks.shard import Block
from etude.generate.plan import Plan
from etude.generate.schedules.pipeline import Action
from etude.generate.train.routing import fullest
from etude.generate.train.sharing import copies, owned
from etude.generate.train.stage import Layout, bytes_per_state

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes of one pipeline rank. `activations` is what is held after each action of its schedule, `working` what the
    action needs beside while it runs."""

    weights: int
    gradients: int
    optimizer: int
    activations: I64
    working: I64

    @property
    def static_bytes(self) -> int:
        return self.weights + self.gradients + self.optimizer

    @property
    def activation_bytes(self) -> int:
        return int(self.activations.max(initial=0))

    @property
    def peak_bytes(self) -> int:
        return self.static_bytes + int((self.activations + self.working).max(initial=0))

    def over_time(self) -> I64:
        """Bytes while each action runs."""
        return self.static_bytes + self.activations + self.working


def saved(block: Block, twice: frozenset[str], load: float = 1.0) -> int:
    """Bytes kept for the backward pass of a block; `load`: of the fullest experts."""
    if not block.goes_back:
        return 0
    if LAYER in twice and is_layer(block):
        return block.out_bytes  # as large as what comes in
    sizes = list(zip(block.ops, kept(block, twice), strict=True))
    routed = sum(size for op, size in sizes if op.load)
    return sum(size for op, size in sizes if not op.load) + ceil(routed * load)


def again(block: Block, twice: frozenset[str], load: float = 1.0) -> int:
    """Bytes that recomputation brings back while a block goes backward."""
    return saved(block, NOTHING, load) - saved(block, twice, load)


def memory_of(plan: Plan, layout: Layout, rank: int) -> Memory:
    held = layout.schedule.held[rank]
    blocks = [b for stage in held for b in layout.stages[stage]]
    weights, gradients = 0, 0
    for expert in (False, True):
        shards = copies(plan, expert=expert).shards
        params = sum(b.local_params(expert=expert) for b in blocks)
        largest = max((b.local_params(expert=expert) for b in blocks), default=0)
        part = -(-params // shards)
        trained = sum(b.local_params(expert=expert, trained=True) for b in blocks)
        most = max((b.local_params(expert=expert, trained=True) for b in blocks), default=0)
        # Sharded weights come back for the block at work and those ahead of it; without resharding all stay.
        weights += bytes_of(part if plan.zero == 3 else params, plan.dtype)
        whole = (plan.prefetch + 1) * largest if plan.reshard else params
        weights += bytes_of(min(whole, params), plan.dtype) if plan.zero == 3 and shards > 1 else 0
        gradients += bytes_of(-(-trained // shards) if plan.zero >= 2 else trained, plan.grad_dtype)
        gradients += bytes_of(most, plan.grad_dtype) if plan.zero >= 2 and shards > 1 else 0
    weights += 2 * _cast(plan, blocks)  # both layouts
    state = sum(owned(plan, layout.stages[s]) for s in held) * bytes_per_state(plan)
    return Memory(weights, gradients, state, *_activations(plan, layout, rank))


def _cast(plan: Plan, blocks: Sequence[Block]) -> int:
    """Weights that are held in 8 bits beside: all, or those of the blocks that ZeRO 3 has whole."""
    sizes = [b.cast_params for b in blocks]
    if plan.zero < 3 or not plan.reshard:
        return sum(sizes)
    return min((plan.prefetch + 1) * max(sizes, default=0), sum(sizes))


def _activations(plan: Plan, layout: Layout, rank: int) -> tuple[I64, I64]:
    schedule = layout.schedule
    rows, load = schedule.rows(rank), fullest(plan)
    action, stage = schedule.action[rows], schedule.stage[rows]
    held = np.zeros(schedule.stages, np.int64)
    beside = np.zeros((5, schedule.stages), np.int64)
    for s in schedule.held[rank]:
        blocks = layout.stages[s]
        held[s] = sum(saved(b, plan.twice, load) for b in blocks)
        beside[Action.FORWARD, s] = _temporary(blocks)
        back = max((again(b, plan.twice, load) for b in blocks), default=0)
        beside[Action.BACKWARD, s] = beside[Action.INPUT, s] = max(back, _temporary(blocks))
    change = np.where(action == Action.FORWARD, held[stage], 0)
    change -= np.where((action == Action.BACKWARD) | (action == Action.WEIGHT), held[stage], 0)
    after = np.cumsum(change)
    during = np.maximum(after, after - change)  # a backward holds what it is about to free
    return during, beside[action, stage]


def _temporary(blocks: Sequence[Block]) -> int:
    return max((op.temp_bytes for b in blocks for op in b.ops), default=0)
