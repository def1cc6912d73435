"""Kernels, collectives and copies of one rank on its device: what one costs the other, pair by pair.

Everything that runs has a *kind*: how it is launched, and how long it takes alone. `excess[a, b]` is the slowdown of
kind a while one of kind b runs at the same time; delays of several add up. Pairs are priced when they first overlap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel
from etude.run.simulate.networks.resources import FULL
from etude.run.simulate.networks.state import Table

UNPRICED: Final = -1.0
NOT_KNOWN: Final = 0
"""Instead of a rate: the pair in `asked` has to be priced first."""


class Kinds(NamedTuple):
    """Kinds of rows of programs and of operations; -1: no overlap cost. Without rows there is none at all."""

    of_row: I32
    of_operation: I32  # [kind of device, operation]
    device: I32  # of each instance
    excess: NDArray[np.float32]
    asked: I64  # two kinds


def no_kinds() -> Kinds:
    none = np.zeros(0, np.int32)
    return Kinds(none, np.zeros((0, 0), np.int32), none, np.zeros((0, 0), np.float32), np.zeros(2, np.int64))


@kernel(allocates=False)
def kind_of_row(kinds: Kinds, row: int) -> int:
    return kinds.of_row[row] if len(kinds.of_row) > 0 else -1


@kernel(allocates=False)
def kind_of_member(kinds: Kinds, instance: int, op: int) -> int:
    return kinds.of_operation[kinds.device[instance], op] if len(kinds.of_row) > 0 else -1


@kernel(allocates=False)
def rate_beside(kinds: Kinds, shared: Table, first: int, second: int, node: int) -> int:
    """Rate of a node that runs next to those of two lists, or NOT_KNOWN."""
    kind = shared[node].kind
    if kind < 0:
        return FULL
    times = 1.0
    for turn in range(2):
        other = second if turn else first
        while other >= 0:
            beside = shared[other].kind
            if other != node and beside >= 0:
                excess = kinds.excess[kind, beside]
                if excess < 0:
                    kinds.asked[0] = kind
                    kinds.asked[1] = beside
                    return NOT_KNOWN
                times += excess
            other = shared[other].after
    return max(int(FULL / times + 0.5), 1)
