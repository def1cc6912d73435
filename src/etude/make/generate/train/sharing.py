"""Exchange of gradients and weights between the copies of a stage: buckets, and the collectives of DDP, ZeRO and FSDP.

A stage has two kinds of weights, dense ones and experts; each kind has its own groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etude.make.generate.blocks.ops import Op, Phase, Stream, bytes_of, collective
from etude.make.generate.blocks.shard import Block
from etude.make.generate.plan import Plan
from etude.model.schema import Collective


@dataclass(frozen=True, slots=True)
class WeightCopies:
    """Ranks with the same weights: `shards` ranks with a part each (1: whole), and `replicas` such sets."""

    expert: bool
    shards: int
    replicas: int
    shard_group: str
    replica_group: str

    def padded(self, params: int) -> int:
        return -(-params // self.shards) * self.shards


def copies(plan: Plan, *, expert: bool) -> WeightCopies:
    n, shards = (plan.expert_replicas, plan.expert_shards) if expert else (plan.replicas, plan.shards)
    group, shard, replica = ("edp", "eshard", "ereplica") if expert else ("dp", "shard", "replica")
    if shards == 1:
        return WeightCopies(expert, 1, n, "", group)
    if shards < n:
        return WeightCopies(expert, shards, n // shards, shard, replica)
    return WeightCopies(expert, n, 1, group, "")


def kinds(plan: Plan, blocks: Sequence[Block], *, trained: bool = False) -> list[WeightCopies]:
    """Kinds of weights in these blocks of which there are several copies or shards; `trained`: only weights with
    gradients."""
    if plan.directives:  # directives define what copies share
        return []
    found = [
        copies(plan, expert=e) for e in (False, True) if any(b.local_params(expert=e, trained=trained) for b in blocks)
    ]
    return [c for c in found if c.shards * c.replicas > 1]


def buckets(blocks: Sequence[Block], order: Sequence[int], limit: int, *, expert: bool) -> list[tuple[int, list[int]]]:
    """(trained parameters, positions of their blocks in `order`) of each bucket: consecutive blocks until the limit is
    reached."""
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


def gather(plan: Plan, group: WeightCopies, params: int, phase: Phase = Phase.FORWARD) -> Op:
    """Op that gathers whole weights from their shards."""
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


def reduce(plan: Plan, group: WeightCopies, params: int) -> list[Op]:
    """Ops that sum gradients over the copies: a reduce-scatter to the shards, then an all-reduce over replicas."""
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


def tied_copies(
    stages: Sequence[tuple[Block, ...]], held: Sequence[Sequence[int]]
) -> tuple[tuple[tuple[Block, ...], ...], int, frozenset[int]]:
    """The stages, with a copy of the embedding added on each pipeline rank that uses it without having it; the weights
    of a copy; and the pipeline ranks that train one (empty if no copy is needed or the embedding is frozen)."""
    using = [s for s, blocks in enumerate(stages) if any(op.tied_params for b in blocks for op in b.ops)]
    found, users = list(stages), set[int]()
    for rank, mine in enumerate(held):
        wanted = [s for s in mine if s in using]
        if wanted and 0 not in mine:
            users.add(rank)
            found[wanted[0]] = _with_copy(stages[wanted[0]])
    if not users:
        return tuple(stages), 0, frozenset()
    size = max(op.tied_params for blocks in stages for b in blocks for op in b.ops)
    if any(op.frozen for b in stages[0][:1] for op in b.ops):
        return tuple(found), size, frozenset()
    return tuple(found), size, frozenset(users | {r for r, mine in enumerate(held) if 0 in mine})


def _with_copy(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Adds the embedding to the first op that uses it."""
    found = list(blocks)
    for at, block in enumerate(blocks):
        for i, op in enumerate(block.ops):
            if op.tied_params:
                one = op.replace(local_params=op.local_params + op.tied_params)
                found[at] = replace(block, ops=(*block.ops[:i], one, *block.ops[i + 1 :]))
                return tuple(found)
    return blocks


def tensor_sums(plan: Plan, blocks: Sequence[Block]) -> dict[str, int]:
    """By group slot: number of weights that tensor-parallel ranks share and for whose gradient each computes a part.
    With sequence parallelism these are all weights that are not split, because each rank has its own tokens."""
    found: dict[str, int] = {}
    if plan.tp == 1:
        return found
    for op in (op for b in blocks for op in b.ops if op.local_params and not op.expert and not op.frozen):
        slot, params = op.summed
        if not slot and plan.sequence_parallel:
            slot, params = "tp", op.local_params if op.local_params == op.params else op.copied_params
        if params:
            found[slot] = found.get(slot, 0) + params
    return found


def kept_bytes(plan: Plan, params: int) -> int:
    """Bytes of gradients of `params` dense weights on a rank after the reduction: its shard from ZeRO 2 on."""
    return bytes_of(-(-params // plan.shards) if plan.zero >= 2 else params, plan.grad_dtype)


def owned(plan: Plan, blocks: Sequence[Block]) -> int:
    """Parameters that one rank's optimizer updates."""
    total = 0
    for expert in (False, True):
        params = sum(b.local_params(expert=expert, trained=True) for b in blocks)
        total += -(-params // copies(plan, expert=expert).shards)
    return total
