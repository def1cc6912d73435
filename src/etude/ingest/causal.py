"""What PyTorch recorded of a rank, as one rank of a job: the causal graph, with the recorded times beside it.

    linked = convert(device_trace)                # a device trace alone
    linked = convert(device_trace, host_trace)    # ... with the operators' tensors and the groups of the host trace
    job = to_job("run", [linked])

Operators and calls that are made of others hold no time; it runs in `host` segments and in those others. What a
node waits for is in its edges, never in its `duration_ns`; when it was recorded to start and end is in `job.timing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.ingest.graph import ACTIVITY, HOST_EVENT, SEGMENT, SEGMENT_NAME, Graph, graph
from etude.ingest.host_rows import host_rows
from etude.link.device import DeviceTrace
from etude.link.host import HostTrace
from etude.link.python_text import PythonTexts
from etude.model.job import Job, Part, assemble
from etude.model.schema import NODE, UNKNOWN, Kind, ValueKind
from etude.model.timing import Origin, Timing
from etude.model.trace import Attr, Trace, complete_layouts, constant, lanes

I64 = NDArray[np.int64]

_IO = ("in_values", "in_shapes", "in_types", "in_strides", "out_values", "out_shapes", "out_types", "out_strides")
_DEVICE_IO = {
    "in_values": "concrete_inputs",
    "in_shapes": "input_dims",
    "in_types": "input_types",
    "in_strides": "input_strides",
}
_CELLS = ("fw_parent", "seq_id", "scope", "fw_tid")


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """One rank: its trace and groups, its recorded times, and what could be tied together."""

    part: Part
    start_ns: I64
    end_ns: I64
    report: dict[str, Any]
    world_size: int = 0


def convert(device: DeviceTrace, host: HostTrace | None = None, *, rank: int | None = None) -> Linked:
    """The causal graph of one rank. `rank` is that of the file where it is not given, else 0."""
    found = graph(device)
    if not len(found):
        raise TraceError(
            "no operator, call or device activity is in it",
            where=device.json.path,
            hint="is it a trace of the profiler?",
        )
    rows = host_rows(host, device, found.host) if host is not None else np.full(len(found.host), -1, np.int64)
    trace = _trace(device, host, found, rows)
    recorded = device.distributed.get("rank")
    if rank is None:
        rank = recorded if isinstance(recorded, int) and recorded >= 0 else 0
    world = device.distributed.get("world_size")
    return Linked(
        part=Part(rank, trace, (), np.empty(0, np.int64)),
        start_ns=found.start_ns + device.base_ns,
        end_ns=found.end_ns + device.base_ns,
        report=_report(device, host, found, rows),
        world_size=world if isinstance(world, int) else 0,
    )


def to_job(name: str, ranks: Sequence[Linked]) -> Job:
    """The ranks of one run as a job, `job.timing` holding when everything was recorded to start and end."""
    ranks = sorted(ranks, key=lambda one: one.part.rank)
    timing = Timing(
        origin=Origin.MEASURED,
        start_ns=tuple(one.start_ns for one in ranks),
        end_ns=tuple(one.end_ns for one in ranks),
        block_of=np.arange(len(ranks), dtype=np.int32),
        clock_offset_ns=np.zeros(len(ranks), np.int64),
    )
    return assemble(
        name,
        [one.part for one in ranks],
        world_size=max((one.world_size for one in ranks), default=0),
        timing=timing,
        provenance={"source_format": "pytorch profiler"},
    )


# -- the trace ---------------------------------------------------------------------------------------------------------


def _trace(device: DeviceTrace, host: HostTrace | None, found: Graph, host_row: I64) -> Trace:
    n = len(found)
    event_row = np.append(found.host.row, -1)
    row = np.where(found.what == ACTIVITY, 0, event_row[found.owner])
    row[found.what == ACTIVITY] = found.device.row[found.index[found.what == ACTIVITY]]
    is_segment, on_device = found.what == SEGMENT, found.what == ACTIVITY
    texts = PythonTexts(host.json if host is not None else device.json, (1 << 16) + 64 * n)
    column: dict[str, Any] = {c.name: constant(c.name, n) for c in NODE}
    column |= _texts(texts, device, host, found, row, host_row)
    thread = np.append(_thread_ids(found), UNKNOWN)
    of_event = np.where(on_device, len(found.host), found.owner)
    thread_of = np.append(found.host.thread, len(found.host.tid))[np.maximum(of_event, -1)]
    thread_of = np.where(is_segment, _segment_threads(found), thread_of)
    stream = np.full(n, UNKNOWN, np.int64)
    stream[on_device] = found.device.stream_id[found.device.stream[found.index[on_device]]]
    named = ~is_segment
    column |= {
        "source_id": np.arange(n, dtype=np.uint64),
        "kind": np.full(n, Kind.COMP, np.uint8),
        "duration_ns": found.own_ns,
        "cpu": (~on_device).astype(np.int8),
        "thread": np.where(on_device, UNKNOWN, thread[thread_of]),
        "stream": stream,
        "step": _steps(device, found),
        "rf_id": _known(device.rf_id, row, named & (found.what == HOST_EVENT), zero=False),
        "external_id": _known(device.external_id, row, named),
        "correlation": _known(device.correlation, row, named, zero=False),
        "tensor_bytes": _copied_bytes(device, row, on_device),
        "parent": _parents(found).astype(np.int32),
    }
    column["lane"], lane_kind, lane_id = lanes(column["kind"], column["cpu"], column["thread"], column["stream"])
    layouts, column["layout"], cells = _attributes(texts, device, host, found, host_row)
    column["io"] = ((column["in_values"] >= 0) | (column["in_shapes"] >= 0)).astype(np.uint8)
    column["io"] |= ((column["out_values"] >= 0) | (column["out_shapes"] >= 0)).astype(np.uint8) << 1
    trace = Trace(
        heap=texts.heap(),
        **column,
        data_start=found.edge_start,
        data=found.edge,
        data_why=found.why,
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
        group_slots=(),
        peer_slots=0,
    )
    layouts, layout = complete_layouts(trace)
    return trace.replace(layouts=layouts, layout=layout)


def _known(values: I64, row: I64, wanted: NDArray[np.bool_], *, zero: bool = True) -> I64:
    """Values of the rows that have them; an id of 0 is none where `zero` is not one."""
    found = np.where(wanted, values[row], UNKNOWN)
    return found if zero else np.where(found == 0, UNKNOWN, found)


def _thread_ids(found: Graph) -> I64:
    """Threads as the file numbers them; one that it calls by a name gets the next number."""
    tid = found.host.tid.copy()
    named = tid < -(1 << 62)
    tid[named] = tid.max(initial=0) + 1 + np.arange(int(named.sum()))
    return tid


def _segment_threads(found: Graph) -> I64:
    return np.where(found.what == SEGMENT, found.segment_thread[np.where(found.what == SEGMENT, found.index, 0)], -1)


def _parents(found: Graph) -> I64:
    """The event around an event, the event that a segment is time of, the operator that launched an activity."""
    parent = np.append(found.host.parent, -1)
    event = np.where(found.what == HOST_EVENT, parent[found.owner], found.owner)
    return np.append(found.row_of_event, -1)[event]


def _copied_bytes(device: DeviceTrace, row: I64, on_device: NDArray[np.bool_]) -> I64:
    found = np.where(on_device, device.spread("copied_bytes")[row], UNKNOWN)
    return np.where(found < 0, UNKNOWN, found)


def _steps(device: DeviceTrace, found: Graph) -> I64:
    """Number of the ProfilerStep in which a node began, or its launch did."""
    number = np.array([_step(name) for name in device.names] + [-1], np.int64)
    rows = np.flatnonzero((number[device.name] >= 0) & device.is_category("user_annotation") & device.is_phase("X"))
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    when = found.start_ns.copy()
    launched = found.what == ACTIVITY
    call = found.device.call[found.index[launched]]
    when[launched] = np.where(call >= 0, np.append(found.host.start_ns, 0)[call], when[launched])
    at = np.searchsorted(device.start_ns[rows], when, "right") - 1
    if not len(rows):
        return np.full(len(found), UNKNOWN, np.int64)
    inside = (at >= 0) & (when < device.start_ns[rows[at]] + device.duration_ns[rows[at]])
    return np.where(inside, number[device.name[rows[at]]], UNKNOWN)


def _step(name: str) -> int:
    number = name.removeprefix("ProfilerStep#")
    return int(number) if number != name and number.isdigit() and len(number) < 18 else -1


def _texts(
    texts: PythonTexts, device: DeviceTrace, host: HostTrace | None, found: Graph, row: I64, host_row: I64
) -> dict[str, I64]:
    words = np.array([texts.put(word.encode()) for word in (*device.names, SEGMENT_NAME)], np.int64)
    name = np.where(found.what == SEGMENT, words[-1], words[device.name[row]])
    column = {"name": name}
    events = found.what == HOST_EVENT
    source = (
        np.where(events, np.append(host_row, -1)[found.owner], -1) if host is not None else np.where(events, row, -1)
    )
    for key in _IO:
        places = host.places.get(key) if host is not None else device.places.get(_DEVICE_IO.get(key, ""))
        if places is None or not (places >= 0).any():
            continue
        wanted = np.where(source >= 0, places[np.maximum(source, 0)], UNKNOWN)
        put = texts.put_all if key.endswith("values") else texts.put_distinct
        column[key] = put(np.where(wanted < 0, UNKNOWN, wanted))
    return column


def _attributes(
    texts: PythonTexts, device: DeviceTrace, host: HostTrace | None, found: Graph, host_row: I64
) -> tuple[tuple[tuple[Attr, ...], ...], NDArray[np.int32], I64]:
    """What no column holds: of host operators their sequence numbers, scopes and schemas."""
    integer = ValueKind.INT64
    events = found.what == HOST_EVENT
    if host is None:
        sequence = np.where(events, device.sequence_number[np.append(found.host.row, 0)[found.owner]], UNKNOWN)
        has = sequence >= 0
        return ((), (Attr("seq_id", integer),)), has.astype(np.int32), sequence[has]
    source = np.where(events, np.append(host_row, -1)[found.owner], -1)
    rows = np.flatnonzero(source >= 0)
    words = np.array([texts.put(word.encode()) for word in (*host.op_schemas, "")], np.int64)
    cells = np.empty((len(rows), len(_CELLS) + 1), np.int64)
    for i, name in enumerate(_CELLS):
        value = getattr(host, name)[source[rows]]
        cells[:, i] = np.where(value == UNKNOWN, 0, value)
    cells[:, -1] = words[host.op_schema[source[rows]]]
    layout = (source >= 0).astype(np.int32)
    attrs = (*(Attr(name, integer) for name in _CELLS), Attr("op_schema", ValueKind.STRING))
    return ((), attrs), layout, cells.reshape(-1)


# -- coverage ----------------------------------------------------------------------------------------------------------


def _report(device: DeviceTrace, host: HostTrace | None, found: Graph, host_row: I64) -> dict[str, Any]:
    """The coverage report: what was tied together, and what was not, with the reason."""
    activities = found.device
    operators = ~found.host.is_call
    tied = activities.operator >= 0
    unmatched: list[dict[str, Any]] = []
    if host is not None:
        is_known = np.append(host_row >= 0, False)
        unmatched += _reasons(
            (
                "device activity: its operator is not in the host trace",
                int((tied & ~is_known[activities.operator]).sum()),
            ),
        )
        tied &= is_known[activities.operator]
        timed = len(np.unique(host_row[host_row >= 0]))
        roots = host.is_process_root | host.is_thread_root
        group = np.array(["process_group:init" in name for name in host.names] + [False])[host.name]
        rest = len(host) - timed - int(roots.sum()) - int(group.sum())
        unmatched += _reasons(
            ("host operator: the observer's own node of a process or thread, which has no time", int(roots.sum())),
            ("host operator: names process groups, which takes no time", int(group.sum())),
            ("host operator: no event of the device trace has its record-function id", rest),
        )
    no_call = (activities.call < 0) & (activities.operator < 0)
    no_operator = (activities.call >= 0) & (activities.operator < 0)
    unmatched += _reasons(
        ("device activity: neither its launch nor its operator is in the trace", int(no_call.sum())),
        ("device activity: launched outside of any operator", int(no_operator.sum())),
        ("dependency: contradicted by the recorded times", found.contradicted),
    )
    return {
        "device_ops": len(activities),
        "device_ops_linked": int(tied.sum()),
        "host_ops": len(host) if host is not None else int(operators.sum()),
        "host_ops_timed": timed if host is not None else int(operators.sum()),
        "collectives": 0,
        "p2p": 0,
        "unmatched": unmatched,
        "span_ns": int(found.end_ns.max() - found.start_ns.min()),
        "nodes": len(found),
        "dependencies": len(found.edge),
    }


def _reasons(*counted: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"reason": reason, "count": count} for reason, count in counted if count]
