"""A host trace without a device trace, as a rank of a job: operators and tensors, and no times.

An operator that calls others is a frame, as in `causal`; each of the rest waits for what its thread did before, for the
writers of the tensors that it reads, and in the backward pass for its forward operator. Operators whose tensors are on
a device and whose work is known are work of that device: a simulation can price them. Nothing has a duration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.base.shapes import names_in
from etude.capture.ingest.collectives import Communications, communications
from etude.capture.ingest.comm_nodes import CommWork, comm_cells, comm_columns, comm_groups
from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.ingest.tensors import tensor_flows
from etude.capture.ingest.work import OperatorWork, node_work, operator_work
from etude.capture.link.host import HostTrace
from etude.capture.link.python_text import PythonTexts
from etude.kernels.arrays import I64, Bool, distinct_values
from etude.model.job import MAX_WORLD, Job, Note, Part, assemble
from etude.model.schema import NO_TEXT, NODE, UNKNOWN, Kind, ValueKind, Why
from etude.model.trace import Attr, Layout, Trace, complete_layouts, constant, lanes

Edges = tuple[I64, I64, Why]

NOTE: Final = "a host trace without a device trace: no times; operators of a device are recognised by their tensors"
_ON_DEVICE: Final = re.compile(rb'"(?:cuda|hip|xpu|mtia|npu|hpu|privateuseone)(?::\d+)?"')
_IO: Final = names_in("""
    in_values in_shapes in_types in_strides out_values out_shapes out_types out_strides
""")
_CELLS: Final = ("fw_parent", "seq_id", "scope", "fw_tid")


@dataclass(frozen=True, slots=True, eq=False)
class HostNodes:
    """Nodes in order of their ids, which are assigned when an operator begins."""

    row: I64
    """Row of the host trace; a call with several communications has one node for each."""
    parent: I64
    is_frame: Bool
    thread: I64

    def __len__(self) -> int:
        return len(self.row)


def convert_host(host: HostTrace, *, rank: int = 0, groups: Sequence[Mapping[str, Any]] = ()) -> Part:
    """One rank from its host trace. `groups` are process groups as in a manifest."""
    if rank >= MAX_WORLD:
        hint = f"at most {MAX_WORLD:,} are read"
        raise TraceError(f"its name claims rank {rank:,}", where=host.json.path, hint=hint)
    table = communications(host, None, rank=rank, groups=groups)
    nodes, row_of_comm = _nodes(host, table)
    if not len(nodes):
        raise TraceError("it has no operator", where=host.json.path, hint="was the observer stopped?")
    trace, peers = _trace(host, nodes, table, row_of_comm)
    return Part(rank, trace, comm_groups(table), peers, notes=(Note(rank, NOTE),))


def to_job(name: str, parts: Sequence[Part]) -> Job:
    """The ranks of one program; nothing has a time."""
    return assemble(name, list(parts), provenance={"source_format": "pytorch execution trace"})


def _nodes(host: HostTrace, table: Communications) -> tuple[HostNodes, I64]:
    """(The nodes, the node of each communication.)"""
    wanted = np.flatnonzero(~(host.is_process_root | host.is_thread_root))
    asked = np.where(table.work_host >= 0, table.work_host, table.host)
    first = np.unique(asked, return_index=True)[1]
    again = np.setdiff1d(np.arange(len(table)), first)
    row = np.concatenate([wanted, asked[again]])
    order = np.argsort(host.id[row], kind="stable")
    row = row[order]
    place = np.empty(len(row), np.int64)
    place[order] = np.arange(len(row))
    node_of_row = np.full(len(host) + 1, -1, np.int64)
    node_of_row[wanted] = place[: len(wanted)]
    row_of_comm = node_of_row[asked]
    row_of_comm[again] = place[len(wanted) :]
    caller = _rows_by_id(host, host.caller[row])
    parent = np.where(caller >= 0, node_of_row[caller], -1)
    parent = np.where(parent < np.arange(len(row)), parent, -1)
    is_frame = np.zeros(len(row) + 1, np.bool_)
    is_frame[parent] = True
    is_frame[row_of_comm] = False  # callees of a communication are part of it
    return HostNodes(row, parent, is_frame[:-1], host.tid[row]), row_of_comm


def _rows_by_id(host: HostTrace, ids: I64) -> I64:
    order = np.argsort(host.id, kind="stable")
    at = np.searchsorted(host.id[order], ids)
    found = np.append(host.id[order], UNKNOWN)[at] == ids
    return np.where(found & (ids != UNKNOWN), np.append(order, -1)[at], -1)


# -- what waits for what -----------------------------------------------------------------------------------------------


def _edges(host: HostTrace, nodes: HostNodes) -> list[Edges]:
    works = np.flatnonzero(~nodes.is_frame)
    order = works[np.argsort(nodes.thread[works], kind="stable")]
    same = nodes.thread[order[1:]] == nodes.thread[order[:-1]]
    program = (order[:-1][same], order[1:][same], Why.PROGRAM)
    before = _before(nodes, np.flatnonzero(nodes.is_frame))
    frames = np.flatnonzero(nodes.is_frame)[before >= 0]
    events = _events(nodes)
    writer, reader = tensor_flows(host, nodes.row, events, _no_device())
    return [
        (writer, reader, Why.TENSOR),
        _backward(host, nodes),
        *_handovers(host, nodes, works),
        program,
        (before[before >= 0], frames, Why.PROGRAM),
    ]


def _before(nodes: HostNodes, wanted: I64) -> I64:
    """The last node of its thread before each of these that is not a frame; -1: none."""
    works = np.where(nodes.is_frame, -1, np.arange(len(nodes)))
    order = np.argsort(nodes.thread, kind="stable")
    first = np.searchsorted(nodes.thread[order], nodes.thread[order])
    last = np.maximum.accumulate(np.where(works[order] >= 0, np.arange(len(order)), -1))
    found = np.empty(len(nodes), np.int64)
    found[order] = np.where(last >= first, order[last], -1)
    return found[wanted]


def _events(nodes: HostNodes) -> HostEvents:
    """The nodes as input of `tensor_flows`; their order of beginning is used as time."""
    n = len(nodes)
    nothing, number = np.zeros(n, np.bool_), np.arange(n)
    tid, thread = np.unique(nodes.thread, return_inverse=True)
    parent = np.where(np.append(nodes.is_frame, False)[nodes.parent], nodes.parent, -1)
    return HostEvents(
        nodes.row, thread.reshape(-1), tid, np.zeros(0, np.int64), number, number, parent, nothing, nothing, number
    )


def _no_device() -> DeviceEvents:
    none = np.zeros(0, np.int64)
    return DeviceEvents(none, none, none, none, none, none, none, none)


def _backward(host: HostTrace, nodes: HostNodes) -> Edges:
    """A forward operator, or its last callee, and the first of its backward operators."""
    first, last = _spans(nodes)
    node_of_row = np.full(len(host) + 1, -1, np.int64)
    node_of_row[nodes.row[::-1]] = np.arange(len(nodes))[::-1]
    forward = host.fw_parent[nodes.row]
    source = np.append(last, -1)[node_of_row[np.where(forward > 0, _rows_by_id(host, forward), -1)]]
    known = np.flatnonzero((source >= 0) & (first >= 0) & (source < first))
    return source[known], first[known], Why.AUTOGRAD


def _spans(nodes: HostNodes) -> tuple[I64, I64]:
    """(First, last) of the nodes below each node, itself included, that are not frames; -1: none."""
    n = len(nodes)
    number = np.arange(n)
    depth = np.zeros(n, np.int64)
    at = nodes.parent.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, nodes.parent[at], -1)
    first = np.append(np.where(nodes.is_frame, n, number), n)
    last = np.append(np.where(nodes.is_frame, -1, number), -1)
    for level in range(int(depth.max(initial=0)), 0, -1):
        mine = np.flatnonzero(depth == level)
        np.minimum.at(first, nodes.parent[mine], first[mine])
        np.maximum.at(last, nodes.parent[mine], last[mine])
    return np.where(first[:n] < n, first[:n], -1), last[:n]


def _handovers(host: HostTrace, nodes: HostNodes, works: I64) -> list[Edges]:
    """The thread that requests the backward pass waits while another runs it: the other begins after what the first did
    before, and the first continues after it."""
    found: list[Edges] = []
    forward = host.fw_tid[nodes.row]
    for tid in distinct_values(nodes.thread[forward > 0]).tolist():
        asking = distinct_values(forward[(nodes.thread == tid) & (forward > 0) & (forward != tid)])
        for other in asking.tolist():
            both = works[np.isin(nodes.thread[works], (tid, other))]
            change = np.flatnonzero(np.diff(nodes.thread[both]) != 0)
            found.append((both[change], both[change + 1], Why.AUTOGRAD))
    return found


def _ordered(edges: list[Edges], n: int) -> tuple[I64, NDArray[np.int32], NDArray[np.uint8]]:
    """(start, node, why) of the edges as a CSR, each pair once, and only those that lead from earlier to later."""
    source = np.concatenate([edge[0] for edge in edges])
    target = np.concatenate([edge[1] for edge in edges])
    why = np.concatenate([np.full(len(edge[0]), edge[2], np.uint8) for edge in edges])
    keep = source < target
    source, target, why = source[keep], target[keep], why[keep]
    _, once = np.unique(target * n + source, return_index=True)  # the first listed of several reasons
    source, target, why = source[once], target[once], why[once]
    return np.searchsorted(target, np.arange(n + 1)), source.astype(np.int32), why


# -- the trace ---------------------------------------------------------------------------------------------------------


def _trace(host: HostTrace, nodes: HostNodes, table: Communications, row_of_comm: I64) -> tuple[Trace, I64]:
    """(The trace, the rank behind each of its peer slots.)"""
    n = len(nodes)
    texts = PythonTexts(host.json, host.json.size // 3 + 4096)
    column, peers = _columns(texts, host, nodes, table, row_of_comm)
    column["lane"], lane_kind, lane_id = lanes(column["kind"], column["cpu"], column["thread"], column["stream"])
    layouts, column["layout"], cells = _attributes(texts, host, nodes.row, comm_cells(texts, table, row_of_comm))
    start, edge, why = _ordered(_edges(host, nodes), n)
    trace = Trace(
        heap=texts.heap(),
        **column,
        data_start=start,
        data=edge,
        data_why=why,
        ctrl_start=np.zeros(n + 1, np.int64),
        ctrl=np.zeros(0, np.int32),
        ctrl_why=np.zeros(0, np.uint8),
        missing=np.zeros(0, np.uint64),
        layouts=layouts,
        cells=cells,
        extra_row=np.zeros(0, np.int32),
        extra=np.zeros(0, np.int64),
        lane_kind=lane_kind,
        lane_id=lane_id,
        group_slots=tuple(f"g{i}" for i in range(len(comm_groups(table)))),
        peer_slots=len(peers),
    )
    layouts, layout = complete_layouts(trace)
    return trace.replace(layouts=layouts, layout=layout), peers


def _columns(
    texts: PythonTexts, host: HostTrace, nodes: HostNodes, table: Communications, row_of_comm: I64
) -> tuple[dict[str, Any], I64]:
    """(The columns but for lanes and layouts, the rank behind each peer slot.)"""
    n, row = len(nodes), nodes.row
    column: dict[str, Any] = {c.name: constant(c.name, n) for c in NODE}
    column |= _texts(texts, host, row)
    named = np.array(["process_group:init" in name for name in host.names] + [False])[host.name[row]]
    column |= {
        "source_id": _ids(host, row),
        "kind": np.where(named, Kind.METADATA, Kind.COMP).astype(np.uint8),
        "duration_ns": np.where(nodes.is_frame | named, 0, UNKNOWN),
        "cpu": np.ones(n, np.int8),
        "thread": nodes.thread.copy(),
        "rf_id": np.where(host.rf_id[row] > 0, host.rf_id[row], UNKNOWN),
        "parent": nodes.parent.astype(np.int32),
    }
    none = np.full(len(table), -1, np.int64)
    work = CommWork(table, none, none, none, np.ones(len(table), np.bool_))
    peers = comm_columns(work, row_of_comm, _events(nodes), column)
    column["flops"], column["tensor_bytes"], known = _work(operator_work(host).take(row), nodes, column["kind"])
    on_device = _on_device(host)[row] & ((column["kind"] != Kind.COMP) | known) & ~nodes.is_frame & ~named
    column["cpu"] = np.where(on_device, 0, 1).astype(np.int8)
    column["stream"] = np.where(on_device, 0, UNKNOWN)
    column["io"] = ((column["in_values"] >= 0) | (column["in_shapes"] >= 0)).astype(np.uint8)
    column["io"] |= ((column["out_values"] >= 0) | (column["out_shapes"] >= 0)).astype(np.uint8) << 1
    return column, peers


def _ids(host: HostTrace, row: I64) -> NDArray[np.uint64]:
    """The file's own ids; further communications of one call get new ones."""
    ids = host.id[row].astype(np.uint64)
    again = np.ones(len(row), np.bool_)
    again[np.unique(row, return_index=True)[1]] = False
    ids[again] = ids.max(initial=0) + 1 + np.arange(int(again.sum()), dtype=np.uint64)
    return ids


def _texts(texts: PythonTexts, host: HostTrace, row: I64) -> dict[str, I64]:
    words = np.array([texts.put(name.encode()) for name in host.names], np.int64)
    column = {"name": words[host.name[row]]}
    for key in _IO:
        places = host.places.get(key)
        if places is not None and (places >= 0).any():
            put = texts.put_all if key.endswith("values") else texts.put_distinct
            column[key] = np.append(put(places), NO_TEXT)[row]
    return column


def _work(work: OperatorWork, nodes: HostNodes, kind: NDArray[np.uint8]) -> tuple[I64, I64, Bool]:
    """(FLOPs, bytes, whether either is known) of compute nodes."""
    operator = np.where(~nodes.is_frame & (kind == Kind.COMP), np.arange(len(nodes)), -1)
    length = np.ones(len(nodes), np.int64)
    flops, size_bytes = node_work(work, nodes.parent, operator, length)
    return flops, size_bytes, (flops != UNKNOWN) | (size_bytes != UNKNOWN)


def _on_device(host: HostTrace) -> Bool:
    """Rows with a tensor on a device. A node's values come after the beginning of its inputs, and before that of the
    next node's."""
    places = host.places.get("in_values")
    found = np.zeros(len(host), np.bool_)
    if places is None or not len(host):
        return found
    known = np.flatnonzero(places >= 0)
    known = known[np.argsort(places[known], kind="stable")]
    text = host.json.heap[: host.json.size].data
    at = np.fromiter((match.start() for match in _ON_DEVICE.finditer(text)), np.int64)
    which = np.searchsorted(places[known], at, "right") - 1
    found[known[which[which >= 0]]] = True
    return found


def _attributes(
    texts: PythonTexts, host: HostTrace, row: I64, added: dict[int, tuple[Layout, list[int]]]
) -> tuple[tuple[Layout, ...], NDArray[np.int32], I64]:
    """Sequence numbers, scopes and schemas of all nodes; root, data type and shares of communications."""
    own: Layout = (*(Attr(name, ValueKind.INT64) for name in _CELLS), Attr("op_schema", ValueKind.STRING))
    words = np.array([texts.put(word.encode()) for word in (*host.op_schemas, "")], np.int64)
    columns = [np.where(c == UNKNOWN, 0, c)[row] for c in (getattr(host, name) for name in _CELLS)]
    values = np.stack([*columns, words[host.op_schema[row]]], axis=1)
    layouts: dict[Layout, int] = {own: 0}
    layout = np.zeros(len(row), np.int32)
    for node, (attrs, _) in added.items():
        layout[node] = layouts.setdefault((*own, *attrs), len(layouts))
    counts = np.array([len(entry) for entry in layouts], np.int64)[layout]
    start = np.cumsum(counts) - counts
    cells = np.empty(int(counts.sum()), np.int64)
    cells[start[:, None] + np.arange(len(own))] = values
    for node, (attrs, more) in added.items():
        end = int(start[node] + counts[node])
        cells[end - len(attrs) : end] = more
    return tuple(layouts), layout, cells
