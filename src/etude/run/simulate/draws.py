"""Random draws for the noise of communication: each depends on a node's rank and id only, not on the rest of the
job."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64, U64
from etude.run.simulate.lower import Lowered
from etude.run.simulate.operations import Operations

_CALLS, _MEMBERS = 1 << 40, 1 << 41
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)


def call_draws(lowered: Lowered, ops: Operations) -> F64:
    """A draw for each collective and message: that of its first member, so that calls keep theirs when others are added
    or removed."""
    first = np.full(len(ops), np.iinfo(np.int64).max)
    np.minimum.at(first, ops.of, ops.node)
    return _normal(lowered, first, _CALLS)


def member_draws(lowered: Lowered, ops: Operations) -> F64:
    """A draw for each member of each operation."""
    return _normal(lowered, ops.node, _MEMBERS)


def _normal(lowered: Lowered, node: I64, purpose: int) -> F64:
    """Standard normal numbers, one for each simulated node, from a hash of the seed, its rank and its id."""
    source = lowered.source
    instance = np.searchsorted(lowered.base, node, "right") - 1
    at, row = lowered.classes.first[instance], node - lowered.base[instance]
    begin = np.cumsum([0, *(len(trace) for trace in source.traces)])
    ids = np.concatenate([np.zeros(0, np.uint64), *(trace.source_id for trace in source.traces)])
    state = _mixed(np.full(len(node), lowered.options.seed % 2**64, np.uint64) + np.uint64(purpose))
    state = _mixed(state ^ source.ranks[at].astype(np.uint64))
    state = _mixed(state ^ ids[begin[source.trace_of[at]] + row])
    angle, radius = _unit(_mixed(state + _STEP)), _unit(_mixed(state + _STEP + _STEP))
    found: F64 = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return found


def _unit(bits: U64) -> F64:
    """Numbers in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: NDArray[Any]) -> U64:
    """The last step of splitmix64: all bits of the result depend on all bits."""
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
