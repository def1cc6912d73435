"""Chakra's official linker and converter, result for result: `convert(host, device)` gives the trace whose `.et` file
is, byte for byte, theirs; so does `convert(host)` of a host trace alone, or of the JSON that their linker wrote.
For people who switch; `etude link` without `--as-official` is for what the graph should be.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.capture.ingest.official import kernels as k
from etude.capture.ingest.official.link import OfficialLinked, caller_rows, link
from etude.capture.ingest.official.nodes import Nodes, of_one_file
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.capture.link.python_text import PythonTexts
from etude.kernels.arrays import I64, Bool, distinct_values
from etude.kernels.varint import encode_varint
from etude.model.graph import topological_order
from etude.model.schema import NODE, UNKNOWN, Collective, Kind, ValueKind
from etude.model.trace import Attr, Layout, Trace, constant, lanes
from etude.store.chakra import Decoded

COLLECTIVES: Final = (
    ("allreduce", Collective.ALL_REDUCE),
    ("alltoall", Collective.ALL_TO_ALL),
    ("allgather", Collective.ALL_GATHER),
    ("reducescatter", Collective.REDUCE_SCATTER),
    ("broadcast", Collective.BROADCAST),
)
"""Collectives by parts of kernel names; the first match counts."""
SCHEMAS: Final = tuple(f"{version}-chakra.0.0.4" for version in ("1.0.2", "1.0.3", "1.1.0", "1.1.1"))
_SEND_RECV = "ncclDevKernel_SendRecv"
_CELLS = ("fw_parent", "seq_id", "scope", "fw_tid")
_IO = ("in_values", "in_shapes", "in_types", "out_values", "out_shapes", "out_types")


def convert(host: HostTrace, device: DeviceTrace | None = None) -> tuple[Decoded, dict[str, Any]]:
    """(The trace, a report of what was linked)."""
    _check(host)
    order = np.argsort(host.id, kind="stable")
    linked = link(host, order, device) if device is not None else None
    nodes = _nodes(host, order, linked, device)
    data_start, data, keep = _data(host, order, nodes)
    comms = _Comms(host, order, device, nodes)
    trace = _trace(host, order, device, nodes, comms, (data_start, data, keep))
    if len(topological_order(trace, "data")) < len(trace):
        hint = "operators follow one another in a cycle: the file was not written by a linker"
        raise TraceError("nodes wait for one another in a cycle", where=host.json.path, hint=hint)
    start_ns = np.broadcast_to(np.int64(UNKNOWN), (len(trace),))
    decoded = Decoded(trace, _metadata(host), tuple(comms.groups), np.empty(0, np.int64), start_ns, ())
    return decoded, _report(host, device, linked, nodes, comms)


def _check(host: HostTrace) -> None:
    """Checks what the official converter needs of a host trace."""
    if host.schema not in SCHEMAS:
        problem = f"the official converter does not read schema `{host.schema}`"
        raise TraceError(problem, where=host.json.path, hint=f"it reads {', '.join(SCHEMAS)}")
    for name in (*_CELLS, "rf_id", "tid"):
        if (bad := np.flatnonzero(getattr(host, name) == UNKNOWN)).size:
            raise TraceError(f"node {host.id[bad[0]]} has no `{name}`", where=host.json.path)


def _nodes(host: HostTrace, order: I64, linked: OfficialLinked | None, device: DeviceTrace | None) -> Nodes:
    n = len(order)
    caller = caller_rows(host, order)
    if linked is None or device is None:
        return of_one_file(host, order, caller)
    at = np.arange(n) + linked.gpu_start[:-1]  # new position of each host row
    total = n + len(linked.gpu)
    on_host = np.zeros(total, np.bool_)
    on_host[at] = True
    row = np.repeat(np.arange(n), 1 + np.diff(linked.gpu_start))
    event = np.full(total, -1, np.int64)
    event[~on_host] = linked.gpu
    duration_us = np.empty(total, np.int64)
    exclusive_us = np.where(_named(host, "Optimizer.step")[order], 0.0, linked.exclusive_us)
    duration_us[on_host] = exclusive_us.astype(np.int64)
    duration_us[~on_host] = np.maximum(device.duration_ns[linked.gpu], 0) // 1000
    callers = at[row]
    callers[on_host] = np.append(at, -1)[caller]
    ctrl = np.where(callers < np.arange(total), callers, -1)
    handover = np.full(total, -1, np.int64)
    handover[on_host] = np.append(at, -1)[linked.handover]
    stream = np.zeros(total, np.int64)
    stream[~on_host] = np.maximum(device.stream[linked.gpu], 0)
    return Nodes(np.arange(total), row, event, ~on_host, stream, duration_us, callers, ctrl, handover)


def _named(host: HostTrace, part: str) -> Bool:
    return np.array([part in name for name in host.names] + [False])[host.name]


def _data(host: HostTrace, order: I64, nodes: Nodes) -> tuple[I64, I64, Bool]:
    """Data dependencies as CSR over all nodes, and which nodes stay: those with a dependency in either direction."""
    n = len(nodes.ids)
    child = np.argsort(nodes.caller, kind="stable")
    child_start = np.searchsorted(nodes.caller[child], np.arange(n + 1))
    is_gpu = nodes.on_device
    roots = np.flatnonzero(host.is_thread_root[order][nodes.row] & ~is_gpu)
    first, second = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    k.program_order(roots, k.CallTree(child_start, child, is_gpu, nodes.handover), first, second)
    count = (first >= 0).astype(np.int64) + (second >= 0)
    start = np.concatenate([[0], np.cumsum(count)])
    data = np.empty(start[-1], np.int64)
    data[start[:-1][second >= 0]] = second[second >= 0]
    data[(start[1:] - 1)[first >= 0]] = first[first >= 0]
    keep = count > 0
    keep[data] = True
    return start, data, keep


class _Comms:
    """Kinds, collectives, sizes and groups of the device nodes that communicate."""

    def __init__(self, host: HostTrace, order: I64, device: DeviceTrace | None, nodes: Nodes) -> None:
        n = len(nodes.ids)
        self.kind = np.full(n, Kind.COMP, np.uint8)
        self.kind[_named(host, "process_group:init")[order][nodes.row] & (nodes.event < 0)] = Kind.METADATA
        self.collective = np.zeros(n, np.uint8)
        self.in_bytes = constant("in_bytes", n).copy()
        self.group = np.full(n, -1, np.int32)
        self.groups: dict[str, int] = {}
        self._host, self._order, self._device, self._nodes = host, order, device, nodes
        self._pg = _group_names(host)
        self._recorded = _recorded_groups(host, order, device)
        is_nccl = (_named(host, "ncclKernel") | _named(host, "ncclDevKernel"))[order][nodes.row] & (nodes.event < 0)
        if device is not None:
            at_event = device.name_has("ncclKernel") | device.name_has("ncclDevKernel")
            is_nccl |= (nodes.event >= 0) & at_event[nodes.event]
        for node in np.flatnonzero(nodes.on_device & is_nccl).tolist():
            self._fill(node)

    def _fill(self, node: int) -> None:
        event, row = int(self._nodes.event[node]), int(self._nodes.row[node])
        if self._device is None or event < 0:
            name, path = self._host_name(node), self._host.json.path
        else:
            name, path = self._device.names[self._device.name[event]], self._device.json.path
        kind = self._kind(node, name)
        self.kind[node] = kind
        if kind == Kind.COLL:
            self.collective[node] = collective_of(name, path)
        self.in_bytes[node] = self._input_bytes(int(self._order[row]))
        group = self._group(node, name, row)
        if group:
            self.group[node] = self.groups.setdefault(group, len(self.groups))

    def _host_name(self, node: int) -> str:
        return self._host.names[self._host.name[self._order[self._nodes.row[node]]]]

    def _kind(self, node: int, name: str) -> Kind:
        if _SEND_RECV not in name:
            return Kind.COLL
        parent = int(self._nodes.caller[node])
        caller = self._host_name(parent)
        if caller == "record_param_comms" and self._nodes.caller[parent] >= 0:
            caller = self._host_name(int(self._nodes.caller[parent]))
        return Kind.SEND if "send" in caller else Kind.RECV if "recv" in caller else Kind.COLL

    def _input_bytes(self, row: int) -> int:
        """Elements times their size, over all input tensors of the launching operator."""
        types = self._host.value("in_types", row) or []
        return sum(
            tensor_bytes(value, kind)
            for value, kind in zip(self._host.value("in_values", row) or [], types, strict=False)
        )

    def _group(self, node: int, name: str, row: int) -> str:
        if _SEND_RECV in name:
            parent = int(self._nodes.caller[int(self._nodes.caller[node])])
            if parent >= 0 and self._host_name(parent) == "record_param_comms":
                return self._pg.get(int(self._order[self._nodes.row[parent]]), "")
        own = self._pg.get(int(self._order[row]), "")
        if own or "ncclDevKernel" not in name:
            return own
        event = int(self._nodes.event[node])
        return self._recorded.get(row if event < 0 else event, "")


def collective_of(kernel: str, path: str = "") -> Collective:
    """The collective of a kernel by its name; refused if the official converter refuses."""
    plain = kernel.replace("_", "").replace("-", "").lower()
    for word, collective in COLLECTIVES:
        if word in plain:
            return collective
    if _SEND_RECV in kernel:
        return Collective.ALL_TO_ALL
    problem = f"kernel `{kernel}` is not a collective known to the official converter, which stops here"
    raise TraceError(problem, where=path, hint="without --as-official every collective is converted")


def tensor_bytes(value: Any, kind: str) -> int:
    """Bytes of a recorded value: a tensor [id, storage, offset, elements, element bytes, device], or a list of them."""
    if "Tensor" not in kind or not isinstance(value, list):
        return 0
    if kind.startswith("GenericList[Tensor"):
        return sum(tensor_bytes(inner, "Tensor") for inner in value)
    return int(value[3]) * int(value[4]) if len(value) >= 5 else 0


def _group_names(host: HostTrace) -> dict[int, str]:
    """Host row -> pg_name, where one was recorded."""
    codes, words = host.comms.text["pg_name"]
    return {int(r): words[c] for r, c in zip(host.comms.row, codes, strict=True) if c >= 0 and words[c]}


def _recorded_groups(host: HostTrace, order: I64, device: DeviceTrace | None) -> dict[int, str]:
    """Group by device event; by row, by id, where the file was linked before."""
    if device is not None:
        rows, places = device.rare["group_name"]
        return {int(row): device.json.text(int(at)) for row, at in zip(rows, places, strict=True)}
    rows, places = host.linked.get("pg_name", (np.zeros(0, np.int64), np.zeros(0, np.int64)))
    position = np.argsort(order)
    return {int(position[row]): host.json.text(int(at)) for row, at in zip(rows, places, strict=True)}


# -- the trace ---------------------------------------------------------------------------------------------------------


def _trace(
    host: HostTrace, order: I64, device: DeviceTrace | None, nodes: Nodes, comms: _Comms, deps: tuple[I64, I64, Bool]
) -> Trace:
    keep = np.flatnonzero(deps[2])
    new = np.full(len(deps[2]) + 1, -1, np.int64)
    new[keep] = np.arange(len(keep))
    row, event = order[nodes.row[keep]], nodes.event[keep]
    texts = PythonTexts(host.json, host.json.size // 4 + 4096)
    column: dict[str, Any] = {c.name: constant(c.name, len(keep)) for c in NODE}
    for name in _IO:
        put = texts.put_all if name.endswith("values") else texts.put_distinct
        column[name] = put(host.places[name])[row]
    column["io"] = np.full(len(keep), 3, np.uint8)
    column["name"] = _words(texts, host.names)[host.name[row]]
    on_device, has_event = nodes.on_device[keep], event >= 0
    if device is not None and has_event.any():
        column["name"][has_event] = _words(texts, device.names)[device.name[event[has_event]]]
    column |= {
        "stream": nodes.stream[keep],
        "source_id": nodes.ids[keep].astype(np.uint64),
        "kind": comms.kind[keep],
        "duration_ns": np.where(nodes.duration_us[keep] > 0, nodes.duration_us[keep] * 1000, UNKNOWN),
        "cpu": (~on_device).astype(np.int8),
        "thread": host.tid[row],
        "collective": comms.collective[keep],
        "in_bytes": comms.in_bytes[keep],
        "group": comms.group[keep],
        "rf_id": host.rf_id[row],
    }
    column["lane"], lane_kind, lane_id = lanes(column["kind"], column["cpu"], column["thread"], column["stream"])
    layouts, column["layout"] = _layouts(column)
    cells = np.empty((len(keep), len(_CELLS) + 1), np.int64)
    for i, name in enumerate(_CELLS):
        cells[:, i] = getattr(host, name)[row]
    cells[:, -1] = _words(texts, host.op_schemas)[host.op_schema[row]]
    return Trace(
        heap=texts.heap(),
        **column,
        **_edges(nodes, deps, keep, new),
        layouts=layouts,
        cells=cells.reshape(-1),
        extra_row=np.zeros(0, np.int32),
        extra=np.zeros(0, np.int64),
        lane_kind=lane_kind,
        lane_id=lane_id,
        group_slots=tuple(f"g{i}" for i in range(len(comms.groups))),
        peer_slots=0,
    )


def _words(texts: PythonTexts, words: tuple[str, ...]) -> I64:
    """Offsets of a column's words; the last entry is for none, and is empty."""
    return np.array([texts.put(word.encode()) for word in (*words, "")], np.int64)


def _edges(nodes: Nodes, deps: tuple[I64, I64, Bool], keep: I64, new: I64) -> dict[str, Any]:
    """Data dependencies lead to nodes that stay; dropped callers are kept by their id only."""
    start, data, _ = deps
    count = np.diff(start)[keep]
    caller = nodes.ctrl[keep]
    has = caller >= 0
    caller = caller[has]
    target = new[caller]
    gone = distinct_values(nodes.ids[caller[target < 0]])
    target = np.where(target < 0, ~np.searchsorted(gone, nodes.ids[caller]), target)
    return {
        "data_start": np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        "data": new[data].astype(np.int32),  # only nodes without any may have been dropped
        "data_why": np.broadcast_to(np.uint8(0), (len(data),)),
        "ctrl_start": np.concatenate([[0], np.cumsum(has)]).astype(np.int64),
        "ctrl": target.astype(np.int32),
        "ctrl_why": np.broadcast_to(np.uint8(0), (len(target),)),
        "missing": gone.astype(np.uint64),
    }


def _layouts(column: dict[str, Any]) -> tuple[tuple[Layout, ...], NDArray[np.int32]]:
    """The attributes of each kind of node, in the official order."""
    integer, text = ValueKind.INT64, ValueKind.STRING
    base = (
        Attr("rf_id", integer, column="rf_id"),
        Attr("fw_parent", integer),
        Attr("seq_id", integer),
        Attr("scope", integer),
        Attr("tid", integer, column="thread"),
        Attr("fw_tid", integer),
        Attr("op_schema", text),
        Attr("is_cpu_op", ValueKind.BOOL, column="cpu"),
        Attr("stream", integer, column="stream"),
    )
    type_, size = Attr("comm_type", integer, column="collective"), Attr("comm_size", integer, column="in_bytes")
    group = Attr("pg_name", text, column="group")
    layouts = (base, (*base, type_, size), (*base, type_, size, group), (*base, size), (*base, size, group))
    kind = column["kind"]
    which = np.where(kind == Kind.COLL, 1, np.where((kind == Kind.SEND) | (kind == Kind.RECV), 3, 0))
    return layouts, (which + ((which > 0) & (column["group"] >= 0))).astype(np.int32)


def _metadata(host: HostTrace) -> bytes:
    """The GlobalMetadata message: the top of the host trace."""
    out = b""
    for name, value in {"schema": host.schema, **host.members}.items():
        if isinstance(value, str):
            raw = b"\xea\x01" + encode_varint(len(value.encode())) + value.encode()
        elif isinstance(value, int):
            raw = b"\x68" + encode_varint(value)
        else:
            continue
        attribute = b"\x0a" + encode_varint(len(name.encode())) + name.encode() + raw
        out += b"\x12" + encode_varint(len(attribute)) + attribute
    return out


def _report(
    host: HostTrace, device: DeviceTrace | None, linked: OfficialLinked | None, nodes: Nodes, comms: _Comms
) -> dict[str, Any]:
    """The coverage report: what was linked, and what was not, with the reason."""
    report: dict[str, Any] = {"device_ops": 0, "device_ops_linked": 0, "host_ops": len(host), "host_ops_timed": 0}
    unmatched: list[dict[str, Any]] = []
    span_ns = None
    if device is None:
        report["device_ops"] = report["device_ops_linked"] = int(nodes.on_device.sum())
        report["host_ops"] = int((~nodes.on_device).sum())
        timed = host.linked.get("exclusive_dur", (np.zeros(0, np.int64),))[0]
        report["host_ops_timed"] = len(timed) - report["device_ops"]
    if device is not None and linked is not None:
        device_ops = device.is_category("kernel", "gpu_memcpy", "gpu_memset")
        report["device_ops"] = int(device_ops.sum())
        report["device_ops_linked"] = len(distinct_values(linked.gpu))
        report["host_ops_timed"] = int(linked.timed.sum())
        unmatched = [{"reason": reason, "count": count} for reason, count in linked.unmatched.items() if count]
        rows = np.flatnonzero(device_ops | device.is_category("cpu_op", "user_annotation"))
        start, length = device.start_ns[rows], np.maximum(device.duration_ns[rows], 0)
        span_ns = int((start + length).max() - start.min()) if len(rows) else None
    report["collectives"] = int((comms.kind == Kind.COLL).sum())
    report["p2p"] = int(((comms.kind == Kind.SEND) | (comms.kind == Kind.RECV)).sum())
    return report | {"unmatched": unmatched, "span_ns": span_ns}
