"""Everything a run needs, as tables: every index that a kernel follows is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, TraceError
from etude.kernels.arrays import I32, I64
from etude.run.astra import phases, state
from etude.run.astra.abort import AstraAbort
from etude.run.astra.columns import RankedNodes
from etude.run.astra.config import AstraOptions, NetworkConfig, RemoteMemoryConfig, SystemConfig
from etude.run.astra.custom_collectives import NodeTable, add_custom
from etude.run.astra.kernels import collective_table, node_table
from etude.run.astra.kernels.binding import WORLD
from etude.run.astra.phases import PhaseTemplate
from etude.run.astra.state import Records

MAX_NPUS = 1 << 20
ALL_INVOLVED = -2  # as a mask of dimensions: whatever the node says
MEMORY_KIND = {
    "PER_NPU_MEMORY_EXPANSION": node_table.PER_NPU,
    "PER_NODE_MEMORY_EXPANSION": node_table.PER_NODE,
    "MEMORY_POOL": node_table.POOL,
}
DIMENSION_KIND = {"Ring": state.RINGED, "FullyConnected": state.CONNECTED, "Switch": state.SWITCHED}


@dataclass(slots=True, kw_only=True)
class Prepared:
    """The constants and tables of a run, as state.py describes them. Those that a run changes are copied for it; of
    the nodes, `waits` and `tag` keep what it changes."""

    settings: Records
    dims: Records
    plan_start: I64
    plan_key: I64
    templates: Records
    members: I64
    communicators: Records
    collectives: Records
    nodes: Records
    waits: I32
    tag: I32
    child: I32
    rank_start: I64
    num_servers: int
    can_work_ahead: bool
    survey: I64
    room: int
    """Messages that may be in flight at once: a guess, which the machine may outgrow."""


def prepare(
    w: RankedNodes,
    network: NetworkConfig,
    system: SystemConfig,
    options: AstraOptions,
    custom: Mapping[str, RankedNodes],
) -> Prepared:
    """Check nodes against their network and system, and lay both out for the kernels."""
    _check_options(network, options)
    _check_nodes(w)
    survey, is_used = np.zeros(collective_table.NUM_SURVEY, np.int64), np.zeros(len(w.groups), np.bool_)
    collective_table.survey(w.columns, survey, is_used)
    num_servers = _num_servers(w, options.remote_memory, system, survey)
    table = _node_table(w, system, options.remote_memory)
    has_custom = bool(system.custom or system.custom_nodes)
    if has_custom:
        table = add_custom(w, system, table, custom)
    members, communicators = _communicators(w, network, is_used)
    plans, collectives = _collectives(w, network, system, members, communicators, table.nodes)
    key = np.array(plans.key, np.int64)
    return Prepared(
        settings=_settings(network, system, options),
        dims=_dims(network),
        plan_start=np.array(plans.start, np.int64),
        plan_key=np.full_like(key, -1) if options.num_queues_per_dim > 1 else key,
        templates=np.array([t.as_record() for t in plans.templates], state.TEMPLATE),
        members=members,
        communicators=communicators,
        collectives=collectives,
        nodes=table.nodes,
        waits=table.nodes["waits"].copy(),
        tag=table.nodes["tag"].copy(),
        child=table.child,
        rank_start=w.columns.rank_start,
        num_servers=num_servers,
        can_work_ahead=options.backend == "unaware"
        and not (options.rendezvous or num_servers or has_custom)
        and plans.is_whole,
        survey=survey,
        room=_room(w.num_ranks, system, options, plans),
    )


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_options(network: NetworkConfig, options: AstraOptions) -> None:
    npus = network.num_npus
    if npus > MAX_NPUS:
        raise ClusterError(f"{npus} NPUs; the simulator supports up to {MAX_NPUS}")
    if options.backend not in ("unaware", "aware"):
        raise ClusterError(f"unknown backend `{options.backend}`", hint="known: unaware, aware")
    if options.num_queues_per_dim < 1:
        raise ClusterError(f"num_queues_per_dim must be at least 1, not {options.num_queues_per_dim}")
    if not 0 <= options.injection_scale < 1e9:
        raise ClusterError(f"the injection scale must be 0 or more, not {options.injection_scale:g}")
    if options.backend == "aware" and len(network.topology) > 1:
        raise AstraAbort("the congestion-aware backend supports only one network dimension")
    if options.backend == "aware" and network.topology[0] == "Ring" and npus == 2:
        raise AstraAbort("the congestion-aware backend aborts on a Ring of two NPUs", hint="use FullyConnected")


def _check_nodes(w: RankedNodes) -> None:
    """Every rank has a node that can start, and every dependency is a node of the same rank."""
    c = w.columns
    rank = int(node_table.first_stuck_rank(c))
    if rank >= 0:
        is_empty = c.rank_start[rank] == c.rank_start[rank + 1]
        raise AstraAbort(
            "the trace has no nodes" if is_empty else "every node waits for another one", where=f"rank {rank}"
        )
    at = int(node_table.first_bad_dependency(c))
    if at >= 0:
        node = int(np.searchsorted(c.dep_start, at, side="right")) - 1
        problem = f"node {c.source_id[node]} waits for a node that is not in the trace"
        raise AstraAbort(problem, where=f"rank {w.rank_of(node)}", hint="ASTRA-sim aborts on such a trace")


# --- nodes ------------------------------------------------------------------------------------------------------------


def _node_table(w: RankedNodes, system: SystemConfig, memory: RemoteMemoryConfig) -> NodeTable:
    c, costs = w.columns, np.zeros(1, node_table.COSTS)
    costs["is_replay"], costs["has_roofline"] = system.is_replay_only, system.has_roofline
    costs["memory"] = MEMORY_KIND.get(memory.kind, node_table.NO_MEMORY)
    costs["memory_latency_ns"], costs["memory_bytes_per_ns"] = memory.latency_ns, max(memory.bytes_per_ns, 1)
    costs["npus_per_node"] = max(memory.npus_per_node, 1)
    costs["peak_per_s"] = system.peak_tflop_per_s * 1e12
    costs["local_bytes_per_s"] = (system.local_mem_gbyte_per_s or 0) * 1e9
    nodes, child = np.empty(len(w) + 1, state.NODE), np.empty(len(c.dep), np.int32)
    node_table.fill_nodes(nodes, c, costs)
    node_table.link_children(nodes, c, child)
    if not node_table.is_ascending(c):
        rank = np.repeat(np.arange(w.num_ranks), np.diff(c.rank_start))
        twin = int(node_table.place_by_id(nodes, c, np.lexsort((c.source_id, rank))))
        if twin >= 0:
            raise TraceError(f"two nodes have the id {c.source_id[twin]}", where=f"rank {w.rank_of(twin)}")
    return NodeTable(nodes, child)


def _num_servers(w: RankedNodes, memory: RemoteMemoryConfig, system: SystemConfig, survey: I64) -> int:
    """Remote memories that several ranks share."""
    if system.is_replay_only or not survey[collective_table.HAS_MEMORY]:
        return 0
    if memory.kind == "MEMORY_POOL":
        return 1
    if memory.kind != "PER_NODE_MEMORY_EXPANSION":
        return 0
    if memory.num_nodes * memory.npus_per_node < w.num_ranks:
        raise AstraAbort(f"{memory.num_nodes} nodes of {memory.npus_per_node} NPUs are too few for {w.num_ranks} ranks")
    return memory.num_nodes


# --- communicators and collectives ------------------------------------------------------------------------------------


def _communicators(w: RankedNodes, network: NetworkConfig, is_used: NDArray[np.bool_]) -> tuple[I64, Records]:
    """Members of the world and of every group, and a record each. A group of all ranks runs in rank order."""
    npus = network.num_npus
    world = np.arange(npus, dtype=np.int64)
    records = np.zeros(len(w.groups) + 1, state.COMMUNICATOR)
    records[0]["size"] = npus
    if not is_used.any():
        return world, records
    used = [g if u else g[:0] for g, u in zip(w.groups, is_used.tolist(), strict=True)]
    for g, number, u in zip(used, w.group_ids, is_used.tolist(), strict=True):
        if u and (len(g) == 0 or g.min() < 0 or g.max() >= npus):
            raise AstraAbort(f"group {number} has ranks outside 0..{npus - 1}")
    sizes = np.array([len(g) for g in used], np.int64)
    is_world = sizes == npus
    members = np.concatenate(
        [world, *(world if whole else g for g, whole in zip(used, is_world.tolist(), strict=True))]
    )
    is_uniform = len(network.topology) == 1 and network.topology[0] != "Ring"
    shapes = sizes if is_uniform else npus + np.arange(1, len(records))
    groups = records[1:]
    groups["start"], groups["size"] = npus + np.cumsum(sizes) - sizes, sizes
    groups["tag_base"] = np.array(w.group_ids, np.int64) * 1_000_000
    groups["shape"] = np.where(is_world, 0, shapes)
    return members, records


@dataclass(frozen=True, slots=True)
class _PhasePlan:
    """Phases, a key that is the same where two plans take the same time, and whether they tie all members together."""

    templates: list[PhaseTemplate]
    key: int
    is_whole: bool
    is_world: bool


@dataclass(slots=True)
class _Plans:
    start: list[int] = field(default_factory=lambda: [0])
    templates: list[PhaseTemplate] = field(default_factory=list)
    key: list[int] = field(default_factory=list)
    is_whole: bool = True

    def add(self, plan: _PhasePlan, group_start: int) -> None:
        self.templates += [t if plan.is_world else t.of_group(group_start) for t in plan.templates]
        self.start.append(len(self.templates))
        self.key.append(plan.key)
        self.is_whole &= plan.is_whole


def _collectives(
    w: RankedNodes, network: NetworkConfig, system: SystemConfig, members: I64, communicators: Records, nodes: Records
) -> tuple[_Plans, Records]:
    """The table of collectives and the plans its records point to."""
    c, plans = w.columns, _Plans()
    count = int(np.count_nonzero(nodes["action"][: len(w)] == state.ACT_COLLECTIVE))
    collectives = np.zeros(count, state.COLLECTIVE)
    if count == 0:
        return plans, collectives
    if not system.splits:
        raise AstraAbort("`preferred-dataset-splits` is missing or 0", hint="ASTRA-sim divides by it and crashes")
    if system.has_shared_bus:
        raise ClusterError("`model-shared-bus` is not simulated here")
    index = collective_table.PlanIndex(
        splits=system.splits,
        slots=np.zeros(1 << (2 * count).bit_length(), np.int32),
        key=np.zeros(count, np.int64),
        first=np.zeros(count, np.int64),
        seen=np.zeros((len(communicators), 2), np.int64),
    )
    num_plans = collective_table.list_collectives(collectives, nodes, c, members, communicators, index)
    known: dict[tuple[int, int, int], _PhasePlan] = {}
    for node in index.first[:num_plans].tolist():
        group, communicator = int(c.group[node]), communicators[c.group[node] + 1]
        mask = int(c.involved_dims[node]) if group == WORLD else ALL_INVOLVED
        kind = (int(c.collective[node]), int(communicator["size"]), mask)
        if kind not in known:
            known[kind] = _plan(*kind, network, system)
        plans.add(known[kind], int(communicator["start"]))
    return plans, collectives


def _plan(collective: int, size: int, mask: int, network: NetworkConfig, system: SystemConfig) -> _PhasePlan:
    """The phases of a collective of the world or of a group of this size."""
    is_world = size == network.num_npus
    if is_world:
        rings = phases.world_rings(collective, network, system)
    else:
        rings = phases.group_rings(collective, size, system)
    involved = [True] * len(rings) if mask == ALL_INVOLVED else phases.involved_dims(mask, len(rings))
    templates = phases.phases_of(collective, rings, involved, (system.optimization or "baseline") == "baseline")
    has_tree = any(t.algorithm == state.BINARY_TREE for t in templates)
    key = (collective * 2 + int(is_world)) * 65536 + (mask + 1 if mask != ALL_INVOLVED else 0)
    return _PhasePlan(templates, -1 if has_tree else key, not templates or phases.covers(templates, size), is_world)


# --- constants --------------------------------------------------------------------------------------------------------


def _settings(network: NetworkConfig, system: SystemConfig, options: AstraOptions) -> Records:
    settings, queues = np.zeros(1, state.SETTINGS), options.num_queues_per_dim
    endpoint = 10 if system.endpoint_delay_ns is None else int(int(system.endpoint_delay_ns) * options.injection_scale)
    settings["is_aware"], settings["npus"] = options.backend == "aware", network.num_npus
    settings["endpoint_ns"], settings["has_rendezvous"] = endpoint, options.rendezvous
    settings["queues"], settings["at_once"] = queues, -(-system.active_chunks // queues)
    settings["memory_bytes_per_s"] = (system.local_mem_gbyte_per_s or 0.0) * 1e9
    return settings


def _dims(network: NetworkConfig) -> Records:
    dims = np.zeros(len(network.topology), state.DIMENSION)
    dims["kind"] = [DIMENSION_KIND[t] for t in network.topology]
    dims["size"], dims["stride"] = network.npus_count, np.cumprod([1, *network.npus_count[:-1]])
    dims["bytes_per_ns"] = [b * (1 << 30) / 1_000_000_000 for b in network.bandwidth_gibyte_per_s]
    dims["latency_ns"] = network.latency_ns
    return dims


def _room(num_ranks: int, system: SystemConfig, options: AstraOptions, plans: _Plans) -> int:
    widest = 1
    for t in plans.templates:
        if t.algorithm == state.DIRECT:
            widest = max(widest, min(t.window if t.window >= 0 else t.size, t.size))
    at_once = max(1, -(-system.active_chunks // options.num_queues_per_dim)) * options.num_queues_per_dim
    return max(256, min(1 << 22, (3 + widest * min(at_once, system.splits or 1)) * num_ranks))
