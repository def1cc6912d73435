"""Passes over the workload that fill the tables around the nodes: collectives, ready nodes, totals."""

import numpy as np

from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.events import GOLDEN
from etude.astra.kernels.nodes import NOT_A_MEMBER
from etude.astra.layout import (
    ACT_COLLECTIVE,
    ACT_REFUSED,
    ACT_TIMED,
    ALL_GATHER,
    COLL_CHUNK_BYTES,
    COLL_CHUNKS,
    COLL_COMM,
    COLL_MEMBER,
    COLL_NODE,
    COLL_PLAN,
    COMM_SHAPE,
    COMM_SIZE,
    COMM_START,
    LINE_COUNT,
    LINE_START,
    NODE_ACTION,
    NODE_AT_KEY,
    NODE_COLLECTIVE,
    NODE_DURATION,
    NODE_KEY,
    NODE_PEER,
    NODE_RANK,
    NODE_RESOURCE,
    NODE_START,
    NODE_WAITS,
    NUM_RESOURCES,
)
from etude.astra.workload import COLL, COMP, MEM_LOAD, MEM_STORE, SEND

# What a survey says of a workload; behind it, per type of collective on the wire, how many and the smallest size.
HAS_CPU, HAS_MEMORY, HAS_SEND, HAS_GROUP, HAS_WHOLE, HAS_NO_OPS, NUM_FOUND = range(7)
NUM_TYPES = 8
TYPE_COUNT, TYPE_SMALLEST = NUM_FOUND, NUM_FOUND + NUM_TYPES
NUM_SURVEY = NUM_FOUND + 2 * NUM_TYPES


@kernel
def survey(kind, is_cpu, num_ops, tensor_size, comm_type, comm_size, group, involved_dims, found, is_used):
    """What kinds of nodes there are. `is_used` says which groups collectives run on."""
    for i in range(len(kind)):
        if is_cpu[i]:
            found[HAS_CPU] = 1
        if kind[i] == COMP:
            if num_ops[i] == 0 and tensor_size[i] > 0 and not is_cpu[i]:
                found[HAS_NO_OPS] = 1
        elif kind[i] == COLL:
            if group[i] >= 0:
                found[HAS_GROUP] = 1
                is_used[group[i]] = True
            if involved_dims[i] < 0:
                found[HAS_WHOLE] = 1
            if 0 <= comm_type[i] < NUM_TYPES:
                at = TYPE_SMALLEST + comm_type[i]
                if found[TYPE_COUNT + comm_type[i]] == 0 or comm_size[i] < found[at]:
                    found[at] = comm_size[i]
                found[TYPE_COUNT + comm_type[i]] += 1
        elif kind[i] == MEM_LOAD or kind[i] == MEM_STORE:
            found[HAS_MEMORY] = 1
        elif kind[i] == SEND:
            found[HAS_SEND] = 1


@kernel
def _place_in(members, start, size, rank):
    """Where a rank is among the members of a communicator, or -1."""
    for i in range(size):
        if members[start + i] == rank:
            return np.int64(i)
    return np.int64(-1)


@kernel
def _plan_of(key, num_plans, slots, plan_key):
    """The number of a plan; a key that is not there yet gets the next one."""
    mask = np.int64(len(slots) - 1)
    slot = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & mask
    while slots[slot] != 0:
        if plan_key[slots[slot] - 1] == key:
            return np.int64(slots[slot] - 1)
        slot = (slot + 1) & mask
    plan_key[num_plans] = key
    slots[slot] = num_plans + 1
    return np.int64(num_plans)


@kernel
def list_collectives(
    out, small, comm_type, comm_size, group, involved_dims, members, comms, com_of_type, npus, splits, slots, plan_key,
    first, seen
):  # fmt: skip
    """Fill the collective table; gives back how many plans it needs, of which first[k] is the first to use plan k.

    `slots` is a hash table of at least twice as many zeros as collectives; `seen` holds per communicator the rank that
    asked last, one more than it, and its place there.
    """
    c, num_plans = 0, np.int64(0)
    for node in range(len(comm_type)):
        if small[node, NODE_ACTION] != ACT_COLLECTIVE:
            continue
        rank, comm, com = np.int64(small[node, NODE_RANK]), np.int64(group[node]) + 1, com_of_type[comm_type[node]]
        place = rank
        if comms[comm, COMM_SHAPE] != 0:
            if seen[comm, 0] != rank + 1:
                seen[comm, 0] = rank + 1
                seen[comm, 1] = _place_in(members, comms[comm, COMM_START], comms[comm, COMM_SIZE], rank)
            place = seen[comm, 1]
        if place < 0:
            small[node, NODE_ACTION], small[node, NODE_PEER] = ACT_REFUSED, NOT_A_MEMBER
            place = np.int64(0)
        size = comm_size[node]
        chunk = size // splits
        if com != ALL_GATHER and chunk < npus:
            chunk, size = npus, splits * npus
        key = ((com * len(comms) + comm) << 16) + involved_dims[node] + 1
        plan = _plan_of(key, num_plans, slots, plan_key)
        if plan == num_plans:
            first[num_plans] = node
            num_plans += 1
        small[node, NODE_COLLECTIVE] = c
        out[c, COLL_NODE], out[c, COLL_MEMBER], out[c, COLL_COMM], out[c, COLL_PLAN] = node, place, comm, plan
        out[c, COLL_CHUNK_BYTES] = chunk
        out[c, COLL_CHUNKS] = -(-size // chunk) if chunk > 0 else min(size, 1)
        c += 1
    return num_plans


@kernel
def first_ready(small, num_nodes, lines, ready):
    """Heaps of nodes that wait for nothing, per rank and resource. Ascending keys are a heap already."""
    for node in range(num_nodes):
        lines[small[node, NODE_RANK] * NUM_RESOURCES + small[node, NODE_RESOURCE], LINE_COUNT] += 1
    start = np.int64(0)
    for line in range(len(lines)):
        lines[line, LINE_START] = start
        start += lines[line, LINE_COUNT]
        lines[line, LINE_COUNT] = 0
    for i in range(num_nodes):  # keys ascend along NODE_AT_KEY inside every rank
        node = small[i, NODE_AT_KEY]
        if small[node, NODE_WAITS] == 0:
            line = small[node, NODE_RANK] * NUM_RESOURCES + small[node, NODE_RESOURCE]
            ready[lines[line, LINE_START] + lines[line, LINE_COUNT]] = small[node, NODE_KEY]
            lines[line, LINE_COUNT] += 1


@kernel
def first_stuck(rank_start, dep_start):
    """The first rank none of whose nodes can start, or -1."""
    for rank in range(len(rank_start) - 1):
        is_stuck = True
        for i in range(rank_start[rank], rank_start[rank + 1]):
            if dep_start[i] == dep_start[i + 1]:
                is_stuck = False
                break
        if is_stuck:
            return np.int64(rank)
    return np.int64(-1)


@kernel
def gpu_time(rank_start, kind, is_cpu, small, large, is_replay, unknown, gpu_ns):
    """Sum of the GPU compute durations of each rank; gives back how many nodes never ran."""
    dropped = 0
    for rank in range(len(rank_start) - 1):
        for i in range(rank_start[rank], rank_start[rank + 1]):
            if large[i, NODE_START] == unknown:
                dropped += 1
            elif small[i, NODE_ACTION] == ACT_TIMED and not is_cpu[i] and (is_replay or kind[i] == COMP):
                gpu_ns[rank] += np.uint64(large[i, NODE_DURATION])
    return dropped
