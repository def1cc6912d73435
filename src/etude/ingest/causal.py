"""What PyTorch recorded of a rank, as one rank of a job: the causal graph, with the recorded times beside it.

    linked = convert(device_trace)                # a device trace alone
    linked = convert(device_trace, host_trace)    # ... with the operators' tensors and the groups of the host trace
    job = to_job("run", [linked])

Operators and calls that are made of others hold no time; it runs in `host` segments and in those others. What a
node waits for is in its edges, never in its `duration_ns`; when it was recorded to start and end is in `job.timing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.ingest.collectives import communications
from etude.ingest.comm_nodes import comm_cells, comm_columns, comm_groups, groups_text
from etude.ingest.context import context
from etude.ingest.events import OPERATORS, device_events, host_events
from etude.ingest.graph import ACTIVITY, GROUPS, HOST_EVENT, SEGMENT, SEGMENT_NAME, Graph, graph
from etude.ingest.host_rows import host_rows
from etude.ingest.tensors import tensor_flows
from etude.ingest.work import node_work, operator_work
from etude.link.device import DeviceTrace
from etude.link.host import HostTrace
from etude.link.python_text import PythonTexts
from etude.model.job import Job, Part, assemble
from etude.model.match import match
from etude.model.schema import NO_TEXT, NODE, RECORDED_NS, UNKNOWN, Kind, ValueKind
from etude.model.timing import Origin, Timing
from etude.model.trace import Attr, Layout, Trace, complete_layouts, constant, lanes

I64 = NDArray[np.int64]

_IO = ("in_values", "in_shapes", "in_types", "in_strides", "out_values", "out_shapes", "out_types", "out_strides")
_DEVICE_IO = {
    "in_values": "concrete_inputs",
    "in_shapes": "input_dims",
    "in_types": "input_types",
    "in_strides": "input_strides",
}
GROUPS_NAME = "## process_group:init ##"
"""What PyTorch's observer calls the node in which it writes down the process groups."""
_CELLS = ("fw_parent", "seq_id", "scope", "fw_tid")


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """One rank: its trace and groups, its recorded times, and what could be tied together."""

    part: Part
    start_ns: I64
    end_ns: I64
    report: dict[str, Any]
    world_size: int = 0
    device: str = ""
    """What it ran on, as the profiler names it."""


def convert(
    device: DeviceTrace,
    host: HostTrace | None = None,
    *,
    rank: int | None = None,
    groups: Sequence[Mapping[str, Any]] = (),
    flight: Sequence[Mapping[str, Any]] = (),
) -> Linked:
    """The causal graph of one rank. `rank` is that of the file where it is not given, else 0. `groups` are process
    groups as a manifest has them, `flight` entries of the Flight Recorder, which know the groups of gloo."""
    if rank is None:
        recorded = device.distributed.get("rank")
        rank = recorded if isinstance(recorded, int) and recorded >= 0 else 0
    events = host_events(device)
    activities = device_events(device, events)
    if not len(events) and not len(activities):
        raise TraceError(
            "no operator, call or device activity is in it",
            where=device.json.path,
            hint="is it a trace of the profiler?",
        )
    rows, flows = np.full(len(events), -1, np.int64), None
    if host is not None:
        rows = host_rows(host, device, events)
        flows = tensor_flows(host, rows, events, activities)
    table = communications(host, device, rank=rank, groups=groups, flight=flight)
    found = graph(device, events, activities, table, flows)
    trace, peers = _trace(device, host, found, rows)
    world = device.distributed.get("world_size")
    return Linked(
        part=Part(rank, trace, comm_groups(found.comms.table), peers),
        start_ns=found.start_ns + device.base_ns,
        end_ns=found.end_ns + device.base_ns,
        report=_report(device, host, found, rows),
        world_size=world if isinstance(world, int) else 0,
        device=_device_name(device),
    )


def to_job(name: str, ranks: Sequence[Linked]) -> Job:
    """The ranks of one run as a job, `job.timing` holding when everything was recorded to start and end."""
    ranks = _one_beginning(_least_waiting(_own_names(sorted(ranks, key=lambda one: one.part.rank))))
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
        provenance=_provenance(ranks),
    )


def _own_names(ranks: Sequence[Linked]) -> list[Linked]:
    """Groups that have one name and other members on other ranks get names of their own: a name must tell."""
    members: dict[str, set[tuple[int, ...] | None]] = {}
    for one in ranks:
        for name, group in one.part.groups:
            members.setdefault(name, set()).add(None if group is None else tuple(group))
    clear = {name for name, found in members.items() if len(found) == 1}
    named = []
    for one in ranks:
        groups = [
            (name if name in clear or group is None else f"{name}:{'-'.join(map(str, group))}", group)
            for name, group in one.part.groups
        ]
        named.append(replace(one, part=replace(one.part, groups=groups)))
    return named


def _least_waiting(ranks: list[Linked]) -> list[Linked]:
    """A collective is recorded as long as its member was in it, waiting for the others included. Its own time is the
    least of its members', that of the one which came last; so all members get that."""
    if len(ranks) < 2:
        return ranks
    matching = match(assemble("run", [one.part for one in ranks]))
    sides, uses = matching.sides, matching.uses
    duration = [one.part.trace.duration_ns.copy() for one in ranks]
    for group in np.unique(uses.group).tolist():
        mine = np.flatnonzero(uses.group == group)
        rows = [(duration[uses.at[u]], sides.rows[sides.span(int(uses.side[u]))]) for u in mine.tolist()]
        calls = min(len(r) for _, r in rows)
        if len(rows) > 1 and calls:
            least = np.min([own[r[:calls]] for own, r in rows], axis=0)
            for own, r in rows:
                own[r[:calls]] = least
    return [
        replace(one, part=replace(one.part, trace=one.part.trace.replace(duration_ns=own)))
        for one, own in zip(ranks, duration, strict=True)
    ]


def _one_beginning(ranks: list[Linked]) -> list[Linked]:
    """Ranks that were recorded at one time begin together: what is before a rank's first event becomes time of the
    host, so that who came late is still late. Where the recorded times do not overlap, clocks cannot be compared."""
    begins = [int(one.start_ns.min()) for one in ranks]
    if len(ranks) < 2 or max(begins) >= min(int(one.end_ns.max()) for one in ranks):
        return ranks
    shifted = []
    for one, begin in zip(ranks, begins, strict=True):
        trace, early = one.part.trace, min(begins)
        roots = np.flatnonzero((one.start_ns == begin) & (trace.parent < 0) & (np.diff(trace.data_start) == 0))
        first = [i for i in roots.tolist() if trace.cpu[i] == 1 and trace.text("name", i) == SEGMENT_NAME]
        duration, start = trace.duration_ns.copy(), one.start_ns.copy()
        duration[first] += begin - early
        start[first] = early
        shifted.append(replace(one, part=replace(one.part, trace=trace.replace(duration_ns=duration)), start_ns=start))
    return shifted


def _provenance(ranks: Sequence[Linked]) -> dict[str, str]:
    found = {"source_format": "pytorch profiler"}
    devices = list(dict.fromkeys(one.device for one in ranks if one.device))
    return found | ({"device": ", ".join(devices[:4])} if devices else {})


def _device_name(device: DeviceTrace) -> str:
    listed = device.members.get("deviceProperties")
    names = [one.get("name") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return next((name for name in names if isinstance(name, str) and name), "")


# -- the trace ---------------------------------------------------------------------------------------------------------


def _trace(device: DeviceTrace, host: HostTrace | None, found: Graph, host_row: I64) -> tuple[Trace, I64]:
    """(The trace, the rank behind each of its peer slots.)"""
    n = len(found)
    on_device = found.what >= ACTIVITY
    row = np.append(found.host.row, 0)[found.owner]
    row[on_device] = found.device.row[found.index[on_device]]
    json = host.json if host is not None else device.json
    texts = PythonTexts(json, json.size // 3 + 4096)
    stream = np.full(n, UNKNOWN, np.int64)
    on_stream = found.what == ACTIVITY
    stream[on_stream] = found.device.stream_id[found.device.stream[found.index[on_stream]]]
    named = (found.what != SEGMENT) & (found.what != GROUPS)
    column: dict[str, Any] = {c.name: constant(c.name, n) for c in NODE}
    column |= _texts(texts, device, host, found, row, host_row)
    column |= {
        "source_id": np.arange(n, dtype=np.uint64),
        "kind": np.where(found.what == GROUPS, Kind.METADATA, Kind.COMP).astype(np.uint8),
        "duration_ns": found.own_ns,
        "cpu": (~on_device).astype(np.int8),
        "thread": _threads(found),
        "stream": stream,
        "step": _steps(device, found),
        "rf_id": _known(device.rf_id, row, found.what == HOST_EVENT, zero=False),
        "external_id": _known(device.external_id, row, named),
        "correlation": _known(device.correlation, row, named, zero=False),
        "parent": _parents(found).astype(np.int32),
    }
    peers = comm_columns(found.comms, found.row_of_comm, found.host.apart, column)
    column["flops"], column["tensor_bytes"] = _work(device, host, found, host_row, row, column["kind"])
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
        group_slots=tuple(f"g{i}" for i in range(len(comm_groups(found.comms.table)))),
        peer_slots=len(peers),
    )
    layouts, layout = complete_layouts(trace)
    return trace.replace(layouts=layouts, layout=layout), peers


def _known(values: I64, row: I64, wanted: NDArray[np.bool_], *, zero: bool = True) -> I64:
    """Values of the rows that have them; an id of 0 is none where `zero` is not one."""
    found = np.where(wanted, values[row], UNKNOWN)
    return found if zero else np.where(found == 0, UNKNOWN, found)


def _threads(found: Graph) -> I64:
    """Threads as the file numbers them; one that it calls by a name gets the next number."""
    tid = found.host.tid.copy()
    named = tid < -(1 << 62)
    tid[named] = tid.max(initial=0) + 1 + np.arange(int(named.sum()))
    thread = np.append(found.host.thread, -1)[np.where(found.what == HOST_EVENT, found.index, -1)]
    thread[found.what == GROUPS] = 0 if len(tid) else -1
    segments = found.what == SEGMENT
    thread[segments] = found.line.thread[found.index[segments]]
    return np.append(tid, UNKNOWN)[thread]


def _parents(found: Graph) -> I64:
    """The event around an event, the event that a segment is time of, the operator that launched an activity."""
    parent = np.append(found.host.parent, -1)
    event = np.where(found.what == HOST_EVENT, parent[found.owner], found.owner)
    return np.append(found.row_of_event, -1)[event]


def _work(
    device: DeviceTrace, host: HostTrace | None, found: Graph, host_row: I64, row: I64, kind: NDArray[np.uint8]
) -> tuple[I64, I64]:
    """(FLOPs, bytes) of compute nodes: on the device where the trace has one, else on the host; bytes of copies as
    they were recorded."""
    work = operator_work(host).take(host_row) if host is not None else operator_work(device).take(found.host.row)
    where = found.what == ACTIVITY if len(found.device) else (found.what <= SEGMENT) & (found.own_ns > 0)
    operator = np.where(where & (kind == Kind.COMP), found.owner, -1)
    flops, size_bytes = node_work(work, found.host.parent, operator, found.own_ns)
    copied = np.where(found.what == ACTIVITY, device.spread("copied_bytes")[row], UNKNOWN)
    return np.where(copied >= 0, UNKNOWN, flops), np.where(copied >= 0, copied, size_bytes)


def _steps(device: DeviceTrace, found: Graph) -> I64:
    """Number of the ProfilerStep in which a node began, or its launch did."""
    number = np.array([_step(name) for name in device.names] + [-1], np.int64)
    rows = np.flatnonzero((number[device.name] >= 0) & device.is_category("user_annotation") & device.is_phase("X"))
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    when = found.start_ns.copy()
    launched = found.what >= ACTIVITY
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
    words = np.array([texts.put(word.encode()) for word in (*device.names, GROUPS_NAME, SEGMENT_NAME)], np.int64)
    name = np.where(found.what == SEGMENT, words[-1], words[device.name[row]])
    is_groups = found.what == GROUPS
    column = {"name": np.where(is_groups, words[-2], name)}
    events = found.what == HOST_EVENT
    source = (
        np.where(events, np.append(host_row, -1)[found.owner], -1) if host is not None else np.where(events, row, -1)
    )
    is_operator = device.is_category(*OPERATORS)
    for key in _IO:
        places = host.places.get(key) if host is not None else device.places.get(_DEVICE_IO.get(key, ""))
        if places is None or not (places >= 0).any():
            continue
        if host is None:  # most events are no operators
            places = np.where(is_operator, places, UNKNOWN)
        put = texts.put_all if key.endswith("values") else texts.put_distinct
        column[key] = np.append(put(places), NO_TEXT)[source]
    around = context(device)
    operator = np.append(found.host.row, -1)[np.append(found.host.operator, -1)[found.owner]]
    for key in ("phase", "module"):
        offsets = np.array([texts.put(word.encode()) for word in getattr(around, f"{key}s")] + [NO_TEXT], np.int64)
        column[key] = offsets[np.append(getattr(around, key), -1)[operator]]
    if is_groups.any():
        column.setdefault("in_values", np.full(len(found), NO_TEXT, np.int64))
        column["in_values"][is_groups] = texts.put(groups_text(found.comms.table).encode())
    return column


def _attributes(
    texts: PythonTexts, device: DeviceTrace, host: HostTrace | None, found: Graph, host_row: I64
) -> tuple[tuple[Layout, ...], NDArray[np.int32], I64]:
    """What no column holds: of host operators their sequence numbers, scopes and schemas; of communications their
    root, data type and shares."""
    integer = ValueKind.INT64
    events = found.what == HOST_EVENT
    if host is None:
        own: Layout = (Attr("seq_id", integer),)
        sequence = np.where(events, device.sequence_number[np.append(found.host.row, 0)[found.owner]], UNKNOWN)
        rows = np.flatnonzero(sequence >= 0)
        values = sequence[rows].reshape(-1, 1)
    else:
        own = (*(Attr(name, integer) for name in _CELLS), Attr("op_schema", ValueKind.STRING))
        source = np.where(events, np.append(host_row, -1)[found.owner], -1)
        rows = np.flatnonzero(source >= 0)
        words = np.array([texts.put(word.encode()) for word in (*host.op_schemas, "")], np.int64)
        columns = [np.where(c == UNKNOWN, 0, c)[source[rows]] for c in (getattr(host, name) for name in _CELLS)]
        values = np.stack([*columns, words[host.op_schema[source[rows]]]], axis=1)
    layout = np.zeros(len(found), np.int32)
    layout[rows] = 1
    layouts: dict[Layout, int] = {(): 0, own: 1}
    # recorded times of what waits, or is made of others, do not follow from its own time; nor where it is changed
    length = found.end_ns - found.start_ns
    apart = length != found.own_ns
    apart[found.row_of_comm[found.row_of_comm >= 0]] = True
    recorded = Attr(RECORDED_NS, integer)
    layouts |= {(recorded,): 2, (*own, recorded): 3}
    layout[apart] += 2
    added = comm_cells(texts, found.comms.table, found.row_of_comm)
    entries = list(layouts)
    for row, (attrs, _) in added.items():
        layout[row] = layouts.setdefault((*entries[layout[row]], *attrs), len(layouts))
    counts = np.array([len(entry) for entry in layouts], np.int64)[layout]
    start = np.cumsum(counts) - counts
    cells = np.empty(int(counts.sum()), np.int64)
    cells[start[rows][:, None] + np.arange(len(own))] = values
    has_own = np.zeros(len(found), np.bool_)
    has_own[rows] = True
    cells[start[apart] + np.where(has_own, len(own), 0)[apart]] = length[apart]
    for row, (attrs, more) in added.items():
        end = int(start[row] + counts[row])
        cells[end - len(attrs) : end] = more
    return tuple(layouts), layout, cells


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
        is_timed = np.zeros(len(host) + 1, np.bool_)
        is_timed[host_row] = True
        timed = int(is_timed[:-1].sum())
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
    table = found.comms.table
    kinds = table.kind[found.row_of_comm >= 0]
    unmatched += _reasons(("communication: nothing in the trace carried it out", len(table) - len(kinds)))
    return {
        "device_ops": len(activities),
        "device_ops_linked": int(tied.sum()),
        "host_ops": len(host) if host is not None else int(operators.sum()),
        "host_ops_timed": timed if host is not None else int(operators.sum()),
        "collectives": int((kinds == Kind.COLL).sum()),
        "p2p": int((kinds != Kind.COLL).sum()),
        "unmatched": unmatched,
        "span_ns": int(found.end_ns.max() - found.start_ns.min()),
        "nodes": len(found),
        "dependencies": len(found.edge),
    }


def _reasons(*counted: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"reason": reason, "count": count} for reason, count in counted if count]
