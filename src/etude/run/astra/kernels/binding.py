"""From slots to ranks and groups, and from edges of single ranks to rows of all: what binds a trace to its rank."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.model.schema import UNKNOWN
from etude.run.astra.state import TAG_RANGE

WORLD = -1
UNKNOWN_GROUP = -2
NOT_SAID = -1
NO_RANK = 1 << 30
"""No job has this many ranks; numbers beyond it would not fit a column of peers."""


class GroupTables(NamedTuple):
    """Those of a Job, and where each rank begins."""

    rank_start: I64
    peer_start: I64
    peer_of: I64
    tag_base: I64
    group_start: I64
    group_of: NDArray[np.int32]


class NodeDependencies(NamedTuple):
    """Dependencies of nodes of all ranks: where each node's end in its rank, and rows of its rank."""

    end: I64
    rows: NDArray[np.int32]


@kernel(allocates=False)
def _peer(bindings, rank, slot):
    if slot < 0:
        return np.int64(NOT_SAID)
    return min(max(bindings.peer_of[bindings.peer_start[rank] + slot], -NO_RANK), NO_RANK)


@kernel(allocates=False)
def bind_peers(src, dst, given_tag, tag, bindings):
    """Turn the slots of senders and receivers into ranks; tags are taken modulo ASTRA-sim's range."""
    for rank in range(len(bindings.rank_start) - 1):
        base = bindings.tag_base[rank]
        for i in range(bindings.rank_start[rank], bindings.rank_start[rank + 1]):
            src[i], dst[i] = _peer(bindings, rank, src[i]), _peer(bindings, rank, dst[i])
            tag[i] = (given_tag[i] + base) % TAG_RANGE if given_tag[i] >= 0 else NOT_SAID


@kernel(allocates=False)
def bind_groups(group, bindings, place_of_group):
    """Turn the slots of groups into places among ASTRA-sim's groups."""
    for rank in range(len(bindings.rank_start) - 1):
        first = bindings.group_start[rank]
        for i in range(bindings.rank_start[rank], bindings.rank_start[rank + 1]):
            if group[i] >= 0:
                group[i] = place_of_group[bindings.group_of[first + group[i]]]


@kernel(allocates=False)
def merge_edges(rank_start, data, ctrl, dep_start, dep):
    """Data and control dependencies of each node together, as rows of all ranks; -1 for an id that no node has."""
    at, data_base, ctrl_base = np.int64(0), np.int64(0), np.int64(0)
    for rank in range(len(rank_start) - 1):
        first, d, c = rank_start[rank], np.int64(0), np.int64(0)
        for i in range(first, rank_start[rank + 1]):
            while d < data.end[i]:
                row = data.rows[data_base + d]
                dep[at] = first + row if row >= 0 else -1
                at, d = at + 1, d + 1
            while c < ctrl.end[i]:
                row = ctrl.rows[ctrl_base + c]
                dep[at] = first + row if row >= 0 else -1
                at, c = at + 1, c + 1
            dep_start[i + 1] = at
        data_base, ctrl_base = data_base + d, ctrl_base + c


@kernel(allocates=False)
def first_negative(values):
    """The first value below 0 that is not unknown, or -1."""
    for i in range(len(values)):
        if values[i] < 0 and values[i] != UNKNOWN:
            return np.int64(i)
    return np.int64(-1)
