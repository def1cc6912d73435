"""From implementation lists to phases: which algorithm runs on which dimension, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from etude.astra import layout
from etude.astra.abort import AstraAbort
from etude.astra.config import Algorithm, Network, SystemConfig

IMPLEMENTATION: Final = {
    "ring": layout.RING,
    "direct": layout.DIRECT,
    "halvingDoubling": layout.HALVING_DOUBLING,
    "doubleBinaryTree": layout.BINARY_TREE,
}
COLLECTIVE_NAME: Final = {
    layout.ALL_REDUCE: "all-reduce",
    layout.ALL_GATHER: "all-gather",
    layout.REDUCE_SCATTER: "reduce-scatter",
    layout.ALL_TO_ALL: "all-to-all",
}
COLLECTIVE_OF_WIRE: Final = {
    0: layout.ALL_REDUCE,
    2: layout.ALL_GATHER,
    6: layout.ALL_TO_ALL,
    7: layout.REDUCE_SCATTER,
}
DEFAULT_INVOLVED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One dimension as a collective sees it."""

    algorithm: Algorithm
    size: int
    stride: int
    is_last: bool


def algorithms_of(com: int, system: SystemConfig) -> tuple[Algorithm, ...]:
    name = COLLECTIVE_NAME[com]
    if name not in system.algorithms:
        raise AstraAbort(
            f"the workload has an {name}, but the system file has no `{name}-implementation`",
            hint="ASTRA-sim throws on such a node",
        )
    return system.algorithms[name]


def world_rings(com: int, network: Network, system: SystemConfig) -> list[Ring]:
    """A ring per listed dimension; a `one...` entry is one ring over all NPUs and ends the list."""
    algorithms = algorithms_of(com, system)
    if len(algorithms) > len(network.npus_count):
        raise AstraAbort(
            f"`{COLLECTIVE_NAME[com]}-implementation` has {len(algorithms)} entries, "
            f"the network {len(network.npus_count)} dimensions",
            hint="ASTRA-sim aborts",
        )
    rings, stride = [], 1
    for dim, algorithm in enumerate(algorithms):
        if algorithm.is_flat:
            rings.append(Ring(algorithm=algorithm, size=network.num_npus, stride=1, is_last=False))
            break
        size = network.npus_count[dim]
        rings.append(Ring(algorithm=algorithm, size=size, stride=stride, is_last=dim == len(algorithms) - 1))
        stride *= size
    return rings


def group_rings(com: int, size: int, system: SystemConfig) -> list[Ring]:
    """A group smaller than the cluster is one flat ring; only a list of one entry has a say in its algorithm."""
    algorithms = algorithms_of(com, system)
    algorithm = algorithms[0] if len(algorithms) == 1 else Algorithm(name="ring")
    return [Ring(algorithm=algorithm, size=size, stride=1, is_last=False)]


def _phase(ring: Ring, level: int, com: int, turn: int, tree: int) -> list[int]:
    impl = IMPLEMENTATION[ring.algorithm.name]
    if impl == layout.HALVING_DOUBLING and com == layout.ALL_TO_ALL:
        raise AstraAbort("halvingDoubling cannot do an all-to-all", hint="ASTRA-sim exits")
    row = [0] * int(layout.NUM_PLAN)
    row[layout.PLAN_IMPL], row[layout.PLAN_COM], row[layout.PLAN_LEVEL] = impl, com, level
    row[layout.PLAN_SIZE], row[layout.PLAN_STRIDE], row[layout.PLAN_GROUP] = ring.size, ring.stride, -1
    row[layout.PLAN_WINDOW], row[layout.PLAN_TURN], row[layout.PLAN_TREE] = ring.algorithm.window, turn, tree
    row[layout.PLAN_TREE_START_GLOBAL] = int(impl == layout.BINARY_TREE and ring.is_last)
    return row


def phases_of(com: int, rings: list[Ring], involved: list[bool], is_baseline: bool) -> list[list[int]]:
    """The phases one chunk goes through, in order.

    An all-reduce that spares the slow dimensions scatters on the way up, reduces on the last dimension and gathers
    on the way down; every other collective, and the baseline, visits each dimension once.
    """
    dims = [d for d, ring in enumerate(rings) if ring.size > 1 and involved[d]]

    def phase(dim: int, kind: int, turn: int) -> list[int]:
        return _phase(rings[dim], dim, kind, turn, com * len(rings) + dim)

    if com != layout.ALL_REDUCE or is_baseline:
        order = dims[::-1] if com == layout.ALL_GATHER else dims
        return [phase(d, com, layout.TURN_ALL) for d in order]
    if not dims:
        return []
    up = [phase(d, layout.REDUCE_SCATTER, layout.TURN_FIRST_HALF) for d in dims[:-1]]
    top = phase(dims[-1], layout.ALL_REDUCE, layout.TURN_FIRST_HALF)
    down = [phase(d, layout.ALL_GATHER, layout.TURN_SECOND_HALF) for d in dims[-2::-1]]
    return [*up, top, *down]


def involved_dims(mask: int, count: int) -> list[bool]:
    """Dimensions that take part; without the attribute the first four do."""
    if mask < 0:
        return [d < DEFAULT_INVOLVED for d in range(count)]
    return [bool(mask >> d & 1) for d in range(count)]


def covers(phases: list[list[int]], size: int) -> bool:
    """Whether the phases tie all members together, so that nobody can finish before the last has joined."""
    reached = 1
    for n in {p[layout.PLAN_LEVEL]: p[layout.PLAN_SIZE] for p in phases}.values():
        reached *= n
    return reached == size
