"""Why a run hangs, and what in a finished one is a quirk of the original rather than a result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from etude.errors import DeadlockError
from etude.model.schema import UNKNOWN
from etude.astra import layout, plans
from etude.astra.config import Network, SystemConfig
from etude.astra.kernels import tables
from etude.astra.machine import line_table
from etude.astra.prepare import Options
from etude.astra.workload import COLL, RECV, SEND, WORLD, Workload

I64 = NDArray[np.int64]
MAX_LINES = 20


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{', ...' if len(ranks) > 8 else ''}"


def _collective_wait(w: Workload, node: int, rank: int, start_ns: NDArray[np.int64]) -> str:
    group = int(w.group[node])
    members = list(range(w.num_ranks)) if group == WORLD else [int(r) for r in w.groups[group]]
    name = "all ranks" if group == WORLD else f"group {w.group_ids[group]}"
    if len(members) == 1:
        return f"a collective of {name}, which has one member: ASTRA-sim never ends it"
    mine = len(_started(w, node, rank, start_ns))
    joined = {r: _started(w, node, r, start_ns) for r in members}
    late = [r for r in members if len(joined[r]) < mine]
    if late:
        return f"collective {mine} of {name}, which {_ranks(late)} ha{'ve' if len(late) > 1 else 's'} not joined"
    wait = f"collective {mine} of {name}: all members have joined, but "
    for other in members:
        theirs = int(joined[other][mine - 1])
        if (w.comm_type[theirs], w.comm_size[theirs]) != (w.comm_type[node], w.comm_size[node]):
            return f"{wait}rank {other} with {_named(w, theirs)}, it with {_named(w, node)}"
    return f"{wait}with other stream numbers, or with an algorithm that cannot end for this number of ranks"


def _started(w: Workload, node: int, rank: int, start_ns: I64) -> I64:
    """The collectives of the node's group that a rank has started, in the order of their start."""
    first = int(w.rank_start[rank])
    rows = slice(first, int(w.rank_start[rank + 1]))
    same = (w.kind[rows] == COLL) & (w.group[rows] == w.group[node]) & (start_ns[rows] != UNKNOWN)
    found = first + np.flatnonzero(same)
    return found[np.argsort(start_ns[found], kind="stable")]


def _named(w: Workload, node: int) -> str:
    com = plans.COLLECTIVE_OF_WIRE.get(int(w.comm_type[node]))
    return f"an {plans.COLLECTIVE_NAME[com] if com is not None else 'unknown collective'} of {w.comm_size[node]} bytes"


def _message_cause(w: Workload, node: int, rank: int, peer: int) -> str:
    """What the sender does instead of the send that a receive waits for."""
    if not 0 <= peer < w.num_ranks:
        return ", which does not exist"
    first = int(w.rank_start[peer])
    rows = slice(first, int(w.rank_start[peer + 1]))
    sends = first + np.flatnonzero((w.kind[rows] == SEND) & (w.dst[rows] == rank))
    alike = sends[(w.tag[sends] == w.tag[node]) & (w.comm_size[sends] == w.comm_size[node])]
    if len(alike):
        own = slice(int(w.rank_start[rank]), int(w.rank_start[rank + 1]))
        is_same = (w.kind[own] == RECV) & (w.src[own] == peer) & (w.tag[own] == w.tag[node])
        wanted = int(np.count_nonzero(is_same & (w.comm_size[own] == w.comm_size[node])))
        return f", which sends {len(alike)} such for {wanted} receives" if len(alike) < wanted else ", not sent yet"
    near = sends[w.tag[sends] == w.tag[node]] if (w.tag[sends] == w.tag[node]).any() else sends
    if len(near):
        return f", which sends tag {w.tag[near[0]]}, {w.comm_size[near[0]]} bytes"
    return ", which sends it nothing"


def _waits(w: Workload, mem: I64, small: NDArray[np.int32], large: I64) -> Iterator[str]:
    start_ns, end_ns = large[: len(w), layout.NODE_START], large[: len(w), layout.NODE_END]
    running = np.flatnonzero((start_ns != UNKNOWN) & (end_ns == UNKNOWN))
    stuck_ranks = set(small[running, layout.NODE_RANK].tolist())
    for node in running[:MAX_LINES].tolist():
        rank, peer = int(small[node, layout.NODE_RANK]), int(small[node, layout.NODE_PEER])
        if w.kind[node] == RECV:
            wait = f"a message from rank {peer} (tag {w.tag[node]}, {w.comm_size[node]} bytes)"
            wait += _message_cause(w, node, rank, peer)
        elif w.kind[node] == SEND:
            wait = f"rank {peer} to be ready to receive (tag {w.tag[node]}, {w.comm_size[node]} bytes)"
        else:
            wait = _collective_wait(w, node, rank, start_ns)
        yield f"rank {rank}: {w.describe(node)} waits for {wait}"
    for node in running[MAX_LINES:].tolist():  # only counted
        yield w.describe(node)
    counts = line_table(mem, w.num_ranks)[:, :, layout.LINE_COUNT]
    for rank in np.flatnonzero(counts.sum(axis=1)).tolist():
        if rank not in stuck_ranks:
            yield (
                f"rank {rank}: nodes are ready behind one that took no time (INVALID or of tensor_size 0), but "
                "ASTRA-sim looks for ready nodes only when something finishes"
            )


def explain_hang(w: Workload, mem: I64, small: NDArray[np.int32], large: I64, options: Options) -> DeadlockError:
    """Which ranks wait, at which node, for whom."""
    lines = list(_waits(w, mem, small, large))
    more = len(lines) - MAX_LINES
    text = "\n  ".join(lines[:MAX_LINES] + ([f"... and {more} more"] if more > 0 else []))
    finished = int(mem[layout.FINISHED_RANKS])
    hint = ""
    groups = np.unique(w.group[w.kind == COLL])
    if WORLD in groups and len(groups) > 1:
        hint = (
            "collectives of a group advance the counter by which collectives of all ranks are matched: "
            "name a group of all ranks instead of none"
        )
    elif options.rendezvous:
        hint = "with the rendezvous protocol two ranks that both send first wait for each other"
    return DeadlockError(
        f"ASTRA-sim hangs without a word: {finished} of {w.num_ranks} ranks finish\n  {text}", hint=hint
    )


def quirks(
    w: Workload, network: Network, system: SystemConfig, options: Options, survey: I64, dropped: int
) -> Iterator[str]:
    """What a reader should know before believing the number. `dropped` nodes never ran."""
    ignored = [*network.ignored, *system.ignored]
    if ignored:
        yield f"keys that ASTRA-sim ignores: {', '.join(ignored)}"
    if dropped:
        yield f"{dropped} nodes never ran, being in or behind a dependency cycle; ASTRA-sim drops them without a word"
    yield from _workload_quirks(w, network, system, survey)
    if not system.is_replay_only and survey[tables.TYPE_COUNT : tables.TYPE_SMALLEST].any():
        yield from _collective_quirks(network, system, options, survey)


def _workload_quirks(w: Workload, network: Network, system: SystemConfig, survey: I64) -> Iterator[str]:
    if system.has_roofline and not system.is_replay_only and survey[tables.HAS_NO_OPS]:
        yield "a compute node with num_ops 0 takes 2**63 ns: 0 divided by 0 in the roofline"
    if survey[tables.HAS_CPU] or survey[tables.HAS_MEMORY]:
        yield "CPU and remote memory nodes: ASTRA-sim's statistics throw at the end of the rank, after the result"
    is_deep = len(network.npus_count) > 1
    if is_deep and (survey[tables.HAS_SEND] or any(1 < len(g) < network.num_npus for g in w.groups)):
        yield "a message between NPUs that differ in several dimensions is charged for the first of them only"
    if survey[tables.HAS_GROUP] and any(len(a) == 1 for a in system.algorithms.values()):
        yield "groups with one-entry implementation lists: ASTRA-sim aborts after printing the results"


def _collective_quirks(network: Network, system: SystemConfig, options: Options, survey: I64) -> Iterator[str]:
    if options.backend == "aware" and (system.custom or system.custom_nodes):
        yield "custom collectives: ASTRA-sim starts free nodes in the order of a hash table, here it is file order"
    if not system.has_policy:
        yield "`scheduling-policy` is missing: ASTRA-sim reads memory that was never set"
    if system.local_mem_gbyte_per_s is None:
        yield "`local-mem-bw` is missing: reductions cost nothing"
    if options.backend == "unaware" and system.active_chunks > 1:
        yield "active chunks do not share the links in this backend: bandwidth is multiplied"
    dims = len(network.npus_count)
    if dims > plans.DEFAULT_INVOLVED and survey[tables.HAS_WHOLE]:
        yield f"without `involved_dim` only the first {plans.DEFAULT_INVOLVED} of {dims} dimensions take part"
    for com, wire in sorted((com, wire) for wire, com in plans.COLLECTIVE_OF_WIRE.items()):
        if not survey[tables.TYPE_COUNT + wire]:
            continue
        name = plans.COLLECTIVE_NAME[com]
        listed = system.algorithms.get(name, ())
        if len(listed) < dims and not any(a.is_flat for a in listed):
            yield f"`{name}-implementation` has {len(listed)} entries for {dims} dimensions: the others are left out"
        if com != layout.ALL_REDUCE and any(a.name == "doubleBinaryTree" for a in listed):
            yield f"doubleBinaryTree runs an all-reduce instead of an {name}"
        if com == layout.ALL_REDUCE and dims > 1 and system.optimization is None:
            yield "`collective-optimization` is missing: ASTRA-sim reads memory that was never set; baseline is taken"
        smallest = int(survey[tables.TYPE_SMALLEST + wire])
        if com != layout.ALL_GATHER and system.splits and smallest // system.splits < network.num_npus:
            yield f"a small {name} is blown up to `preferred-dataset-splits` times the number of NPUs"
