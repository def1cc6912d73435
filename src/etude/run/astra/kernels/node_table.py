"""One pass over the nodes: what each one needs, how long it takes, and which ones ASTRA-sim refuses."""

import numpy as np

from etude.kernels.compile import kernel
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.run.astra.kernels.binding import UNKNOWN_GROUP
from etude.run.astra.state import (
    ACT_COLLECTIVE,
    ACT_MEMORY,
    ACT_RECEIVE,
    ACT_REFUSED,
    ACT_SEND,
    ACT_SKIP,
    ACT_TIMED,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    NONE,
    NUM_RESOURCES,
    ON_COMM,
    ON_COMP,
    ON_CPU,
    ON_NOTHING,
    REDUCE_SCATTER,
    record,
)

INVALID, METADATA, MEM_LOAD, MEM_STORE = (int(k) for k in (Kind.INVALID, Kind.METADATA, Kind.MEM_LOAD, Kind.MEM_STORE))
COMP, SEND, RECV, COLL = (int(k) for k in (Kind.COMP, Kind.SEND, Kind.RECV, Kind.COLL))
BROADCAST = int(Collective.BROADCAST)
NO_MEMORY, PER_NPU, PER_NODE, POOL = range(4)
MAX_BYTES = 1 << 42
NAN_NS = np.int64(-(2**63))  # what a NaN becomes when the original casts it: 2**63 unsigned

COSTS = record(
    "is_replay", "has_roofline", "memory", "memory_latency_ns", "memory_bytes_per_ns", "npus_per_node",
    real=("peak_per_s", "local_bytes_per_s"),
)  # fmt: skip
"""One record: what nodes cost that are not communication."""

REFUSALS = (
    "is a METADATA node, on which ASTRA-sim's statistics abort",
    "has a node type that ASTRA-sim does not know",
    "has no num_ops or tensor_size, which the roofline needs",
    "is a collective that ASTRA-sim does not simulate",
    "is communication on the CPU, on which ASTRA-sim throws",
    "has no comm_size",
    "moves more than 4 TiB",
    "names a group that the group file does not have",
    "sends or receives for another rank",
    "does not name its peer or its tag",
    "uses remote memory, but there is none",
    "has no tensor_size",
    "runs on a group that its rank is not in",
)
(
    IS_METADATA, IS_UNKNOWN, NO_OPS, NO_SUCH_COLLECTIVE, ON_THE_CPU, NO_SIZE, TOO_LARGE, NO_GROUP, IS_FOREIGN, NO_PEER,
    NO_REMOTE_MEMORY, NO_TENSOR, NOT_A_MEMBER,
) = (np.int64(i) for i in range(13))  # fmt: skip


@kernel(allocates=False)
def _refuse(node, why):
    """The machine stops where it comes to this node, which keeps the reason as its peer."""
    node.action, node.peer = ACT_REFUSED, why


@kernel(allocates=False)
def _roofline_ns(flops, tensor_bytes, costs):
    """In the arithmetic and the order of the original, whose cast makes NaN 2**63 and infinity 0."""
    ops = np.float64(flops)
    memory_rate = costs.local_bytes_per_s * (ops / np.float64(tensor_bytes))
    rate = costs.peak_per_s if costs.peak_per_s < memory_rate else memory_rate
    ns = ops / rate * 1e9
    if np.isnan(ns):
        return NAN_NS
    if ns < 2.0**63:
        return np.int64(ns)
    return np.int64(np.uint64(ns)) if ns < 2.0**64 else np.int64(0)


@kernel(allocates=False)
def _recorded_ns(duration_ns):
    """A file has whole microseconds; no duration counts as a nanosecond."""
    us = duration_ns // 1000 + (duration_ns % 1000 >= 500) if duration_ns > 0 else np.int64(0)
    return us * 1000 if us > 0 else np.int64(1)


@kernel(allocates=False)
def _resource(kind, cpu):
    if cpu == 1:
        return ON_CPU
    if kind == COMP:
        return ON_COMP
    if kind == COLL or kind == SEND or kind == MEM_LOAD or kind == MEM_STORE:
        return ON_COMM
    return ON_NOTHING


@kernel(allocates=False)
def _fill_compute(node, flops, tensor_bytes, costs):
    if tensor_bytes < 0 or flops < 0:
        _refuse(node, NO_OPS)
    elif tensor_bytes == 0:
        node.action = ACT_SKIP
    else:
        node.duration_ns = _roofline_ns(flops, tensor_bytes, costs)


@kernel(allocates=False)
def _fill_memory(node, tensor_bytes, costs):
    node.action = ACT_MEMORY
    if costs.memory == NO_MEMORY:
        _refuse(node, NO_REMOTE_MEMORY)
    elif tensor_bytes < 0:
        _refuse(node, NO_TENSOR)
    else:
        node.duration_ns = costs.memory_latency_ns + tensor_bytes // costs.memory_bytes_per_ns
        if costs.memory == PER_NODE:
            node.peer = node.rank // costs.npus_per_node
        elif costs.memory == POOL:
            node.peer = 0


@kernel(allocates=False)
def _refusal(columns, i):
    """Why a communication node cannot run, or -1."""
    if columns.kind[i] == COLL:
        c = columns.collective[i]
        if not (c == ALL_REDUCE or c == ALL_GATHER or c == ALL_TO_ALL or c == REDUCE_SCATTER or c == BROADCAST):
            return NO_SUCH_COLLECTIVE
        if columns.group[i] == UNKNOWN_GROUP:
            return NO_GROUP
    if columns.cpu[i] == 1:
        return ON_THE_CPU
    if columns.comm_bytes[i] < 0:
        return NO_SIZE
    return TOO_LARGE if columns.comm_bytes[i] > MAX_BYTES else NONE


@kernel(allocates=False)
def _fill_message(node, columns, i):
    is_send = columns.kind[i] == SEND
    mine, peer = (columns.src[i], columns.dst[i]) if is_send else (columns.dst[i], columns.src[i])
    node.action, node.peer = ACT_SEND if is_send else ACT_RECEIVE, peer
    if mine != -1 and mine != node.rank:
        _refuse(node, IS_FOREIGN)
    elif peer < 0 or columns.tag[i] < 0:
        _refuse(node, NO_PEER)


@kernel(allocates=False)
def _fill_action(node, columns, i, costs):
    """What the node does, and with whom."""
    kind = columns.kind[i]
    node.action, node.peer = ACT_TIMED, NONE
    if kind == METADATA:
        _refuse(node, IS_METADATA)
    elif kind < INVALID or kind > COLL:
        _refuse(node, IS_UNKNOWN)
    elif costs.is_replay == 1:
        return
    elif kind == INVALID:
        node.action = ACT_SKIP
    elif kind == COMP:
        if costs.has_roofline == 1 and columns.cpu[i] != 1:
            _fill_compute(node, columns.flops[i], columns.tensor_bytes[i], costs)
    elif kind == MEM_LOAD or kind == MEM_STORE:
        _fill_memory(node, columns.tensor_bytes[i], costs)
    else:
        if kind != COLL:
            _fill_message(node, columns, i)
        elif columns.collective[i] != BROADCAST:
            node.action = ACT_COLLECTIVE
        why = _refusal(columns, i)
        if why != NONE:
            _refuse(node, why)


@kernel(allocates=False)
def fill_nodes(nodes, columns, costs):
    """Fill the node table, all but children and collectives."""
    for rank in range(len(columns.rank_start) - 1):
        first = columns.rank_start[rank]
        for i in range(first, columns.rank_start[rank + 1]):
            node = nodes[i]
            node.rank, node.resource = rank, _resource(columns.kind[i], columns.cpu[i])
            node.duration_ns, node.bytes = _recorded_ns(columns.duration_ns[i]), columns.comm_bytes[i]
            node.tag, node.waits = columns.tag[i], columns.dep_start[i + 1] - columns.dep_start[i]
            node.key, node.at_key, node.collective = i - first, i, NONE
            node.start_ns, node.end_ns = UNKNOWN, UNKNOWN
            _fill_action(node, columns, i, costs[0])


@kernel(allocates=False)
def first_bad_dependency(columns):
    """The first dependency that is not a node of the same rank, or -1."""
    for rank in range(len(columns.rank_start) - 1):
        low, high = columns.rank_start[rank], columns.rank_start[rank + 1]
        for at in range(columns.dep_start[low], columns.dep_start[high]):
            if columns.dep[at] < low or columns.dep[at] >= high:
                return np.int64(at)
    return NONE


@kernel(allocates=False)
def first_stuck_rank(columns):
    """The first rank none of whose nodes can start, or -1."""
    for rank in range(len(columns.rank_start) - 1):
        is_stuck = True
        for i in range(columns.rank_start[rank], columns.rank_start[rank + 1]):
            if columns.dep_start[i] == columns.dep_start[i + 1]:
                is_stuck = False
                break
        if is_stuck:
            return np.int64(rank)
    return NONE


@kernel(allocates=False)
def is_ascending(columns):
    """Whether ids ascend inside every rank."""
    for rank in range(len(columns.rank_start) - 1):
        for i in range(columns.rank_start[rank] + 1, columns.rank_start[rank + 1]):
            if columns.source_id[i] <= columns.source_id[i - 1]:
                return False
    return True


@kernel(allocates=False)
def place_by_id(nodes, columns, order):
    """Set the places of nodes that `order` sorts by their ids inside each rank; gives back a node whose id is taken
    already, or -1."""
    ids = columns.source_id
    for rank in range(len(columns.rank_start) - 1):
        first = columns.rank_start[rank]
        for i in range(first, columns.rank_start[rank + 1]):
            nodes[i].at_key, nodes[order[i]].key = order[i], i - first
            if i > first and ids[order[i]] == ids[order[i - 1]]:
                return np.int64(order[i])
    return NONE


@kernel(allocates=False)
def link_children(nodes, columns, child):
    """Turn dependencies round. While children are written, `child_start` of a node is where its next one goes."""
    n = len(columns.kind)
    for i in range(n + 1):
        nodes[i].child_start = 0
    for d in columns.dep:
        nodes[d + 1].child_start += 1
    for i in range(n):
        nodes[i + 1].child_start += nodes[i].child_start
    for i in range(n):
        for k in range(columns.dep_start[i], columns.dep_start[i + 1]):
            parent = nodes[columns.dep[k]]
            child[parent.child_start] = i
            parent.child_start += 1
    for i in range(n, 0, -1):
        nodes[i].child_start = nodes[i - 1].child_start
    nodes[0].child_start = 0


@kernel(allocates=False)
def fill_ready(nodes, num_nodes, lines, ready):
    """Heaps of nodes that wait for nothing, per rank and resource. Ascending keys are a heap already."""
    for i in range(num_nodes):
        lines[nodes[i].rank, nodes[i].resource].count += 1
    start = np.int64(0)
    for rank in range(len(lines)):
        for resource in range(NUM_RESOURCES):
            line = lines[rank, resource]
            line.start, line.count, start = start, 0, start + line.count
    for i in range(num_nodes):  # keys ascend along `at_key` inside every rank
        node = nodes[nodes[i].at_key]
        if node.waits == 0:
            line = lines[node.rank, node.resource]
            ready[line.start + line.count] = node.key
            line.count += 1


@kernel(allocates=False)
def compute_time(nodes, columns, is_replay, compute_ns):
    """Sum of the device's compute durations of each rank; gives back how many nodes never ran."""
    dropped = 0
    for i in range(len(columns.kind)):
        node = nodes[i]
        if node.start_ns == UNKNOWN:
            dropped += 1
        elif node.action == ACT_TIMED and columns.cpu[i] != 1 and (is_replay or columns.kind[i] == COMP):
            compute_ns[node.rank] += np.uint64(node.duration_ns)
    return dropped
