"""Lay out collectives that are given as traces behind the nodes of the workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I32, I64
from etude.model.schema import UNKNOWN, Kind
from etude.run.astra import phases, state
from etude.run.astra.abort import AstraAbort
from etude.run.astra.columns import RankedNodes
from etude.run.astra.config import SystemConfig
from etude.run.astra.kernels.binding import WORLD
from etude.run.astra.state import Records

ACTION = {Kind.SEND: state.ACT_SEND, Kind.RECV: state.ACT_RECEIVE, Kind.COMP: state.ACT_TIMED}


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Nodes, one record more than there are, and their children: state.AstraProgram says how."""

    nodes: Records
    child: I32


@dataclass(frozen=True, slots=True)
class _Instance:
    """One copy of a rank's part of a custom collective; children as rows of the whole table, and how many each has."""

    nodes: Records
    child: I32
    children: I64


def _prefix_of(w: RankedNodes, node: int, system: SystemConfig) -> str:
    """The traces that describe a collective node; those of one node win over those of its kind."""
    if int(w.columns.source_id[node]) in system.custom_nodes:
        return system.custom_nodes[int(w.columns.source_id[node])]
    return system.custom.get(phases.COLLECTIVE_NAME.get(int(w.columns.collective[node]), ""), "")


def add_custom(w: RankedNodes, system: SystemConfig, table: NodeTable, traces: Mapping[str, RankedNodes]) -> NodeTable:
    """Give every collective that a trace describes its own copy of that trace's nodes."""
    if not system.splits:
        raise AstraAbort("`preferred-dataset-splits` is missing or 0", hint="ASTRA-sim divides by it and crashes")
    own = table.nodes[: len(w)]
    added: list[_Instance] = []
    rows = len(w)
    for node in np.flatnonzero(own["action"] == state.ACT_COLLECTIVE).tolist():
        prefix = _prefix_of(w, node, system)
        if not prefix:
            continue
        added.append(_instance(w, node, _trace_of(prefix, traces), rows))
        count = len(added[-1].nodes)
        own[node]["action"], own[node]["peer"], own[node]["collective"] = state.ACT_CUSTOM, rows, count
        # Every chunk is waited for, but one stream is all that runs: with more than one, a hang.
        own[node]["tag"] = count if system.splits == 1 else count + 1
        rows += count
    nodes = np.zeros(rows + 1, state.NODE)
    nodes[:rows] = np.concatenate([own, *(a.nodes for a in added)])
    counts = np.concatenate([np.diff(table.nodes["child_start"]), *(a.children for a in added)])
    nodes["child_start"][1:] = np.cumsum(counts)
    return NodeTable(nodes, np.concatenate([table.child, *(a.child for a in added)]))


def _trace_of(prefix: str, traces: Mapping[str, RankedNodes]) -> RankedNodes:
    if prefix not in traces:
        raise AstraAbort(f"the custom collective `{prefix}` was not given", hint="its files are `<prefix>.<rank>.et`")
    return traces[prefix]


def _instance(w: RankedNodes, node: int, trace: RankedNodes, first_row: int) -> _Instance:
    rank, group, c = w.rank_of(node), int(w.columns.group[node]), trace.columns
    members = np.arange(w.num_ranks) if group == WORLD else w.groups[group]
    position = int(np.flatnonzero(members == rank).max(initial=-1))
    if position < 0:
        raise AstraAbort(f"{w.describe(node)} runs on a group that its rank is not in", where=f"rank {rank}")
    if position >= trace.num_ranks:
        raise AstraAbort(f"the custom collective has no trace for member {position}", where=f"rank {rank}")
    part = trace.rows_of(position)
    kind, n = c.kind[part], part.stop - part.start
    peer = np.where(kind == Kind.SEND, c.dst[part], c.src[part])
    is_message = (kind == Kind.SEND) | (kind == Kind.RECV)
    if (is_message & ((peer < 0) | (peer >= len(members)))).any():
        raise AstraAbort("the custom collective names a rank outside the group", where=f"rank {rank}")
    nodes = np.zeros(n, state.NODE)
    nodes["rank"], nodes["resource"], nodes["collective"] = rank, state.IN_CUSTOM, node
    nodes["key"] = nodes["at_key"] = -1
    nodes["start_ns"] = nodes["end_ns"] = UNKNOWN
    nodes["peer"] = np.where(is_message, members[np.where(is_message, peer, 0)], -1)
    nodes["action"] = [ACTION.get(k, state.ACT_REFUSED) for k in kind.tolist()]
    nodes["tag"] = np.maximum(c.tag[part], 0)
    us = (np.maximum(c.duration_ns[part], 0) + 500) // 1000
    nodes["duration_ns"], nodes["bytes"] = np.where(us > 0, us * 1000, 1), c.comm_bytes[part]
    waits = np.diff(c.dep_start[part.start : part.stop + 1])
    nodes["waits"] = waits
    parent = c.dep[c.dep_start[part.start] : c.dep_start[part.stop]] - part.start
    if (parent < 0).any():
        raise AstraAbort("the custom collective waits for a node that is not in its trace", where=f"rank {rank}")
    child = np.repeat(np.arange(n), waits)[np.argsort(parent, kind="stable")] + first_row
    return _Instance(nodes, child.astype(np.int32), np.bincount(parent, minlength=n))
