"""Everything a run needs, as arrays: every index that a kernel follows is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.errors import ClusterError, TraceError
from etude.astra import layout, plans
from etude.astra.abort import AstraAbort
from etude.astra.config import Network, RemoteMemory, SystemConfig
from etude.astra.custom import Tables, add_custom
from etude.astra.kernels import nodes, tables
from etude.astra.machine import Arena
from etude.astra.workload import WORLD, Workload

MAX_NPUS = 1 << 20
ALL_INVOLVED = -2  # as a mask of dimensions: whatever the node says
COLLECTIVE_OF_TYPE = np.array([plans.COLLECTIVE_OF_WIRE.get(c, -1) for c in range(tables.NUM_TYPES)], np.int64)


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
    survey: NDArray[np.int64]
    room: int


def _id_order(w: Workload, small: NDArray[np.int32]) -> None:
    """Correct the place of each node in ascending id order, where rows are in another one."""
    if nodes.is_ascending(w.rank_start, w.source_id):
        return
    order = np.empty(len(w), np.int32)
    twin = int(nodes.order_by_id(w.rank_start, w.source_id, small, order, np.empty_like(order)))
    if twin >= 0:
        raise TraceError(f"two nodes have the id {w.source_id[twin]}", where=f"rank {w.rank_of(twin)}")


def _pack(
    w: Workload, system: SystemConfig, memory: RemoteMemory
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """The node tables and the children of every node."""
    n = len(w)
    flags, rates = np.zeros(nodes.NUM_FLAGS, np.int64), np.zeros(2)
    flags[nodes.IS_REPLAY], flags[nodes.HAS_ROOFLINE] = system.is_replay_only, system.has_roofline
    kinds = {
        "PER_NPU_MEMORY_EXPANSION": nodes.PER_NPU,
        "PER_NODE_MEMORY_EXPANSION": nodes.PER_NODE,
        "MEMORY_POOL": nodes.POOL,
    }
    flags[nodes.MEMORY_KIND] = kinds.get(memory.kind, nodes.NO_MEMORY)
    flags[nodes.MEMORY_LATENCY], flags[nodes.MEMORY_BYTES_PER_NS] = memory.latency_ns, max(memory.bytes_per_ns, 1)
    flags[nodes.NPUS_PER_NODE] = max(memory.npus_per_node, 1)
    rates[nodes.RATE_PEAK], rates[nodes.RATE_LOCAL] = (
        system.peak_tflop_per_s * 1e12,
        (system.local_mem_gbyte_per_s or 0) * 1e9,
    )
    small, large = np.empty((n, layout.NUM_SMALL), np.int32), np.empty((n + 1, layout.NUM_LARGE), np.int64)
    nodes.pack(
        small,
        large,
        w.rank_start,
        w.kind,
        w.is_cpu,
        w.duration_us,
        w.num_ops,
        w.tensor_size,
        w.comm_type,
        w.comm_size,
        w.src,
        w.dst,
        w.tag,
        w.group,
        w.dep_start,
        flags,
        rates,
    )
    child = np.empty(len(w.dep), np.int32)
    nodes.link_children(w.dep_start, w.dep, large, layout.NODE_CHILD, child, np.empty(n, np.int64))
    return small, large, child


def _num_servers(w: Workload, memory: RemoteMemory, system: SystemConfig, survey: NDArray[np.int64]) -> int:
    """Remote memories that several ranks share."""
    if system.is_replay_only or not survey[tables.HAS_MEMORY]:
        return 0
    if memory.kind == "MEMORY_POOL":
        return 1
    if memory.kind != "PER_NODE_MEMORY_EXPANSION":
        return 0
    if memory.num_nodes * memory.npus_per_node < w.num_ranks:
        raise AstraAbort(f"{memory.num_nodes} nodes of {memory.npus_per_node} NPUs are too few for {w.num_ranks} ranks")
    return memory.num_nodes


def _survey(w: Workload) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """What kinds of nodes there are, and which groups are used."""
    found, is_used = np.zeros(tables.NUM_SURVEY, np.int64), np.zeros(len(w.groups), np.bool_)
    tables.survey(
        w.kind, w.is_cpu, w.num_ops, w.tensor_size, w.comm_type, w.comm_size, w.group, w.involved_dims, found, is_used
    )
    return found, is_used


def _communicators(
    w: Workload, network: Network, is_used: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Members of the world and of every group, and a row each. A group of all ranks runs in rank order."""
    npus = network.num_npus
    world = np.arange(npus, dtype=np.int64)
    rows = np.zeros((len(w.groups) + 1, layout.NUM_COMM), np.int64)
    rows[0, layout.COMM_SIZE] = npus
    if not is_used.any():
        return world, rows
    sizes = np.array([len(g) if used else 0 for g, used in zip(w.groups, is_used, strict=True)], np.int64)
    starts = npus + np.cumsum(sizes) - sizes
    members = np.concatenate([world, *(g for g, used in zip(w.groups, is_used, strict=True) if used)])
    if members.min() < 0 or members.max() >= npus or (sizes[is_used] == 0).any():
        for g, number, used in zip(w.groups, w.group_ids, is_used, strict=True):
            if used and (len(g) == 0 or g.min() < 0 or g.max() >= npus):
                raise AstraAbort(f"group {number} has ranks outside 0..{npus - 1}")
    is_world = sizes == npus
    for start in starts[is_world].tolist():
        members[start : start + npus] = world
    is_uniform = len(network.topology) == 1 and network.topology[0] != "Ring"
    shapes = sizes if is_uniform else npus + np.arange(1, len(rows))
    rows[1:, layout.COMM_START], rows[1:, layout.COMM_SIZE] = starts, sizes
    rows[1:, layout.COMM_TAG_BASE] = np.array(w.group_ids, np.int64) * 1_000_000
    rows[1:, layout.COMM_SHAPE] = np.where(is_world, 0, shapes)
    return members, rows


def prepare(
    w: Workload,
    network: Network,
    system: SystemConfig,
    memory: RemoteMemory,
    options: Options,
    custom: Mapping[str, Workload],
) -> Prepared:
    """Check a workload against its network and system, and lay both out for the kernels."""
    _check_sizes(w, network, options)
    w.check_dependencies()
    survey, is_used = _survey(w)
    num_servers = _num_servers(w, memory, system, survey)
    small, large, child = _pack(w, system, memory)
    _id_order(w, small)
    has_custom = bool(system.custom or system.custom_nodes)
    if has_custom:
        added = add_custom(w, system, Tables(small, large, child), custom)
        small, large, child = added.small, added.large, added.child
    members, comms = _communicators(w, network, is_used)
    table, collectives = _collectives(w, network, system, members, comms, small)
    return Prepared(
        tab=_tables(network, system, options, members, comms, collectives, table),
        rate=_rates(network, system),
        small=small,
        large=large,
        child=child,
        num_servers=num_servers,
        can_work_ahead=options.backend == "unaware"
        and not options.rendezvous
        and num_servers == 0
        and table.is_whole
        and not has_custom,
        survey=survey,
        room=_room(w.num_ranks, system, options, table),
    )


def _room(num_ranks: int, system: SystemConfig, options: Options, table: _Plans) -> int:
    """Messages that may be in flight at once: a guess, which the machine may outgrow."""
    widest = 1
    for row in table.rows:
        if row[layout.PLAN_IMPL] == layout.DIRECT:
            window = row[layout.PLAN_WINDOW] if row[layout.PLAN_WINDOW] >= 0 else row[layout.PLAN_SIZE]
            widest = max(widest, min(window, row[layout.PLAN_SIZE]))
    at_once = max(1, -(-system.active_chunks // options.num_queues_per_dim)) * options.num_queues_per_dim
    return max(256, min(1 << 22, (3 + widest * min(at_once, system.splits or 1)) * num_ranks))


def _check_sizes(w: Workload, network: Network, options: Options) -> None:
    npus = network.num_npus
    if npus > MAX_NPUS:
        raise ClusterError(f"{npus} NPUs; the simulator takes up to {MAX_NPUS}")
    if w.num_ranks < npus:
        raise AstraAbort(f"{npus} NPUs, but traces for {w.num_ranks} ranks", hint="ASTRA-sim needs a trace per NPU")
    if w.num_ranks > npus:
        raise TraceError(
            f"traces for {w.num_ranks} ranks, but {npus} NPUs", hint="give it the ranks of the network only"
        )
    if options.backend not in ("unaware", "aware"):
        raise ClusterError(f"unknown backend `{options.backend}`", hint="known: unaware, aware")
    if options.num_queues_per_dim < 1:
        raise ClusterError(f"num_queues_per_dim must be at least 1, not {options.num_queues_per_dim}")
    if not 0 <= options.injection_scale < 1e9:
        raise ClusterError(f"the injection scale must be 0 or more, not {options.injection_scale:g}")
    if options.backend == "aware" and len(network.topology) > 1:
        raise AstraAbort("the congestion-aware backend takes a network of one dimension only")
    if options.backend == "aware" and network.topology[0] == "Ring" and npus == 2:
        raise AstraAbort("the congestion-aware backend aborts on a Ring of two NPUs", hint="use FullyConnected")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Phases, a key that is the same where two plans take the same time, and whether they tie all members together."""

    rows: list[list[int]]
    key: int
    is_whole: bool
    is_world: bool


@dataclass(slots=True)
class _Plans:
    start: list[int]
    rows: list[list[int]]
    key: list[int]
    is_whole: bool = True

    def add(self, plan: _Plan, group_start: int) -> None:
        for row in plan.rows:
            mine = row.copy()
            mine[layout.PLAN_GROUP] = -1 if plan.is_world else group_start
            self.rows.append(mine)
        self.start.append(len(self.rows))
        self.key.append(plan.key)
        self.is_whole &= plan.is_whole


def _collectives(
    w: Workload,
    network: Network,
    system: SystemConfig,
    members: NDArray[np.int64],
    comms: NDArray[np.int64],
    small: NDArray[np.int32],
) -> tuple[_Plans, NDArray[np.int64]]:
    """The collective table and the plans its rows point to."""
    count = int(np.count_nonzero(small[: len(w), layout.NODE_ACTION] == layout.ACT_COLLECTIVE))
    table = _Plans(start=[0], rows=[], key=[])
    out = np.zeros((count, layout.NUM_COLL), np.int64)
    if count == 0:
        return table, out
    if not system.splits:
        raise AstraAbort("`preferred-dataset-splits` is missing or 0", hint="ASTRA-sim divides by it and dies")
    if system.has_shared_bus:
        raise ClusterError("`model-shared-bus` is not simulated here")
    first = np.zeros(count, np.int64)
    num_plans = tables.list_collectives(
        out, small, w.comm_type, w.comm_size, w.group, w.involved_dims, members, comms, COLLECTIVE_OF_TYPE,
        network.num_npus, system.splits, np.zeros(1 << (2 * count).bit_length(), np.int32), np.zeros(count, np.int64),
        first, np.zeros((len(comms), 2), np.int64),
    )  # fmt: skip
    known: dict[tuple[int, int, int], _Plan] = {}
    for node in first[:num_plans].tolist():
        com, group, mask = int(COLLECTIVE_OF_TYPE[w.comm_type[node]]), int(w.group[node]), int(w.involved_dims[node])
        start, size = int(comms[group + 1, layout.COMM_START]), int(comms[group + 1, layout.COMM_SIZE])
        kind = (com, size, mask if group == WORLD else ALL_INVOLVED)
        if kind not in known:
            known[kind] = _plan(*kind, network, system)
        table.add(known[kind], start)
    return table, out


def _plan(com: int, size: int, mask: int, network: Network, system: SystemConfig) -> _Plan:
    """The phases of a collective of the world or of a group of this size."""
    is_world = size == network.num_npus
    rings = plans.world_rings(com, network, system) if is_world else plans.group_rings(com, size, system)
    involved = [True] * len(rings) if mask == ALL_INVOLVED else plans.involved_dims(mask, len(rings))
    rows = plans.phases_of(com, rings, involved, (system.optimization or "baseline") == "baseline")
    has_tree = any(row[layout.PLAN_IMPL] == layout.BINARY_TREE for row in rows)
    key = (com * 2 + int(is_world)) * 65536 + (mask + 1 if mask != ALL_INVOLVED else 0)
    return _Plan(rows, -1 if has_tree else key, not rows or plans.covers(rows, size), is_world)


def _tables(
    network: Network,
    system: SystemConfig,
    options: Options,
    members: NDArray[np.int64],
    comms: NDArray[np.int64],
    collectives: NDArray[np.int64],
    table: _Plans,
) -> NDArray[np.int64]:
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
    arena.put(layout.TAB_DIMS, np.array(dims, np.int64))
    arena.put(layout.TAB_MEMBERS, members)
    arena.put(layout.TAB_PLAN_START, np.array(table.start, np.int64))
    arena.put(layout.TAB_PLANS, np.array(table.rows, np.int64))
    arena.put(layout.TAB_PLAN_KEY, np.full_like(key, -1) if queues > 1 else key)
    arena.put(layout.TAB_COLLECTIVES, collectives)
    arena.put(layout.TAB_COMMS, comms)
    for where in (
        layout.TAB_STREAMS,
        layout.TAB_JOINED_NS,
        layout.TAB_JOINED,
        layout.TAB_FINISH_NS,
        layout.TAB_REG_NS,
        layout.TAB_SCRATCH,
    ):
        arena.room(where, len(members))
    arena.put(layout.TAB_CHUNKS_OPEN, np.ascontiguousarray(collectives[:, layout.COLL_CHUNKS]))
    arena.room(layout.TAB_MEMO, layout.NUM_MEMOS * layout.NUM_MEMO)
    return arena.build()


def _rates(network: Network, system: SystemConfig) -> NDArray[np.float64]:
    rate = np.zeros(layout.NUM_RATE + 2 * len(network.topology))
    rate[layout.RATE_MEMORY] = (system.local_mem_gbyte_per_s or 0.0) * 1e9
    rate[layout.NUM_RATE :: 2] = [b * (1 << 30) / 1_000_000_000 for b in network.bandwidth_gibyte_per_s]
    rate[layout.NUM_RATE + 1 :: 2] = network.latency_ns
    return rate
