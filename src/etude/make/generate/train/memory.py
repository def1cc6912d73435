"""Memory of a rank over its step: weights, gradients, optimizer, activations; from the same blocks as the program.

A backward pass goes block by block and op by op from last to first: what an op kept is freed after it, and the
gradients of its weights are added. So a step with one micro-batch never holds all activations and all gradients at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from etude.cost.ops import width
from etude.kernels.arrays import I64
from etude.make.generate.blocks.ops import bytes_of
from etude.make.generate.blocks.recompute import NOTHING, kept
from etude.make.generate.blocks.shard import Block
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.pipeline import Action
from etude.make.generate.train.allocator import rounding
from etude.make.generate.train.optimizer import state_bytes
from etude.make.generate.train.sharing import copies
from etude.make.generate.train.stage import StageLayout


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes of one pipeline rank. For each action of its schedule, at its peak: kept `activations`, `working` memory in
    addition, and the gradients `present`."""

    weights: int
    gradients: int
    """All gradients, as at the update."""
    optimizer: int
    activations: I64
    working: I64
    present: I64
    rounding: tuple[float, float] = (1.0, 1.0)
    """Bytes of the allocator's segments over bytes of tensors: for weights, gradients and optimizer, and for
    activations."""

    @property
    def static_bytes(self) -> int:
        return self.weights + self.gradients + self.optimizer

    @property
    def activation_bytes(self) -> int:
        return int(self.activations.max(initial=0))

    @property
    def moving_bytes(self) -> int:
        """Peak of the memory that comes and goes with micro-batches."""
        return int((self.activations + self.working).max(initial=0))

    @property
    def peak_bytes(self) -> int:
        return max(self.static_bytes, int(self.over_time().max(initial=0)))

    @property
    def reserved_bytes(self) -> int:
        """Memory that PyTorch's allocator takes for the peak, with its blocks and segments rounded up."""
        total = self.over_time()
        at = int(np.argmax(total)) if len(total) else 0
        moving = int((self.activations + self.working)[at]) if len(total) else 0
        fixed = self.peak_bytes - moving
        return ceil(fixed * self.rounding[0]) + ceil(moving * self.rounding[1])

    def over_time(self) -> I64:
        """Bytes while each action runs."""
        return self.weights + self.optimizer + self.present + self.activations + self.working


class StageMemory(NamedTuple):
    """Memory of a stage while it works on a micro-batch, at the peak of each pass: (kept bytes, working bytes,
    gradients of its weights)."""

    kept: int
    """Bytes kept between the passes."""
    gradients: int
    """Bytes of gradients after the first backward pass."""
    forward: tuple[int, int, int]
    first: tuple[int, int, int]
    """The backward pass that creates the gradients."""
    later: tuple[int, int, int]
    """A backward pass that adds to them."""


class _BlockSizes(NamedTuple):
    """Bytes of each op of a block."""

    kept: I64
    full: I64
    """Kept without recomputation: present while the block runs backward."""
    gradients: I64
    forward: I64
    """Additional bytes while the op runs."""
    backward: I64
    """Additional bytes in its backward pass, with the gradients of its inputs and outputs."""
    added: I64
    """Additional bytes where gradients are summed: those of its weights before they are added."""


def saved(block: Block, twice: frozenset[str], load: float = 1.0) -> I64:
    """Bytes that each op of a block keeps for the backward pass; `load`: load of the fullest experts."""
    if not block.goes_back:
        return np.zeros(len(block.ops), np.int64)
    sizes = np.array(kept(block, twice), np.int64)
    routed = np.array([op.load for op in block.ops], np.bool_)
    return np.where(routed, np.ceil(sizes * load), sizes).astype(np.int64)


def _sizes(plan: Plan, block: Block, load: float) -> _BlockSizes:
    parts = [copies(plan, expert=e).shards if plan.zero >= 2 else 1 for e in (False, True)]
    each = [0 if op.frozen else op.local_params / parts[op.expert] for op in block.ops]
    full = saved(block, NOTHING, load)
    beside = np.array([op.back_bytes or op.temp_bytes for op in block.ops], np.int64)
    alone = plan.zero < 2  # sharded gradients have a buffer of their own
    added = [0 if op.frozen or not alone else bytes_of(op.local_params, plan.dtype) for op in block.ops]
    # The output of an op is what the next op that keeps anything has kept; its gradient is as large.
    there = np.append(np.flatnonzero(full), len(full))
    following = np.append(full, 0)[there[np.searchsorted(there, np.arange(len(full)), side="right")]]
    return _BlockSizes(
        kept=saved(block, plan.twice, load),
        full=full,
        gradients=np.ceil(np.array(each) * width(plan.grad_dtype)).astype(np.int64),
        forward=np.array([op.temp_bytes for op in block.ops], np.int64),
        backward=beside + block.out_bytes + full + following,
        added=np.array(added, np.int64),
    )


def moments(plan: Plan, blocks: Sequence[Block], load: float) -> StageMemory:
    made = {key: _sizes(plan, b, load) for key, b in _distinct(blocks).items()}
    sizes = [made[id(b.ops)] for b in blocks]
    keeps, makes = [int(s.kept.sum()) for s in sizes], [int(s.gradients.sum()) for s in sizes]
    total = sum(makes)
    forward, first, later = [(0, 0, 0)], [(0, 0, 0)], [(0, 0, 0)]
    before, behind = 0, total
    for block, size, keep, make in zip(blocks, sizes, keeps, makes, strict=True):
        behind -= make
        forward.append(_fullest(before + np.cumsum(size.kept), size.forward, 0 * size.kept))
        if block.goes_back:
            held, own = before + np.cumsum(size.full), np.cumsum(size.gradients[::-1])[::-1]
            first.append(_fullest(held, size.backward, behind + own))
            later.append(_fullest(held, size.backward + size.added, np.full(len(held), total)))
        before += keep
    return StageMemory(sum(keeps), total, max(forward, key=sum), max(first, key=sum), max(later, key=sum))


def _fullest(held: I64, beside: I64, gradients: I64) -> tuple[int, int, int]:
    if not len(held):
        return 0, 0, 0
    at = int(np.argmax(held + beside + gradients))
    return int(held[at]), int(beside[at]), int(gradients[at])


def memory_of(plan: Plan, layout: StageLayout, rank: int, alike: dict[Any, StageMemory] | None = None) -> Memory:
    """Memory of a pipeline rank; `alike` caches the moments of stages."""
    fixed, buffer = _static(plan, layout, rank)
    blocks = [b for stage in layout.schedule.held[rank] for b in layout.stages[stage]]
    return Memory(*fixed, *_over_time(plan, layout, rank, buffer, alike), rounding=_rounding(plan, blocks))


def static_of(plan: Plan, layout: StageLayout, rank: int) -> Memory:
    """Memory without any action: what is always present."""
    none = np.zeros(0, np.int64)
    return Memory(*_static(plan, layout, rank)[0], none, none, none)


def _static(plan: Plan, layout: StageLayout, rank: int) -> tuple[tuple[int, int, int], int]:
    """(Weights, gradients, optimizer), and the part of the gradients that is the buffer of a block before ZeRO shards
    it."""
    held = layout.schedule.held[rank]
    blocks = [b for stage in held for b in layout.stages[stage]]
    weights, gradients, buffer = 0, 0, 0
    distinct = _distinct(blocks)
    for expert in (False, True):
        shards = copies(plan, expert=expert).shards
        held_by = {key: b.local_params(expert=expert) for key, b in distinct.items()}
        trained_by = {key: b.local_params(expert=expert, trained=True) for key, b in distinct.items()}
        params, trained = (sum(by[id(b.ops)] for b in blocks) for by in (held_by, trained_by))
        largest, most = (max(by.values(), default=0) for by in (held_by, trained_by))
        part = -(-params // shards)
        # Sharded weights are whole for the running block and those prefetched; without resharding all stay whole.
        weights += bytes_of(part if plan.zero == 3 else params, plan.dtype)
        whole = (plan.prefetch + 1) * largest if plan.reshard else params
        weights += bytes_of(min(whole, params), plan.dtype) if plan.zero == 3 and shards > 1 else 0
        gradients += bytes_of(-(-trained // shards) if plan.zero >= 2 else trained, plan.grad_dtype)
        buffer += bytes_of(most, plan.grad_dtype) if plan.zero >= 2 and shards > 1 else 0
    cast = _cast(plan, blocks)
    weights += 2 * (bytes_of(cast, plan.product_dtype) + ceil(cast * plan.weight_scale_bytes))  # both layouts
    return (weights, gradients + buffer, state_bytes(plan, [layout.stages[s] for s in held])), buffer


def _rounding(plan: Plan, blocks: Sequence[Block]) -> tuple[float, float]:
    """Rounding factors of weights, each op's as one tensor, and of what each op keeps."""
    if not blocks:
        return 1.0, 1.0
    alike = _distinct(blocks)
    weights = {key: np.array([bytes_of(op.local_params, plan.dtype) for op in b.ops]) for key, b in alike.items()}
    keeps = {key: saved(b, plan.twice) for key, b in alike.items()}
    held, kept_sizes = (np.concatenate([sizes[id(b.ops)] for b in blocks]) for sizes in (weights, keeps))
    return rounding(held[held > 0]), rounding(kept_sizes[kept_sizes > 0])


def _distinct(blocks: Sequence[Block]) -> dict[int, Block]:
    """One block of each kind: equal layers share their ops."""
    return {id(b.ops): b for b in blocks}


def _cast(plan: Plan, blocks: Sequence[Block]) -> int:
    """Number of weights that have an 8- or 4-bit copy: all, or those of the blocks that ZeRO 3 has whole."""
    sizes = [b.cast_params for b in blocks]
    if plan.zero < 3 or not plan.reshard:
        return sum(sizes)
    return min((plan.prefetch + 1) * max(sizes, default=0), sum(sizes))


def _over_time(
    plan: Plan, layout: StageLayout, rank: int, buffer: int, alike: dict[Any, StageMemory] | None
) -> tuple[I64, I64, I64]:
    """Activations, working memory and gradients of each action. `buffer`: gradients of a block before ZeRO shards
    them."""
    schedule, load = layout.schedule, layout.load(rank)
    rows = schedule.rows(rank)
    action, stage = schedule.action[rows], schedule.stage[rows]
    known: dict[Any, StageMemory] = {} if alike is None else alike
    of = {}
    for s in schedule.held[rank]:
        key = load, *(id(b.ops) for b in layout.stages[s])
        if key not in known:
            known[key] = moments(plan, layout.stages[s], load)
        of[s] = known[key]
    table = np.zeros((3, len(Action), schedule.stages, 3), np.int64)  # gradients (no, first, later); action; stage
    for s, m in of.items():
        table[:, Action.FORWARD, s] = m.forward
        for action_of, passed in ((Action.BACKWARD, True), (Action.WEIGHT, False)):
            for turn, (held, beside, new) in ((1, m.first), (2, m.later)):
                table[turn, action_of, s] = held, (beside if passed else 0) + buffer, new
        # A backward pass of inputs alone frees nothing.
        table[:, Action.INPUT, s] = m.kept, max(sum(m.later[:2]) - m.kept, 0), 0
    done = (action == Action.BACKWARD) | (action == Action.WEIGHT)
    first = np.zeros(len(action), np.bool_)
    first[[np.flatnonzero(done & (stage == s))[0] for s in of if (done & (stage == s)).any()]] = True
    kept, whole = np.zeros((2, schedule.stages), np.int64)
    for s, m in of.items():
        kept[s], whole[s] = m.kept, m.gradients
    change = np.where(action == Action.FORWARD, kept[stage], 0) - np.where(done, kept[stage], 0)
    others = np.cumsum(change) - np.where(action == Action.FORWARD, kept[stage], 0)
    others -= np.where(action == Action.INPUT, kept[stage], 0)
    made = np.cumsum(np.where(first, whole[stage], 0)) - np.where(done, whole[stage], 0)
    if plan.keep_grads:
        made = np.full(len(action), int(whole.sum())) - np.where(done, whole[stage], 0)
    when = np.where(done, np.where(first & (not plan.keep_grads), 1, 2), 0)
    found = table[when, action, stage]
    return others + found[:, 0], found[:, 1], made + found[:, 2]
