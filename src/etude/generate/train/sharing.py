"""Gradients and weights between the copies of a stage: buckets, and the collectives of DDP, ZeRO and FSDP.

Two kinds of weights live in a stage, dense ones and experts; each kind has groups of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etude.generate.blocks.ops import Op, Phase, Stream, bytes_of, collective
from etude.generate.blocks.shard import Block
from etude.generate.plan import Plan
from etude.model.schema import Collective


@dataclass(frozen=True, slots=True)
class Copies:
    """Who holds the same weights: `shards` ranks with a part each (1: whole), and `replicas` such sets."""

    expert: bool
    shards: int
    replicas: int
    shard_group: str
    replica_group: str

    def padded(self, params: int) -> int:
        return -(-params // self.shards) * self.shards


def copies(plan: Plan, *, expert: bool) -> Copies:
    if expert:
        n = plan.expert_replicas
        return Copies(True, n, 1, "edp", "") if plan.zero else Copies(True, 1, n, "", "edp")
    n = plan.replicas
    if not plan.zero:
        return Copies(False, 1, n, "", "dp")
    if plan.dp_shard and plan.dp_shard < n:
        return Copies(False, plan.dp_shard, n // plan.dp_shard, "shard", "replica")
    return Copies(False, n, 1, "dp", "")


def kinds(plan: Plan, blocks: Sequence[Block], *, trained: bool = False) -> list[Copies]:
    """The kinds of weights that these blocks have and that are not alone; `trained`: of those that get gradients."""
    if plan.directives:  # these say what copies share
        return []
    found = [
        copies(plan, expert=e) for e in (False, True) if any(b.local_params(expert=e, trained=trained) for b in blocks)
    ]
    return [c for c in found if c.shards * c.replicas > 1]


def buckets(blocks: Sequence[Block], order: Sequence[int], limit: int, *, expert: bool) -> list[tuple[int, list[int]]]:
    """(parameters that are trained, positions in `order` of their blocks): blocks in turn up to the limit."""
    found: list[tuple[int, list[int]]] = []
    size = 0
    members: list[int] = []
    for position, number in enumerate(order):
        params = blocks[number].local_params(expert=expert, trained=True)
        if not params:
            continue
        size, members = size + params, [*members, position]
        if size >= limit:
            found.append((size, members))
            size, members = 0, []
    return [*found, (size, members)] if members else found


def gather(plan: Plan, group: Copies, params: int, phase: Phase = Phase.FORWARD) -> Op:
    """Whole weights from their shards."""
    full = bytes_of(group.padded(params), plan.dtype)
    return collective(
        Collective.ALL_GATHER,
        group.shard_group,
        group.shards,
        full,
        "weights",
        Stream.GATHER,
        phase=phase,
        dtype=plan.dtype,
    )


def reduce(plan: Plan, group: Copies, params: int) -> list[Op]:
    """Gradients summed over the copies: to each its shard, then over the replicas of the shard."""
    ops = []
    full = bytes_of(group.padded(params), plan.grad_dtype)
    if group.shards > 1:
        ops.append(
            collective(
                Collective.REDUCE_SCATTER,
                group.shard_group,
                group.shards,
                full,
                "gradients",
                Stream.REDUCE,
                phase=Phase.WEIGHT,
                dtype=plan.grad_dtype,
            )
        )
    if group.replicas > 1:
        ops.append(
            collective(
                Collective.ALL_REDUCE,
                group.replica_group,
                group.replicas,
                full // group.shards,
                "gradients",
                Stream.REDUCE,
                phase=Phase.WEIGHT,
                dtype=plan.grad_dtype,
            )
        )
    return ops


def owned(plan: Plan, blocks: Sequence[Block]) -> int:
    """Parameters that one rank's optimizer updates."""
    total = 0
    for expert in (False, True):
        params = sum(b.local_params(expert=expert, trained=True) for b in blocks)
        total += -(-params // copies(plan, expert=expert).shards)
    return total
