"""Passes over the nodes that find what kinds there are, and fill the table of collectives."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.model.schema import Collective
from etude.run.astra.kernels.events import GOLDEN
from etude.run.astra.kernels.node_table import COLL, COMP, MEM_LOAD, MEM_STORE, NOT_A_MEMBER, SEND
from etude.run.astra.state import ACT_COLLECTIVE, ACT_REFUSED, ALL_GATHER

# What a survey says of the nodes; behind it, per type of collective, how many and the smallest size.
HAS_CPU, HAS_MEMORY, HAS_SEND, HAS_GROUP, HAS_WHOLE, HAS_NO_OPS, NUM_FOUND = range(7)
NUM_TYPES = len(Collective)
TYPE_COUNT, TYPE_SMALLEST = NUM_FOUND, NUM_FOUND + NUM_TYPES
NUM_SURVEY = NUM_FOUND + 2 * NUM_TYPES


@kernel(allocates=False)
def _survey_collective(columns, i, found, is_used):
    kind = np.int64(columns.collective[i])
    if columns.group[i] >= 0:
        found[HAS_GROUP] = 1
        is_used[columns.group[i]] = True
    if columns.involved_dims[i] < 0:
        found[HAS_WHOLE] = 1
    if found[TYPE_COUNT + kind] == 0 or columns.comm_bytes[i] < found[TYPE_SMALLEST + kind]:
        found[TYPE_SMALLEST + kind] = columns.comm_bytes[i]
    found[TYPE_COUNT + kind] += 1


@kernel(allocates=False)
def survey(columns, found, is_used):
    """What kinds of nodes there are. `is_used` says which groups collectives run on."""
    for i in range(len(columns.kind)):
        kind, is_cpu = columns.kind[i], columns.cpu[i] == 1
        if is_cpu:
            found[HAS_CPU] = 1
        if kind == COMP:
            if columns.flops[i] == 0 and columns.tensor_bytes[i] > 0 and not is_cpu:
                found[HAS_NO_OPS] = 1
        elif kind == COLL:
            _survey_collective(columns, i, found, is_used)
        elif kind == MEM_LOAD or kind == MEM_STORE:
            found[HAS_MEMORY] = 1
        elif kind == SEND:
            found[HAS_SEND] = 1


class PlanIndex(NamedTuple):
    """Which plans there are, while they are being found."""

    splits: int
    slots: NDArray[np.int32]
    """A hash table of at least twice as many zeros as collectives: one more than the plan."""
    key: I64
    first: I64
    """The first node that uses each plan."""
    seen: I64
    """[communicator]: the rank that asked last, one more than it, and its place there."""


@kernel(allocates=False)
def _place_of(members, communicator, seen, rank):
    """Where a rank is among the members of a communicator, or -1."""
    if communicator.shape == 0:
        return rank  # the world
    if seen[0] != rank + 1:
        seen[0], seen[1] = rank + 1, -1
        for i in range(communicator.size):
            if members[communicator.start + i] == rank:
                seen[1] = i
                break
    return seen[1]


@kernel(allocates=False)
def _plan_of(key, num_plans, index):
    """The number of a plan; a key that is not there yet gets the next one."""
    mask = np.int64(len(index.slots) - 1)
    slot = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & mask
    while index.slots[slot] != 0:
        if index.key[index.slots[slot] - 1] == key:
            return np.int64(index.slots[slot] - 1)
        slot = (slot + 1) & mask
    index.key[num_plans] = key
    index.slots[slot] = num_plans + 1
    return np.int64(num_plans)


@kernel(allocates=False)
def _cut(collective, size, splits, npus, kind):
    """Into how many chunks a collective is cut, and their size."""
    chunk = size // splits
    if kind != ALL_GATHER and chunk < npus:
        chunk, size = npus, splits * npus
    collective.chunk_bytes = chunk
    collective.chunks = -(-size // chunk) if chunk > 0 else min(size, 1)
    collective.open_chunks = collective.chunks


@kernel(allocates=False)
def list_collectives(collectives, nodes, columns, members, communicators, index):
    """Fill the table of collectives; gives back how many plans it needs."""
    c, num_plans = 0, np.int64(0)
    for i in range(len(columns.kind)):
        node = nodes[i]
        if node.action != ACT_COLLECTIVE:
            continue
        rank, place = np.int64(node.rank), np.int64(columns.group[i]) + 1
        kind = np.int64(columns.collective[i])
        member = _place_of(members, communicators[place], index.seen[place], rank)
        if member < 0:
            node.action, node.peer = ACT_REFUSED, NOT_A_MEMBER
            member = np.int64(0)
        key = ((kind * len(communicators) + place) << 16) + columns.involved_dims[i] + 1
        plan = _plan_of(key, num_plans, index)
        if plan == num_plans:
            index.first[num_plans] = i
            num_plans += 1
        collective = collectives[c]
        collective.node, collective.member, collective.communicator, collective.plan = i, member, place, plan
        _cut(collective, columns.comm_bytes[i], index.splits, communicators[0].size, kind)
        node.collective = c
        c += 1
    return num_plans
