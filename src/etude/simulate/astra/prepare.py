"""Everything a run needs, as arrays: every index that a kernel follows is checked here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from etude.errors import ClusterError, TraceError
from etude.simulate.astra import layout, plans
from etude.simulate.astra.config import Network, RemoteMemory, SystemConfig
from etude.simulate.astra.machine import Arena
from etude.simulate.astra.workload import (
    ABSENT, COLL, COMP, INVALID, MEM_LOAD, MEM_STORE, METADATA, RECV, SEND, UNKNOWN_GROUP, WORLD, Workload,
)

BROADCAST = 5
NOT_A_NUMBER_NS = np.int64(-(2**63))        # what a NaN becomes when the original casts it: 2**63 unsigned
MAX_NPUS = 1 << 20
MAX_BYTES = 1 << 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of a run."""

    backend: str = "unaware"
    num_queues_per_dim: int = 1
    rendezvous: bool = False
    injection_scale: float = 1.0


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A run's constants and tables, as layout.py describes them."""

    tab: NDArray[np.int64]
    rate: NDArray[np.float64]
    small: NDArray[np.int32]
    large: NDArray[np.int64]
    child: NDArray[np.int32]
    num_servers: int
    can_work_ahead: bool
    is_gpu_time: NDArray[np.bool_]
    refused: dict[int, str] = field(default_factory=dict)


@njit(cache=True)
def _children(dep_start, dep, num_nodes):
    start = np.zeros(num_nodes + 1, np.int64)
    for d in dep:
        start[d + 1] += 1
    for i in range(num_nodes):
        start[i + 1] += start[i]
    child = np.empty(len(dep), np.int32)
    at = start[:-1].copy()
    for node in range(num_nodes):
        for k in range(dep_start[node], dep_start[node + 1]):
            child[at[dep[k]]] = node
            at[dep[k]] += 1
    return start, child


def _id_order(w: Workload) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Place of each node in ascending id order inside its rank, and the row at each place."""
    local = np.arange(len(w), dtype=np.int64) - np.repeat(w.rank_start[:-1], np.diff(w.rank_start))
    is_first = np.zeros(len(w), bool)
    is_first[w.rank_start[:-1][np.diff(w.rank_start) > 0]] = True
    if len(w) < 2 or bool(((w.source_id[1:] > w.source_id[:-1]) | is_first[1:]).all()):
        return local.astype(np.int32), np.arange(len(w), dtype=np.int32)
    rank = np.repeat(np.arange(w.num_ranks), np.diff(w.rank_start))
    row_of_key = np.lexsort((w.source_id, rank))
    same = (w.source_id[row_of_key][1:] == w.source_id[row_of_key][:-1]) & (rank[row_of_key][1:] == rank[row_of_key][:-1])
    if same.any():
        node = int(row_of_key[1:][same][0])
        raise TraceError(f"two nodes have the id {w.source_id[node]}", where=f"rank {w.rank_of(node)}")
    key = np.empty(len(w), np.int32)
    key[row_of_key] = local
    return key, row_of_key.astype(np.int32)


def _replay_ns(w: Workload) -> NDArray[np.int64]:
    return np.where(w.duration_us > 0, w.duration_us * 1000, 1)


def _roofline_ns(w: Workload, rows: NDArray[np.int64], system: SystemConfig) -> NDArray[np.int64]:
    """Time of compute nodes by the roofline, in the arithmetic and the order of the original."""
    memory = (system.local_mem_gbyte_per_s or 0.0) * 1e9
    peak = system.peak_tflop_per_s * 1e12
    ops, size = w.num_ops[rows].astype(np.float64), w.tensor_size[rows].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        intensity = ops / size
        rate = np.where(peak < memory * intensity, peak, memory * intensity)
        ns = ops / rate * 1e9
    # As the cast to an unsigned integer does it there: NaN is 2**63, infinity is 0.
    whole = np.where(ns < 2.0**64, ns, 0.0).astype(np.uint64).view(np.int64)
    return np.where(np.isnan(ns), NOT_A_NUMBER_NS, whole)


def _actions(w: Workload, system: SystemConfig, memory: RemoteMemory, p: dict[str, NDArray], refused: dict[int, str]) -> int:
    """Fill action, resource, duration and peer of every node; returns the number of shared remote memories."""
    kind, action, resource = w.kind, p["action"], p["resource"]
    is_mem = (kind == MEM_LOAD) | (kind == MEM_STORE)
    is_comm = (kind == COLL) | (kind == SEND) | (kind == RECV)
    resource[:] = layout.ON_NOTHING
    resource[kind == COMP] = layout.ON_COMP
    resource[(kind == COLL) | (kind == SEND) | is_mem] = layout.ON_COMM
    resource[w.is_cpu] = layout.ON_CPU
    action[:] = layout.ACT_TIMED
    p["duration_ns"][:] = _replay_ns(w)
    _refuse(w, kind == METADATA, "is a METADATA node, on which ASTRA-sim's statistics abort", action, refused)
    _refuse(w, kind > COLL, "has a node type that ASTRA-sim does not know", action, refused)
    if system.is_replay_only:
        return 0
    action[kind == INVALID] = layout.ACT_SKIP
    if system.has_roofline:
        rows = np.flatnonzero((kind == COMP) & ~w.is_cpu)
        p["duration_ns"][rows] = _roofline_ns(w, rows, system)
        action[rows[w.tensor_size[rows] == 0]] = layout.ACT_SKIP
        is_bare = (kind == COMP) & ~w.is_cpu & ((w.tensor_size == ABSENT) | (w.num_ops == ABSENT))
        _refuse(w, is_bare, "has no num_ops or tensor_size, which the roofline needs", action, refused)
    action[kind == SEND], action[kind == RECV] = layout.ACT_SEND, layout.ACT_RECEIVE
    action[(kind == COLL) & (w.comm_type != BROADCAST)] = layout.ACT_COLLECTIVE
    known = np.isin(w.comm_type, (*plans.COLLECTIVE_OF_WIRE, BROADCAST))
    _refuse(w, (kind == COLL) & ~known, "is a collective that ASTRA-sim does not simulate", action, refused)
    _refuse(w, is_comm & w.is_cpu, "is communication on the CPU, on which ASTRA-sim throws", action, refused)
    _refuse(w, is_comm & (w.comm_size == ABSENT), "has no comm_size", action, refused)
    _refuse(w, is_comm & (w.comm_size > MAX_BYTES), "moves more than 4 TiB", action, refused)
    _refuse(w, (kind == COLL) & (w.group == UNKNOWN_GROUP), "names a group that the group file does not have", action, refused)
    _peers(w, p, action, refused)
    return _memory(w, is_mem, memory, p, refused)


def _refuse(w: Workload, mask: NDArray[np.bool_], why: str, action: NDArray[np.int32], refused: dict[int, str]) -> None:
    rows = np.flatnonzero(mask & (action != layout.ACT_REFUSED))
    action[rows] = layout.ACT_REFUSED
    refused.update((int(row), why) for row in rows[:1000])


def _peers(w: Workload, p: dict[str, NDArray], action: NDArray[np.int32], refused: dict[int, str]) -> None:
    rank = p["rank"]
    is_send, is_recv = w.kind == SEND, w.kind == RECV
    p["peer"][is_send], p["peer"][is_recv] = w.dst[is_send], w.src[is_recv]
    p["tag"][:] = w.tag % 500_000_000
    is_foreign = (is_send & (w.src != ABSENT) & (w.src != rank)) | (is_recv & (w.dst != ABSENT) & (w.dst != rank))
    _refuse(w, is_foreign, "sends or receives for another rank", action, refused)
    _refuse(w, (is_send | is_recv) & (p["peer"] < 0), "does not say who the other side is", action, refused)
    _refuse(w, (is_send | is_recv) & (w.tag < 0), "has no comm_tag", action, refused)


def _memory(w: Workload, is_mem: NDArray[np.bool_], memory: RemoteMemory, p: dict[str, NDArray], refused: dict[int, str]) -> int:
    if not is_mem.any():
        return 0
    action = p["action"]
    if memory.kind == "NO_MEMORY_EXPANSION":
        _refuse(w, is_mem, "uses remote memory, of which there is none", action, refused)
        return 0
    _refuse(w, is_mem & (w.tensor_size == ABSENT), "has no tensor_size", action, refused)
    action[is_mem & (action != layout.ACT_REFUSED)] = layout.ACT_MEMORY
    p["duration_ns"][is_mem] = memory.latency_ns + w.tensor_size[is_mem] // memory.bytes_per_ns
    p["peer"][is_mem] = -1
    if memory.kind == "MEMORY_POOL":
        p["peer"][is_mem] = 0
        return 1
    if memory.kind == "PER_NODE_MEMORY_EXPANSION":
        server = p["rank"][is_mem] // memory.npus_per_node
        if server.max() >= memory.num_nodes:
            raise ClusterError(f"{memory.num_nodes} nodes of {memory.npus_per_node} NPUs are too few for the ranks")
        p["peer"][is_mem] = server
        return memory.num_nodes
    return 0


def _communicators(w: Workload, num_npus: int, network: Network) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Members of the world and of every group, and a row each. A group of all ranks runs in rank order."""
    members = [np.arange(num_npus, dtype=np.int64)]
    rows = np.zeros((len(w.groups) + 1, layout.NUM_COMM), np.int64)
    rows[0, layout.COMM_SIZE] = num_npus
    is_uniform = len(network.topology) == 1 and network.topology[0] != "Ring"
    start = num_npus
    for g, (ranks, number) in enumerate(zip(w.groups, w.group_ids, strict=True), 1):
        if len(ranks) == 0 or ranks.min() < 0 or ranks.max() >= num_npus:
            raise ClusterError(f"group {number} has ranks outside 0..{num_npus - 1}")
        is_world = len(ranks) == num_npus
        members.append(np.sort(ranks) if is_world else ranks)
        row = rows[g]
        row[layout.COMM_START], row[layout.COMM_SIZE] = start, len(ranks)
        row[layout.COMM_TAG_BASE] = number * 1_000_000
        row[layout.COMM_SHAPE] = 0 if is_world else (len(ranks) if is_uniform else num_npus + g)
        start += len(ranks)
    return np.concatenate(members).astype(np.int64), rows


def _member_index(w: Workload, rows: NDArray[np.int64], rank: NDArray[np.int32], members: NDArray[np.int64],
                  comms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each collective's rank among the members of its communicator; -1 where it is no member."""
    comm_of_member = np.repeat(np.arange(len(comms)), comms[:, layout.COMM_SIZE])
    npus = int(comms[0, layout.COMM_SIZE])
    keys = comm_of_member * npus + members
    order = np.argsort(keys, kind="stable")
    wanted = (w.group[rows].astype(np.int64) + 1) * npus + rank[rows]
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    index = order[at] - comms[w.group[rows] + 1, layout.COMM_START]
    return np.where(keys[order[at]] == wanted, index, -1)


def _chunks(w: Workload, rows: NDArray[np.int64], com: NDArray[np.int64], npus: int, splits: int) -> NDArray[np.int64]:
    """Bytes of a chunk and number of chunks of each collective."""
    size = w.comm_size[rows]
    chunk = size // splits
    is_tiny = (com != layout.ALL_GATHER) & (chunk < npus)
    chunk = np.where(is_tiny, npus, chunk)
    size = np.where(is_tiny, splits * npus, size)
    count = np.where(chunk > 0, -(-size // np.maximum(chunk, 1)), np.minimum(size, 1))
    return np.stack([chunk, count], axis=1)


def prepare(w: Workload, network: Network, system: SystemConfig, memory: RemoteMemory, options: Options) -> Prepared:
    """Check a workload against its network and system, and lay both out for the kernels."""
    _check_sizes(w, network, options)
    n = len(w)
    small, large = np.full((n, layout.NUM_SMALL), -1, np.int32), np.empty((n + 1, layout.NUM_LARGE), np.int64)
    small[:, layout.NODE_RANK] = np.repeat(np.arange(w.num_ranks, dtype=np.int32), np.diff(w.rank_start))
    p = {"rank": small[:, layout.NODE_RANK], "action": small[:, layout.NODE_ACTION], "peer": small[:, layout.NODE_PEER],
         "resource": small[:, layout.NODE_RESOURCE], "tag": small[:, layout.NODE_TAG],
         "duration_ns": large[:n, layout.NODE_DURATION]}
    refused: dict[int, str] = {}
    num_servers = _actions(w, system, memory, p, refused)
    members, comms = _communicators(w, network.num_npus, network)
    table, collectives = _collectives(w, network, system, members, comms, p, refused)
    small[:, layout.NODE_KEY], small[:, layout.NODE_AT_KEY] = _id_order(w)
    small[:, layout.NODE_WAITS] = np.diff(w.dep_start)
    small[collectives[:, layout.COLL_NODE], layout.NODE_COLLECTIVE] = np.arange(len(collectives))
    large[:n, layout.NODE_BYTES] = w.comm_size
    large[:, layout.NODE_CHILD], child = _children(w.dep_start, w.dep, n)
    return Prepared(
        tab=_tables(network, system, options, members, comms, collectives, table),
        rate=_rates(network, system),
        small=small,
        large=large,
        child=child,
        num_servers=num_servers,
        can_work_ahead=options.backend == "unaware" and not options.rendezvous and num_servers == 0 and table.is_whole,
        is_gpu_time=(p["action"] == layout.ACT_TIMED) & ~w.is_cpu & (system.is_replay_only | (w.kind == COMP)),
        refused=refused,
    )


def _check_sizes(w: Workload, network: Network, options: Options) -> None:
    npus = network.num_npus
    if npus > MAX_NPUS:
        raise ClusterError(f"{npus} NPUs; the simulator takes up to {MAX_NPUS}")
    if w.num_ranks < npus:
        raise TraceError(f"{npus} NPUs, but traces for {w.num_ranks} ranks", hint="ASTRA-sim needs a trace per NPU")
    if w.num_ranks > npus:
        raise TraceError(f"traces for {w.num_ranks} ranks, but {npus} NPUs", hint="give it the ranks of the network only")
    if options.backend not in ("unaware", "aware"):
        raise ClusterError(f"unknown backend `{options.backend}`", hint="known: unaware, aware")
    if options.num_queues_per_dim < 1:
        raise ClusterError(f"num_queues_per_dim must be at least 1, not {options.num_queues_per_dim}")
    if options.backend == "aware" and len(network.topology) > 1:
        raise ClusterError("the congestion-aware backend takes a network of one dimension only")
    if options.backend == "aware" and network.topology[0] == "Ring" and npus == 2:
        raise ClusterError("the congestion-aware backend aborts on a Ring of two NPUs", hint="use FullyConnected")
    w.check_dependencies()


@dataclass(slots=True)
class _Plans:
    start: list[int]
    rows: list[list[int]]
    key: list[int]
    is_whole: bool = True


def _collectives(w: Workload, network: Network, system: SystemConfig, members: NDArray[np.int64],
                 comms: NDArray[np.int64], p: dict[str, NDArray], refused: dict[int, str]) -> tuple[_Plans, NDArray[np.int64]]:
    """The collective table and the plans its rows point to."""
    rows = np.flatnonzero(p["action"] == layout.ACT_COLLECTIVE)
    table = _Plans(start=[0], rows=[], key=[])
    out = np.zeros((len(rows), layout.NUM_COLL), np.int64)
    if len(rows) == 0:
        return table, out
    if not system.splits:
        raise ClusterError("`preferred-dataset-splits` is missing or 0", hint="ASTRA-sim divides by it and dies")
    if system.has_shared_bus:
        raise ClusterError("`model-shared-bus` is not simulated")
    com = np.array([plans.COLLECTIVE_OF_WIRE.get(c, -1) for c in range(8)])[w.comm_type[rows]]
    index = _member_index(w, rows, p["rank"], members, comms)
    _refuse(w, _mask(len(w), rows[index < 0]), "runs on a group that its rank is not in", p["action"], refused)
    out[:, layout.COLL_NODE], out[:, layout.COLL_MEMBER] = rows, np.maximum(index, 0)
    out[:, layout.COLL_COMM] = w.group[rows] + 1
    out[:, [layout.COLL_CHUNK_BYTES, layout.COLL_CHUNKS]] = _chunks(w, rows, com, network.num_npus, system.splits)
    combined = (com * (len(comms) + 1) + w.group[rows] + 1) * 65536 + w.involved_dims[rows].astype(np.int64) + 1
    values, first, which = np.unique(combined, return_index=True, return_inverse=True)
    out[:, layout.COLL_PLAN] = which
    for at in first[: len(values)]:
        _add_plan(table, int(com[at]), int(w.group[rows[at]]), int(w.involved_dims[rows[at]]), network, system, comms)
    return table, out


def _mask(n: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(n, bool)
    mask[rows] = True
    return mask


def _add_plan(table: _Plans, com: int, group: int, mask: int, network: Network, system: SystemConfig,
              comms: NDArray[np.int64]) -> None:
    size = int(comms[group + 1, layout.COMM_SIZE])
    is_world = size == network.num_npus
    if is_world:
        rings = plans.world_rings(com, network, system)
        involved = plans.involved_dims(mask, len(rings)) if group == WORLD else [True] * len(rings)
    else:
        rings = plans.group_rings(com, size, int(comms[group + 1, layout.COMM_START]), system)
        involved = [True]
    rows = plans.phases_of(com, rings, involved, (system.optimization or "baseline") == "baseline")
    has_tree = any(row[layout.PLAN_IMPL] == layout.BINARY_TREE for row in rows)
    table.is_whole &= not rows or plans.covers(rows, size)
    table.rows += rows
    table.start.append(len(table.rows))
    key = (com * 2 + int(is_world)) * 65536 + (mask + 1 if group == WORLD else 0)
    table.key.append(-1 if has_tree else key)


def _tables(network: Network, system: SystemConfig, options: Options, members: NDArray[np.int64],
            comms: NDArray[np.int64], collectives: NDArray[np.int64], table: _Plans) -> NDArray[np.int64]:
    arena = Arena(layout.NUM_TAB)
    head, queues = arena.header, options.num_queues_per_dim
    endpoint = 10 if system.endpoint_delay_ns is None else int(int(system.endpoint_delay_ns) * options.injection_scale)
    head[layout.IS_AWARE], head[layout.NPUS] = options.backend == "aware", network.num_npus
    head[layout.DIMS], head[layout.ENDPOINT_NS] = len(network.topology), endpoint
    head[layout.QUEUES], head[layout.AT_ONCE] = queues, -(-system.active_chunks // queues)
    head[layout.HAS_RENDEZVOUS] = options.rendezvous
    head[layout.MAX_PHASES] = max(1, int(np.diff(table.start).max(initial=0)))
    kinds = {"Ring": layout.RINGED, "FullyConnected": layout.CONNECTED, "Switch": layout.SWITCHED}
    stride = np.cumprod([1, *network.npus_count[:-1]])
    dims = [[kinds[t], n, s] for t, n, s in zip(network.topology, network.npus_count, stride, strict=True)]
    key = np.array(table.key, np.int64)
    zeros = np.zeros(len(members), np.int64)
    arena.put(layout.TAB_DIMS, np.array(dims, np.int64))
    arena.put(layout.TAB_MEMBERS, members)
    arena.put(layout.TAB_PLAN_START, np.array(table.start, np.int64))
    arena.put(layout.TAB_PLANS, np.array(table.rows, np.int64))
    arena.put(layout.TAB_PLAN_KEY, np.full_like(key, -1) if queues > 1 else key)
    arena.put(layout.TAB_COLLECTIVES, collectives)
    arena.put(layout.TAB_COMMS, comms)
    for where in (layout.TAB_STREAMS, layout.TAB_JOINED_NS, layout.TAB_JOINED, layout.TAB_FINISH_NS, layout.TAB_REG_NS,
                  layout.TAB_SCRATCH):
        arena.put(where, zeros)
    arena.put(layout.TAB_CHUNKS_OPEN, np.ascontiguousarray(collectives[:, layout.COLL_CHUNKS]))
    arena.empty(layout.TAB_MEMO, layout.NUM_MEMOS, layout.NUM_MEMO)
    return arena.build()


def _rates(network: Network, system: SystemConfig) -> NDArray[np.float64]:
    rate = np.zeros(layout.NUM_RATE + 2 * len(network.topology))
    rate[layout.RATE_MEMORY] = (system.local_mem_gbyte_per_s or 0.0) * 1e9
    rate[layout.NUM_RATE :: 2] = [b * (1 << 30) / 1_000_000_000 for b in network.bandwidth_gibyte_per_s]
    rate[layout.NUM_RATE + 1 :: 2] = network.latency_ns
    return rate
