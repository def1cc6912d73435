"""Why a run hangs, and what in a finished one is a quirk of the original rather than a result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from etude.base.errors import DeadlockError
from etude.kernels.arrays import I64, distinct_values
from etude.model.schema import UNKNOWN
from etude.model.trace import COLL, RECV, SEND
from etude.run.astra import phases, state
from etude.run.astra.columns import RankedNodes
from etude.run.astra.config import AstraOptions, NetworkConfig, SystemConfig
from etude.run.astra.kernels import collective_table as tables
from etude.run.astra.kernels.binding import WORLD

MAX_LINES = 20


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{', ...' if len(ranks) > 8 else ''}"


def _collective_wait(w: RankedNodes, node: int, rank: int, start_ns: I64) -> str:
    c, group = w.columns, int(w.columns.group[node])
    members = list(range(w.num_ranks)) if group == WORLD else [int(r) for r in w.groups[group]]
    name = "all ranks" if group == WORLD else f"group {w.group_ids[group]}"
    if len(members) == 1:
        return f"a collective of {name}, which has one member: ASTRA-sim never completes it"
    mine = len(_started(w, node, rank, start_ns))
    joined = {r: _started(w, node, r, start_ns) for r in members}
    late = [r for r in members if len(joined[r]) < mine]
    if late:
        return f"collective {mine} of {name}, which {_ranks(late)} ha{'ve' if len(late) > 1 else 's'} not joined"
    wait = f"collective {mine} of {name}: all members have joined, but "
    for other in members:
        theirs = int(joined[other][mine - 1])
        if (c.collective[theirs], c.comm_bytes[theirs]) != (c.collective[node], c.comm_bytes[node]):
            return f"{wait}rank {other} with {_named(w, theirs)}, it with {_named(w, node)}"
    return f"{wait}with other stream numbers, or with an algorithm that cannot complete for this number of ranks"


def _started(w: RankedNodes, node: int, rank: int, start_ns: I64) -> I64:
    """The collectives of the node's group that a rank has started, in the order of their start."""
    c, rows = w.columns, w.rows_of(rank)
    same = (c.kind[rows] == COLL) & (c.group[rows] == c.group[node]) & (start_ns[rows] != UNKNOWN)
    found = rows.start + np.flatnonzero(same)
    return found[np.argsort(start_ns[found], kind="stable")]


def _named(w: RankedNodes, node: int) -> str:
    name = phases.COLLECTIVE_NAME.get(int(w.columns.collective[node]), "unknown collective")
    return f"an {name} of {w.columns.comm_bytes[node]} bytes"


def _message_cause(w: RankedNodes, node: int, rank: int, peer: int) -> str:
    """What the sender does instead of the send that a receive waits for."""
    if not 0 <= peer < w.num_ranks:
        return ", which does not exist"
    c, rows = w.columns, w.rows_of(peer)
    sends = rows.start + np.flatnonzero((c.kind[rows] == SEND) & (c.dst[rows] == rank))
    alike = sends[(c.tag[sends] == c.tag[node]) & (c.comm_bytes[sends] == c.comm_bytes[node])]
    if len(alike):
        own = w.rows_of(rank)
        is_same = (c.kind[own] == RECV) & (c.src[own] == peer) & (c.tag[own] == c.tag[node])
        wanted = int(np.count_nonzero(is_same & (c.comm_bytes[own] == c.comm_bytes[node])))
        return f", which sends {len(alike)} such for {wanted} receives" if len(alike) < wanted else ", not sent yet"
    near = sends[c.tag[sends] == c.tag[node]] if (c.tag[sends] == c.tag[node]).any() else sends
    if len(near):
        return f", which sends tag {c.tag[near[0]]}, {c.comm_bytes[near[0]]} bytes"
    return ", which sends nothing to it"


def _waits(w: RankedNodes, program: state.AstraProgram) -> Iterator[str]:
    c, nodes = w.columns, program.nodes[: len(w)]
    start_ns, end_ns = nodes["start_ns"], nodes["end_ns"]
    running = np.flatnonzero((start_ns != UNKNOWN) & (end_ns == UNKNOWN))
    stuck_ranks = set(nodes["rank"][running].tolist())
    for node in running[:MAX_LINES].tolist():
        rank, peer = int(nodes[node]["rank"]), int(nodes[node]["peer"])
        if c.kind[node] == RECV:
            wait = f"a message from rank {peer} (tag {c.tag[node]}, {c.comm_bytes[node]} bytes)"
            wait += _message_cause(w, node, rank, peer)
        elif c.kind[node] == SEND:
            wait = f"rank {peer} to be ready to receive (tag {c.tag[node]}, {c.comm_bytes[node]} bytes)"
        else:
            wait = _collective_wait(w, node, rank, start_ns)
        yield f"rank {rank}: {w.describe(node)} waits for {wait}"
    for node in running[MAX_LINES:].tolist():  # only counted
        yield w.describe(node)
    for rank in np.flatnonzero(program.lines["count"].sum(axis=1)).tolist():
        if rank not in stuck_ranks:
            yield (
                f"rank {rank}: nodes are ready after one that took no time (INVALID or of tensor_size 0), but "
                "ASTRA-sim looks for ready nodes only when something finishes"
            )


def explain_hang(w: RankedNodes, sim: state.Simulation, options: AstraOptions) -> DeadlockError:
    """Which ranks wait, at which node, for whom."""
    lines = list(_waits(w, sim.program))
    more = len(lines) - MAX_LINES
    text = "\n  ".join(lines[:MAX_LINES] + ([f"... and {more} more"] if more > 0 else []))
    finished = int(sim.machine.queue.clock["finished_ranks"][0])
    return DeadlockError(
        f"ASTRA-sim hangs without an error message: {finished} of {w.num_ranks} ranks finish\n  {text}",
        hint=_way_out(w, sim.program, options),
    )


def _way_out(w: RankedNodes, program: state.AstraProgram, options: AstraOptions) -> str:
    """What would make a hang end, by what the nodes that have started wait for."""
    c, nodes = w.columns, program.nodes[: len(w)]
    running = np.flatnonzero((nodes["start_ns"] != UNKNOWN) & (nodes["end_ns"] == UNKNOWN))
    waiting = distinct_values(c.group[running[c.kind[running] == COLL]])
    if any(len(w.groups[g]) == 1 for g in waiting.tolist() if g >= 0):
        return "a single rank has no peer: leave collectives of a group of one out of the trace"
    if WORLD in waiting and (c.group[c.kind == COLL] != WORLD).any():
        return (
            "collectives of a group advance the counter by which collectives of all ranks are matched: "
            "name a group of all ranks instead of none"
        )
    if options.rendezvous and (c.kind[running] == SEND).any():
        return "with the rendezvous protocol two ranks that both send first wait for each other"
    return ""


def quirks(
    w: RankedNodes, network: NetworkConfig, system: SystemConfig, options: AstraOptions, survey: I64, dropped: int
) -> Iterator[str]:
    """What a reader should know before believing the number. `dropped` nodes never ran."""
    ignored = [*network.ignored, *system.ignored]
    if ignored:
        yield f"keys that ASTRA-sim ignores: {', '.join(ignored)}"
    if dropped:
        yield f"{dropped} nodes never ran, being in or after a dependency cycle; ASTRA-sim drops them silently"
    yield from _workload_quirks(w, network, system, survey)
    if not system.is_replay_only and survey[tables.TYPE_COUNT : tables.TYPE_SMALLEST].any():
        yield from _collective_quirks(network, system, options, survey)


def _workload_quirks(w: RankedNodes, network: NetworkConfig, system: SystemConfig, survey: I64) -> Iterator[str]:
    if system.has_roofline and not system.is_replay_only and survey[tables.HAS_NO_OPS]:
        yield "a compute node with num_ops 0 takes 2**63 ns: 0 divided by 0 in the roofline"
    if survey[tables.HAS_CPU] or survey[tables.HAS_MEMORY]:
        yield "CPU and remote memory nodes: ASTRA-sim's statistics throw at the end of the rank, after the result"
    is_deep = len(network.npus_count) > 1
    if is_deep and (survey[tables.HAS_SEND] or any(1 < len(g) < network.num_npus for g in w.groups)):
        yield "a message between NPUs that differ in several dimensions is charged for the first of them only"
    if survey[tables.HAS_GROUP] and any(_shares_list(w, network, system, kind) for kind in phases.COLLECTIVE_NAME):
        yield (
            "a rank is in several groups, and its implementation list has one entry: ASTRA-sim frees that twice, and "
            "may abort after printing the results (with two entries it does not, but groups then run rings)"
        )


def _shares_list(w: RankedNodes, network: NetworkConfig, system: SystemConfig, kind: int) -> bool:
    """Whether a rank has collectives of a kind, whose list has one entry, in several groups that are not all ranks."""
    if len(system.algorithms.get(phases.COLLECTIVE_NAME[kind], ())) != 1:
        return False
    c, small = w.columns, np.array([1 < len(g) < network.num_npus for g in w.groups], np.bool_)
    rows = np.flatnonzero((c.kind == COLL) & (c.collective == kind) & (c.group >= 0))
    rows = rows[small[c.group[rows]]]
    rank = np.searchsorted(c.rank_start, rows, side="right")
    pairs = distinct_values(rank.astype(np.int64) << 32 | c.group[rows].astype(np.int64))
    return len(distinct_values(pairs >> 32)) < len(pairs)


def _collective_quirks(
    network: NetworkConfig, system: SystemConfig, options: AstraOptions, survey: I64
) -> Iterator[str]:
    if options.backend == "aware" and (system.custom or system.custom_nodes):
        yield "custom collectives: ASTRA-sim starts free nodes in the order of a hash table, here in file order"
    if not system.has_policy:
        yield "`scheduling-policy` is missing: ASTRA-sim reads uninitialised memory"
    if system.local_mem_gbyte_per_s is None:
        yield "`local-mem-bw` is missing: reductions cost nothing"
    if options.backend == "unaware" and system.active_chunks > 1:
        yield "active chunks do not share the links in this backend: bandwidth is multiplied"
    dims = len(network.npus_count)
    if dims > phases.DEFAULT_INVOLVED and survey[tables.HAS_WHOLE]:
        yield f"without `involved_dim` only the first {phases.DEFAULT_INVOLVED} of {dims} dimensions take part"
    for kind, name in phases.COLLECTIVE_NAME.items():
        if not survey[tables.TYPE_COUNT + kind]:
            continue
        listed = system.algorithms.get(name, ())
        if len(listed) < dims and not any(a.is_flat for a in listed):
            yield f"`{name}-implementation` has {len(listed)} entries for {dims} dimensions: the others are left out"
        if kind != state.ALL_REDUCE and any(a.name == "doubleBinaryTree" for a in listed):
            yield f"doubleBinaryTree runs an all-reduce instead of an {name}"
        if kind == state.ALL_REDUCE and dims > 1 and system.optimization is None:
            yield "`collective-optimization` is missing: ASTRA-sim reads uninitialised memory; baseline is used"
        smallest = int(survey[tables.TYPE_SMALLEST + kind])
        if kind != state.ALL_GATHER and system.splits and smallest // system.splits < network.num_npus:
            yield f"a small {name} is increased to `preferred-dataset-splits` times the number of NPUs"
