"""Lay out collectives that are given as traces behind the nodes of the workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.astra import layout, plans
from etude.astra.abort import AstraAbort
from etude.astra.config import SystemConfig
from etude.astra.workload import COLL, COMP, RECV, SEND, WORLD, Workload

TAG_RANGE = 500_000_000
ACTION = {SEND: layout.ACT_SEND, RECV: layout.ACT_RECEIVE, COMP: layout.ACT_TIMED}


@dataclass(frozen=True, slots=True)
class Tables:
    """Node tables with the rows of custom collectives behind the workload's own."""

    small: NDArray[np.int32]
    large: NDArray[np.int64]
    child: NDArray[np.int32]


def _prefix_of(w: Workload, node: int, system: SystemConfig) -> str:
    """The traces that describe a collective node; those of one node win over those of its kind."""
    if int(w.source_id[node]) in system.custom_nodes:
        return system.custom_nodes[int(w.source_id[node])]
    com = plans.COLLECTIVE_OF_WIRE.get(int(w.comm_type[node]))
    return system.custom.get(plans.COLLECTIVE_NAME[com], "") if com is not None else ""


def add_custom(w: Workload, system: SystemConfig, tables: Tables, traces: Mapping[str, Workload]) -> Tables:
    """Give every collective that a trace describes its own copy of that trace's nodes."""
    if not system.splits:
        raise AstraAbort("`preferred-dataset-splits` is missing or 0", hint="ASTRA-sim divides by it and dies")
    smalls, larges, children = [tables.small], [tables.large[: len(w)]], [tables.child]
    rows, edges = len(w), len(tables.child)
    ends = tables.large[1:, layout.NODE_CHILD]
    starts = [np.concatenate([[0], ends])]
    for node in np.flatnonzero(
        (w.kind == COLL) & (tables.small[:, layout.NODE_ACTION] == layout.ACT_COLLECTIVE)
    ).tolist():
        prefix = _prefix_of(w, node, system)
        if not prefix:
            continue
        small, large, child, counts = _instance(w, node, _trace_of(prefix, traces), rows, system)
        smalls.append(small)
        larges.append(large)
        children.append(child)
        starts.append(edges + np.cumsum(counts))
        rows, edges = rows + len(small), edges + len(child)
        own = tables.small[node]
        own[layout.NODE_ACTION], own[layout.NODE_PEER] = layout.ACT_CUSTOM, rows - len(small)
        own[layout.NODE_COLLECTIVE], own[layout.NODE_TAG] = len(small), len(small)
        if system.splits != 1:
            own[layout.NODE_TAG] += 1  # every chunk is waited for, but one stream is all that runs: a hang
    large = np.empty((rows + 1, layout.NUM_LARGE), np.int64)
    large[:rows] = np.concatenate(larges)
    large[:, layout.NODE_CHILD] = np.concatenate(starts)
    return Tables(np.concatenate(smalls), large, np.concatenate(children))


def _trace_of(prefix: str, traces: Mapping[str, Workload]) -> Workload:
    if prefix not in traces:
        raise AstraAbort(f"the custom collective `{prefix}` was not given", hint="its files are `<prefix>.<rank>.et`")
    return traces[prefix]


def _instance(
    w: Workload, node: int, trace: Workload, first_row: int, system: SystemConfig
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """One copy of a rank's part of a custom collective, and how many children each of its nodes has."""
    rank, group = w.rank_of(node), int(w.group[node])
    members = np.arange(w.num_ranks) if group == WORLD else w.groups[group]
    position = int(np.flatnonzero(members == rank)[0])
    if position >= trace.num_ranks:
        raise AstraAbort(f"the custom collective has no trace for member {position}", where=f"rank {rank}")
    part = slice(int(trace.rank_start[position]), int(trace.rank_start[position + 1]))
    n = part.stop - part.start
    small, large = np.full((n, layout.NUM_SMALL), -1, np.int32), np.zeros((n, layout.NUM_LARGE), np.int64)
    peer = np.where(trace.kind[part] == SEND, trace.dst[part], trace.src[part])
    is_message = (trace.kind[part] == SEND) | (trace.kind[part] == RECV)
    if (is_message & ((peer < 0) | (peer >= len(members)))).any():
        raise AstraAbort("the custom collective names a rank outside the group", where=f"rank {rank}")
    small[:, layout.NODE_RANK], small[:, layout.NODE_RESOURCE] = rank, layout.IN_CUSTOM
    small[:, layout.NODE_PEER] = np.where(is_message, members[np.where(is_message, peer, 0)], -1)
    small[:, layout.NODE_ACTION] = [ACTION.get(int(k), layout.ACT_REFUSED) for k in trace.kind[part]]
    small[:, layout.NODE_TAG] = np.maximum(trace.tag[part], 0) % TAG_RANGE
    small[:, layout.NODE_COLLECTIVE] = node
    edges = slice(int(trace.dep_start[part.start]), int(trace.dep_start[part.stop]))
    waits = np.diff(trace.dep_start[part.start : part.stop + 1])
    small[:, layout.NODE_WAITS] = waits
    parent, child = trace.dep[edges] - part.start, np.repeat(np.arange(n), waits)
    order = np.argsort(parent, kind="stable")
    us = trace.duration_us[part]
    large[:, layout.NODE_DURATION], large[:, layout.NODE_BYTES] = np.where(us > 0, us * 1000, 1), trace.comm_size[part]
    return small, large, (child[order] + first_row).astype(np.int32), np.bincount(parent, minlength=n)
