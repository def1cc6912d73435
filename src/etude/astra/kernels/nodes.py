"""One pass over the workload: what each node needs, how long it takes, and which ones ASTRA-sim refuses."""

import numpy as np

from etude.astra.kernels.compiling import kernel
from etude.astra.layout import (
    ACT_COLLECTIVE,
    ACT_MEMORY,
    ACT_RECEIVE,
    ACT_REFUSED,
    ACT_SEND,
    ACT_SKIP,
    ACT_TIMED,
    NODE_ACTION,
    NODE_AT_KEY,
    NODE_BYTES,
    NODE_COLLECTIVE,
    NODE_DURATION,
    NODE_KEY,
    NODE_PEER,
    NODE_RANK,
    NODE_RESOURCE,
    NODE_TAG,
    NODE_WAITS,
    ON_COMM,
    ON_COMP,
    ON_CPU,
    ON_NOTHING,
)
from etude.astra.workload import COLL, COMP, INVALID, MEM_LOAD, MEM_STORE, METADATA, SEND, UNKNOWN_GROUP

ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 5, 6, 7  # on the wire
NO_MEMORY, PER_NPU, PER_NODE, POOL = range(4)
IS_REPLAY, HAS_ROOFLINE, MEMORY_KIND, MEMORY_LATENCY, MEMORY_BYTES_PER_NS, NPUS_PER_NODE, NUM_FLAGS = range(7)
RATE_PEAK, RATE_LOCAL = range(2)
MAX_BYTES = 1 << 42
TAG_RANGE = 500_000_000
NAN_NS = np.int64(-(2**63))  # what a NaN becomes when the original casts it: 2**63 unsigned

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
    "does not say who the other side is, or with which tag",
    "uses remote memory, of which there is none",
    "has no tensor_size",
    "runs on a group that its rank is not in",
)
(
    IS_METADATA,
    IS_UNKNOWN,
    NO_OPS,
    NO_SUCH_COLLECTIVE,
    ON_THE_CPU,
    NO_SIZE,
    TOO_LARGE,
    NO_GROUP,
    IS_FOREIGN,
    NO_PEER,
    NO_REMOTE_MEMORY,
    NO_TENSOR,
    NOT_A_MEMBER,
) = range(13)


@kernel
def _roofline_ns(num_ops, tensor_size, rates):
    """In the arithmetic and the order of the original, whose cast makes NaN 2**63 and infinity 0."""
    ops = np.float64(num_ops)
    memory_rate = rates[RATE_LOCAL] * (ops / np.float64(tensor_size))
    rate = rates[RATE_PEAK] if rates[RATE_PEAK] < memory_rate else memory_rate
    ns = ops / rate * 1e9
    if np.isnan(ns):
        return NAN_NS
    if ns < 2.0**63:
        return np.int64(ns)
    return np.int64(np.uint64(ns)) if ns < 2.0**64 else np.int64(0)


@kernel
def _resource(kind, is_cpu):
    if is_cpu:
        return ON_CPU
    if kind == COMP:
        return ON_COMP
    if kind == COLL or kind == SEND or kind == MEM_LOAD or kind == MEM_STORE:
        return ON_COMM
    return ON_NOTHING


@kernel
def _refusal(kind, is_cpu, comm_type, size, group):
    """Why a communication node cannot run, or -1."""
    if kind == COLL:
        known = comm_type == ALL_REDUCE or comm_type == ALL_GATHER or comm_type == ALL_TO_ALL
        if not (known or comm_type == REDUCE_SCATTER or comm_type == BROADCAST):
            return NO_SUCH_COLLECTIVE
        if group == UNKNOWN_GROUP:
            return NO_GROUP
    if is_cpu:
        return ON_THE_CPU
    if size < 0:
        return NO_SIZE
    return TOO_LARGE if size > MAX_BYTES else -1


@kernel
def _other_side(kind, rank, src, dst, tag):
    """(peer, refusal) of a send or a receive."""
    mine, peer = (src, dst) if kind == SEND else (dst, src)
    if mine != -1 and mine != rank:
        return peer, IS_FOREIGN
    return peer, NO_PEER if peer < 0 or tag < 0 else -1


@kernel
def pack(
    small,
    large,
    rank_start,
    kind,
    is_cpu,
    duration_us,
    num_ops,
    tensor_size,
    comm_type,
    comm_size,
    src,
    dst,
    tag,
    group,
    dep_start,
    flags,
    rates,
):
    """Fill the node tables, all but children and collectives. A refused node keeps the reason as its peer."""
    for rank in range(len(rank_start) - 1):
        for i in range(rank_start[rank], rank_start[rank + 1]):
            k, action, why, peer = kind[i], ACT_TIMED, -1, -1
            ns = duration_us[i] * 1000 if duration_us[i] > 0 else np.int64(1)
            is_memory = k == MEM_LOAD or k == MEM_STORE
            if k == METADATA:
                why = IS_METADATA
            elif k > COLL:
                why = IS_UNKNOWN
            elif flags[IS_REPLAY] == 1:
                pass
            elif k == INVALID:
                action = ACT_SKIP
            elif k == COMP:
                if flags[HAS_ROOFLINE] == 1 and not is_cpu[i]:
                    if tensor_size[i] < 0 or num_ops[i] < 0:
                        why = NO_OPS
                    elif tensor_size[i] == 0:
                        action = ACT_SKIP
                    else:
                        ns = _roofline_ns(num_ops[i], tensor_size[i], rates)
            elif is_memory:
                action = ACT_MEMORY
                if flags[MEMORY_KIND] == NO_MEMORY:
                    why = NO_REMOTE_MEMORY
                elif tensor_size[i] < 0:
                    why = NO_TENSOR
                else:
                    ns = flags[MEMORY_LATENCY] + tensor_size[i] // flags[MEMORY_BYTES_PER_NS]
                    if flags[MEMORY_KIND] == PER_NODE:
                        peer = rank // flags[NPUS_PER_NODE]
                    elif flags[MEMORY_KIND] == POOL:
                        peer = 0
            else:
                why = _refusal(k, is_cpu[i], comm_type[i], comm_size[i], group[i])
                if k == COLL:
                    action = ACT_COLLECTIVE if comm_type[i] != BROADCAST else ACT_TIMED
                else:
                    action = ACT_SEND if k == SEND else ACT_RECEIVE
                    peer, wrong = _other_side(k, rank, src[i], dst[i], tag[i])
                    why = why if why >= 0 else wrong
            small[i, NODE_RANK], small[i, NODE_RESOURCE] = rank, _resource(k, is_cpu[i])
            small[i, NODE_ACTION], small[i, NODE_PEER] = (ACT_REFUSED, why) if why >= 0 else (action, peer)
            small[i, NODE_TAG], small[i, NODE_WAITS] = tag[i] % TAG_RANGE, dep_start[i + 1] - dep_start[i]
            small[i, NODE_KEY], small[i, NODE_AT_KEY], small[i, NODE_COLLECTIVE] = i - rank_start[rank], i, -1
            large[i, NODE_DURATION], large[i, NODE_BYTES] = ns, comm_size[i]


@kernel
def first_bad_dependency(rank_start, dep_start, dep):
    """The first dependency that is not a node of the same rank, or -1."""
    for rank in range(len(rank_start) - 1):
        low, high = rank_start[rank], rank_start[rank + 1]
        for at in range(dep_start[low], dep_start[high]):
            if dep[at] < low or dep[at] >= high:
                return np.int64(at)
    return np.int64(-1)


@kernel
def is_ascending(rank_start, source_id):
    """Whether ids ascend inside every rank."""
    for rank in range(len(rank_start) - 1):
        for i in range(rank_start[rank] + 1, rank_start[rank + 1]):
            if source_id[i] <= source_id[i - 1]:
                return False
    return True


@kernel
def _merge(ids, low, middle, high, order, out):
    """Merge two runs of rows that ascend by id; the lower one goes first where ids are equal."""
    a, b = low, middle
    for at in range(low, high):
        if a < middle and (b >= high or ids[order[a]] <= ids[order[b]]):
            out[at] = order[a]
            a += 1
        else:
            out[at] = order[b]
            b += 1


@kernel
def order_by_id(rank_start, ids, small, order, scratch):
    """Set the places of nodes in ascending order of their ids; gives back a node whose id is taken already, or -1."""
    for rank in range(len(rank_start) - 1):
        first, end = rank_start[rank], rank_start[rank + 1]
        for i in range(first, end):
            order[i] = i
        width = 1
        while width < end - first:
            for low in range(first, end, 2 * width):
                _merge(ids, low, min(low + width, end), min(low + 2 * width, end), order, scratch)
            for i in range(first, end):
                order[i] = scratch[i]
            width *= 2
        for i in range(first, end):
            small[i, NODE_AT_KEY] = order[i]
            small[order[i], NODE_KEY] = i - first
            if i > first and ids[order[i]] == ids[order[i - 1]]:
                return np.int64(order[i])
    return np.int64(-1)


@kernel
def link_children(dep_start, dep, large, column, child, at):
    """Turn dependencies round: child[large[i, column]:large[i+1, column]] wait for node i. `at` is scratch."""
    num_nodes = len(at)
    for i in range(num_nodes + 1):
        large[i, column] = 0
    for d in dep:
        large[d + 1, column] += 1
    for i in range(num_nodes):
        large[i + 1, column] += large[i, column]
        at[i] = large[i, column]
    for node in range(num_nodes):
        for k in range(dep_start[node], dep_start[node + 1]):
            child[at[dep[k]]] = node
            at[dep[k]] += 1
