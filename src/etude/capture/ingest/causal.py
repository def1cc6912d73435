"""A PyTorch recording of a rank as one rank of a job: the causal graph, with the recorded times.

    linked = convert(device_trace)                # a device trace alone
    linked = convert(device_trace, host_trace)    # ... with the operators' tensors and the groups of the host trace
    job = to_job("run", [linked])

Operators and calls that are made of others have no time; it is in `host` segments and in those others. What a node
waits for is in its edges, never in its `duration_ns`; its recorded start and end are in `job.timing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.capture.ingest.collectives import communications
from etude.capture.ingest.comm_nodes import comm_cells, comm_columns, comm_groups, groups_text
from etude.capture.ingest.comm_recorded import RecordedCall
from etude.capture.ingest.context import Context, context
from etude.capture.ingest.copies import rate_cells
from etude.capture.ingest.counters import CountedRanges, counted_ranges
from etude.capture.ingest.coverage import coverage
from etude.capture.ingest.dropped import dropped
from etude.capture.ingest.engine_passes import engine_passes
from etude.capture.ingest.events import OPERATORS, device_events, host_events
from etude.capture.ingest.graph import (
    ACTIVITY,
    DISPATCH,
    DISPATCH_NAME,
    GROUPS,
    HOST_EVENT,
    SEGMENT,
    SEGMENT_NAME,
    CausalGraph,
    graph,
)
from etude.capture.ingest.host_rows import host_rows
from etude.capture.ingest.linked import Linked, to_job
from etude.capture.ingest.recorded_times import recorded_columns
from etude.capture.ingest.spill import release_memory
from etude.capture.ingest.step_marks import crossing, steps
from etude.capture.ingest.tensors import tensor_flows
from etude.capture.ingest.work import node_work, operator_work
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.capture.link.python_text import PythonTexts
from etude.kernels.arrays import I64
from etude.model.job import MAX_WORLD, Note, Part
from etude.model.schema import NO_TEXT, NODE, RECORDED_NS, STACK, UNKNOWN, Kind, ValueKind
from etude.model.trace import Attr, Layout, Trace, complete_layouts, constant, lanes

__all__ = ["Linked", "convert", "to_job"]


_IO = ("in_values", "in_shapes", "in_types", "in_strides", "out_values", "out_shapes", "out_types", "out_strides")
_DEVICE_IO = {
    "in_values": "concrete_inputs",
    "in_shapes": "input_dims",
    "in_types": "input_types",
    "in_strides": "input_strides",
}
GROUPS_NAME = "## process_group:init ##"
"""Name of the node in which PyTorch's observer records the process groups."""
_CELLS = ("fw_parent", "seq_id", "scope", "fw_tid")


def convert(
    device: DeviceTrace,
    host: HostTrace | None = None,
    *,
    rank: int | None = None,
    groups: Sequence[Mapping[str, Any]] = (),
    flight: Sequence[Mapping[str, Any]] = (),
    calls: Sequence[RecordedCall] = (),
) -> Linked:
    """The causal graph of one rank. `rank` defaults to that of the file, else 0. `groups` are process groups as in a
    manifest, `flight` entries of the Flight Recorder, which know the groups of gloo, `calls` those of
    `torch.distributed` that `etude collect` saw."""
    rank = _rank_of(device, rank)
    events = host_events(device)
    activities = device_events(device, events)
    if not len(events) and not len(activities):
        raise TraceError(
            "it has no operator, call or device activity", where=device.json.path, hint="is it a trace of the profiler?"
        )
    rows, flows = np.full(len(events), -1, np.int64), None
    if host is not None:
        rows = host_rows(host, device, events)
        flows = tensor_flows(host, rows, events, activities)
    table = communications(host, device, rank=rank, groups=groups, flight=flight, recorded=calls)
    found = graph(device, events, activities, table, flows)
    counted = counted_ranges(device, found)
    trace, peers = _trace(device, host, found, rows, counted)
    release_memory()  # of the graph and the columns: recorded times are the last of many
    trace = trace.replace(**recorded_columns(device, found))
    notes = (*dropped(device, rank), *(Note(rank, what) for what in (*counted.notes, *crossing(device))))
    world = device.distributed.get("world_size")
    return Linked(
        part=Part(rank, trace, comm_groups(found.comms.table), peers, notes=notes),
        start_ns=found.start_ns + device.base_ns,
        end_ns=found.end_ns + device.base_ns,
        report=coverage(host, found, rows),
        world_size=world if isinstance(world, int) else 0,
        device=_device_name(device),
    )


def _rank_of(device: DeviceTrace, rank: int | None) -> int:
    """The given rank, else that of the file, else 0."""
    if rank is None:
        recorded = device.distributed.get("rank")
        rank = recorded if type(recorded) is int and recorded >= 0 else 0
    if rank >= MAX_WORLD:
        hint = f"at most {MAX_WORLD:,} are read"
        raise TraceError(f"claims to be rank {rank:,}", where=device.json.path, hint=hint)
    return rank


def _device_name(device: DeviceTrace) -> str:
    listed = device.members.get("deviceProperties")
    names = [one.get("name") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return next((name for name in names if isinstance(name, str) and name), "")


# -- the trace ---------------------------------------------------------------------------------------------------------


def _trace(
    device: DeviceTrace, host: HostTrace | None, found: CausalGraph, host_row: I64, counted: CountedRanges
) -> tuple[Trace, I64]:
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
    named = (found.what == HOST_EVENT) | on_device
    column: dict[str, Any] = {c.name: constant(c.name, n) for c in NODE}
    around = context(device)
    column |= _texts(texts, device, host, found, around, row, host_row)
    column |= {
        "source_id": np.arange(n, dtype=np.uint64),
        "kind": np.where(found.what == GROUPS, Kind.METADATA, Kind.COMP).astype(np.uint8),
        "duration_ns": found.own_ns,
        "cpu": (~on_device).astype(np.int8),
        "thread": _threads(found),
        "stream": stream,
        "step": steps(device, found),
        "rf_id": _known(device.rf_id, row, found.what == HOST_EVENT, zero=False),
        "external_id": _known(device.external_id, row, named),
        "correlation": _known(device.correlation, row, named, zero=False),
        "parent": _parents(found).astype(np.int32),
    }
    peers = comm_columns(found.comms, found.row_of_comm, found.host, column)
    column["flops"], column["tensor_bytes"] = _work(device, host, found, host_row, row, column["kind"])
    column["lane"], lane_kind, lane_id = lanes(column["kind"], column["cpu"], column["thread"], column["stream"])
    stack = _stacks(texts, found, around, row, column["parent"])
    layouts, column["layout"], cells = _attributes(texts, device, host, found, host_row, stack, counted)
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
    """Values of the rows that have them; an id of 0 is none unless `zero`."""
    found = np.where(wanted, values[row], UNKNOWN)
    return found if zero else np.where(found == 0, UNKNOWN, found)


def _threads(found: CausalGraph) -> I64:
    """Threads as numbered in the file; a named thread gets the next number."""
    tid = found.host.tid.copy()
    named = tid < -(1 << 62)
    tid[named] = tid.max(initial=0) + 1 + np.arange(int(named.sum()))
    thread = np.append(found.host.thread, -1)[np.where(found.what == HOST_EVENT, found.index, -1)]
    thread[found.what == GROUPS] = 0 if len(tid) else -1
    segments = found.what == SEGMENT
    thread[segments] = found.line.thread[found.index[segments]]
    numbers = np.append(tid, UNKNOWN)[thread]
    on_the_way = found.what == DISPATCH  # a lane for each stream, besides the threads
    numbers[on_the_way] = tid.max(initial=0) + 1 + found.device.stream[found.index[on_the_way]]
    return numbers


def _parents(found: CausalGraph) -> I64:
    """The parent of an event, the event of a segment, the operator that launched an activity."""
    parent = np.append(found.host.parent, -1)
    event = np.where(found.what == HOST_EVENT, parent[found.owner], found.owner)
    return np.append(found.row_of_event, -1)[event]


def _work(
    device: DeviceTrace, host: HostTrace | None, found: CausalGraph, host_row: I64, row: I64, kind: NDArray[np.uint8]
) -> tuple[I64, I64]:
    """(FLOPs, bytes) of compute nodes: on the device if the trace has one, else on the host; bytes of copies as
    recorded."""
    work = operator_work(host).take(host_row) if host is not None else operator_work(device).take(found.host.row)
    where = found.what == ACTIVITY if len(found.device) else (found.what <= SEGMENT) & (found.own_ns > 0)
    operator = np.where(where & (kind == Kind.COMP), found.owner, -1)
    flops, size_bytes = node_work(work, found.host.parent, operator, found.own_ns)
    activities = np.flatnonzero(found.what == ACTIVITY)
    copied = device.spread("copied_bytes")[row[activities]]
    copies = activities[copied >= 0]
    flops[copies], size_bytes[copies] = UNKNOWN, copied[copied >= 0]
    return flops, size_bytes


def _texts(
    texts: PythonTexts,
    device: DeviceTrace,
    host: HostTrace | None,
    found: CausalGraph,
    around: Context,
    row: I64,
    host_row: I64,
) -> dict[str, I64]:
    given = {SEGMENT: SEGMENT_NAME, GROUPS: GROUPS_NAME, DISPATCH: DISPATCH_NAME}
    words = np.array([texts.put(word.encode()) for word in (*device.names, *given.values())], np.int64)
    name = words[device.name[row]]
    for offset, what in zip(words[-len(given) :], given, strict=True):
        name[found.what == what] = offset
    done = found.row_of_comm >= 0  # also if its time is that of a segment
    name[found.row_of_comm[done]] = words[device.name[found.comms.table.work[done]]]
    is_groups = found.what == GROUPS
    column = {"name": name}
    events = found.what == HOST_EVENT
    source = (
        np.where(events, np.append(host_row, -1)[found.owner], -1) if host is not None else np.where(events, row, -1)
    )
    is_operator = device.is_category(*OPERATORS)
    for key in _IO:
        places = host.places.get(key) if host is not None else device.places.get(_DEVICE_IO.get(key, ""))
        if places is None or not (places >= 0).any():
            continue
        if host is None:  # most events are not operators
            places = np.where(is_operator, places, -1)
        # values of the host trace name tensors, which differ everywhere
        put = texts.put_all if host is not None and key.endswith("values") else texts.put_distinct
        column[key] = np.append(put(places), NO_TEXT)[source]
    operator = np.append(found.host.row, -1)[np.append(found.host.operator, -1)[found.owner]]
    for key in ("phase", "module"):
        words_of = getattr(around, f"{key}s")
        if not words_of:
            continue
        offsets = np.array([texts.put(word.encode()) for word in words_of] + [NO_TEXT], np.int64)
        column[key] = offsets[np.append(getattr(around, key), -1)[operator]]
    if is_groups.any():
        column.setdefault("in_values", np.full(len(found), NO_TEXT, np.int64))
        column["in_values"][is_groups] = texts.put(groups_text(found.comms.table).encode())
    return column


def _stacks(texts: PythonTexts, found: CausalGraph, around: Context, row: I64, parent: NDArray[np.int32]) -> I64:
    """Python stack of each operator that Python called, as text; callees have the same one and do not repeat it."""
    if not around.stacks:
        return np.full(len(found), NO_TEXT, np.int64)
    code = np.where(found.what == HOST_EVENT, around.stack[row], -1)
    code[(parent >= 0) & (code == code[parent])] = -1
    words = [
        texts.put(word.encode()) if used else NO_TEXT
        for word, used in zip(around.stacks, np.bincount(code + 1, minlength=len(around.stacks) + 1)[1:], strict=True)
    ]
    return np.array([*words, NO_TEXT], np.int64)[code]


def _attributes(
    texts: PythonTexts,
    device: DeviceTrace,
    host: HostTrace | None,
    found: CausalGraph,
    host_row: I64,
    stack: I64,
    counted: CountedRanges,
) -> tuple[tuple[Layout, ...], NDArray[np.int32], I64]:
    """Attributes besides the columns: sequence numbers, scopes and schemas of host operators; root, data type and
    shares of communications."""
    integer = ValueKind.INT64
    events = found.what == HOST_EVENT
    if host is None:
        own: Layout = (Attr("seq_id", integer),)
        rows = np.flatnonzero(events)
        sequence = device.sequence_number[found.host.row[found.owner[rows]]]
        rows, values = rows[sequence >= 0], sequence[sequence >= 0].reshape(-1, 1)
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
    # recorded times of what waits, or is made of others, do not follow from its own time; nor if it is changed
    length = found.end_ns - found.start_ns
    apart = length != found.own_ns
    apart[found.row_of_comm[found.row_of_comm >= 0]] = True
    recorded = Attr(RECORDED_NS, integer)
    layouts |= {(recorded,): 2, (*own, recorded): 3}
    layout[apart] += 2
    called = stack != NO_TEXT
    if called.any():
        layouts |= {(*entry, Attr(STACK, ValueKind.STRING)): number + 4 for entry, number in layouts.items()}
        layout[called] += 4
    activities = np.flatnonzero(found.what == ACTIVITY)
    added = rate_cells(device, activities, found.device.row[found.index[activities]])
    added |= comm_cells(texts, found.comms.table, found.row_of_comm)
    if host is not None:
        added |= _kernel_cells(texts, host, rows, source[rows])
    more_cells = counted.cells(texts) | engine_passes(device).cells(device, found)
    for row, (attrs, more) in more_cells.items():
        before = added.get(row, ((), []))
        added[row] = (*before[0], *attrs), [*before[1], *more]
    entries = list(layouts)
    for row, (attrs, _) in added.items():
        layout[row] = layouts.setdefault((*entries[layout[row]], *attrs), len(layouts))
    counts = np.array([len(entry) for entry in layouts], np.int32)[layout]
    start = np.cumsum(counts) - counts
    cells = np.empty(int(counts.sum()), np.int64)
    cells[start[rows][:, None] + np.arange(len(own))] = values
    has_own = np.zeros(len(found), np.bool_)
    has_own[rows] = True
    cells[start[apart] + np.where(has_own, len(own), 0)[apart]] = length[apart]
    cells[start[called] + (np.where(has_own, len(own), 0) + apart)[called]] = stack[called]
    for row, (attrs, more) in added.items():
        end = int(start[row] + counts[row])
        cells[end - len(attrs) : end] = more
    return tuple(layouts), layout, cells


def _kernel_cells(texts: PythonTexts, host: HostTrace, rows: I64, source: I64) -> dict[int, tuple[Layout, list[int]]]:
    """The source file of nodes that launch generated kernels (Triton). `source`: rows of the host trace."""
    named, places = host.kernel.get("kernel_file", (np.empty(0, np.int64), np.empty(0, np.int64)))
    place_of = dict(zip(named.tolist(), places.tolist(), strict=True))
    chosen = np.flatnonzero(np.isin(source, named)).tolist()
    attr = Attr("kernel_file", ValueKind.STRING)
    return {int(rows[k]): ((attr,), [texts.put(host.json.text(place_of[int(source[k])]).encode())]) for k in chosen}
