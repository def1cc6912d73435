"""From implementation lists to phases: which algorithm runs on which dimension, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from etude.run.astra import state
from etude.run.astra.abort import AstraAbort
from etude.run.astra.config import Implementation, NetworkConfig, SystemConfig

IMPLEMENTATION: Final = {
    "ring": state.RING,
    "direct": state.DIRECT,
    "halvingDoubling": state.HALVING_DOUBLING,
    "doubleBinaryTree": state.BINARY_TREE,
}
COLLECTIVE_NAME: Final = {
    int(state.ALL_REDUCE): "all-reduce",
    int(state.ALL_GATHER): "all-gather",
    int(state.REDUCE_SCATTER): "reduce-scatter",
    int(state.ALL_TO_ALL): "all-to-all",
}
TREE_ORDER: Final = tuple(COLLECTIVE_NAME)
"""Counters of binary trees are per collective, in this order, and dimension."""
DEFAULT_INVOLVED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RingDimension:
    """One dimension as a collective sees it."""

    algorithm: Implementation
    size: int
    stride: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTemplate:
    """One phase of a plan; fields are those of state.TEMPLATE."""

    algorithm: int
    collective: int
    level: int
    size: int
    stride: int
    window: int
    turn: int
    tree: int
    starts_tree_globally: bool
    group: int = -1
    """Where the members of a group begin; -1 for the world."""

    def of_group(self, start: int) -> PhaseTemplate:
        return replace(self, group=start)

    def as_record(self) -> tuple[Any, ...]:
        return tuple(int(getattr(self, name)) for name in state.TEMPLATE.names or ())


def algorithms_of(collective: int, system: SystemConfig) -> tuple[Implementation, ...]:
    name = COLLECTIVE_NAME[collective]
    if name not in system.algorithms:
        hint = "ASTRA-sim throws on such a node"
        raise AstraAbort(f"the workload has an {name}, but the system file has no `{name}-implementation`", hint=hint)
    return system.algorithms[name]


def world_rings(collective: int, network: NetworkConfig, system: SystemConfig) -> list[RingDimension]:
    """A ring per listed dimension; a `one...` entry is one ring over all NPUs and ends the list."""
    algorithms = algorithms_of(collective, system)
    if len(algorithms) > len(network.npus_count):
        raise AstraAbort(
            f"`{COLLECTIVE_NAME[collective]}-implementation` has {len(algorithms)} entries, "
            f"the network {len(network.npus_count)} dimensions",
            hint="ASTRA-sim aborts",
        )
    rings, stride = [], 1
    for dim, algorithm in enumerate(algorithms):
        if algorithm.is_flat:
            rings.append(RingDimension(algorithm=algorithm, size=network.num_npus, stride=1, is_last=False))
            break
        size = network.npus_count[dim]
        rings.append(RingDimension(algorithm=algorithm, size=size, stride=stride, is_last=dim == len(algorithms) - 1))
        stride *= size
    return rings


def group_rings(collective: int, size: int, system: SystemConfig) -> list[RingDimension]:
    """A group smaller than the cluster is one flat ring; only a list of one entry has a say in its algorithm."""
    algorithms = algorithms_of(collective, system)
    algorithm = algorithms[0] if len(algorithms) == 1 else Implementation(name="ring")
    return [RingDimension(algorithm=algorithm, size=size, stride=1, is_last=False)]


def _phase(ring: RingDimension, level: int, collective: int, turn: int, tree: int) -> PhaseTemplate:
    algorithm = IMPLEMENTATION[ring.algorithm.name]
    if algorithm == state.HALVING_DOUBLING and collective == state.ALL_TO_ALL:
        raise AstraAbort("halvingDoubling cannot do an all-to-all", hint="ASTRA-sim exits")
    return PhaseTemplate(
        algorithm=algorithm,
        collective=collective,
        level=level,
        size=ring.size,
        stride=ring.stride,
        window=ring.algorithm.window,
        turn=turn,
        tree=tree,
        starts_tree_globally=algorithm == state.BINARY_TREE and ring.is_last,
    )


def phases_of(
    collective: int, rings: list[RingDimension], involved: list[bool], is_baseline: bool
) -> list[PhaseTemplate]:
    """The phases one chunk goes through, in order.

    An all-reduce that spares the slow dimensions scatters on the way up, reduces on the last dimension and gathers
    on the way down; every other collective, and the baseline, visits each dimension once.
    """
    dims = [d for d, ring in enumerate(rings) if ring.size > 1 and involved[d]]
    first_tree = TREE_ORDER.index(collective) * len(rings)

    def phase(dim: int, kind: Any, turn: int) -> PhaseTemplate:
        return _phase(rings[dim], dim, kind, turn, first_tree + dim)

    if collective != state.ALL_REDUCE or is_baseline:
        order = dims[::-1] if collective == state.ALL_GATHER else dims
        return [phase(d, collective, state.TURN_ALL) for d in order]
    if not dims:
        return []
    up = [phase(d, state.REDUCE_SCATTER, state.TURN_FIRST_HALF) for d in dims[:-1]]
    top = phase(dims[-1], state.ALL_REDUCE, state.TURN_FIRST_HALF)
    down = [phase(d, state.ALL_GATHER, state.TURN_SECOND_HALF) for d in dims[-2::-1]]
    return [*up, top, *down]


def involved_dims(mask: int, count: int) -> list[bool]:
    """Dimensions that take part; without the attribute the first four do."""
    if mask < 0:
        return [d < DEFAULT_INVOLVED for d in range(count)]
    return [bool(mask >> d & 1) for d in range(count)]


def covers(phases: Sequence[PhaseTemplate], size: int) -> bool:
    """Whether the phases tie all members together, so that none can finish before the last has joined."""
    reached = 1
    for n in {p.level: p.size for p in phases}.values():
        reached *= n
    return reached == size
