"""Communications from what PyTorch recorded of them: types, bytes, groups, peers; never from the names of kernels.

    table = communications(host, device, rank=0)
    table.collective[0], table.in_bytes[0], table.groups[table.group[0]]

Sources, the better first: `record_param_comms` of the host trace, the same of the device trace, `c10d::` operators
(gloo has no record), arguments of kernels without a host. Groups come from the host's `process_group:init`, the device
trace's `distributedInfo`, functional collectives, `etude collect`, the Flight Recorder, a manifest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.comm_calls import Call, CallPart, parts
from etude.capture.ingest.comm_device import device_calls
from etude.capture.ingest.comm_groups import recorded_groups, set_flight, set_groups, set_peers
from etude.capture.ingest.comm_host import call_rows, host_calls
from etude.capture.ingest.comm_recorded import CallSpan, RecordedCall, set_recorded
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.capture.link.tree import innermost
from etude.kernels.arrays import I32, I64, U8
from etude.model.schema import UNKNOWN, Collective


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Communications:
    """One row per communication of one rank, in order of issue; coalesced or fused calls are split.

    UNKNOWN (bytes) and -1 (all else) if not recorded. Ranks are global.
    """

    host: I64
    """Row of the host trace that requested it: `record_param_comms`, else the `c10d::` operator."""
    event: I64
    """Row of the device trace with the same meaning."""
    work: I64
    """Row of the device trace that ran it: the NCCL kernel, or the `gloo:` event. Rows that share one were fused."""
    work_host: I64
    """Row of the host trace of the `gloo:` node."""
    kind: U8
    """SEND, RECV or COLL (etude.model.schema.Kind)."""
    collective: U8
    dtype: I32
    dtypes: tuple[str, ...]
    """`float32`, `bfloat16`, `int64`, ...; code -1 where not recorded."""
    in_bytes: I64
    out_bytes: I64
    group: I32
    """Row of `groups`."""
    groups: tuple[tuple[str, tuple[int, ...] | None], ...]
    """Name and members in order; members None if unknown. Includes groups without a communication."""
    root: I32
    src: I32
    dst: I32
    tag: I64
    sequence: I64
    """Sequence number within the group, as recorded."""
    in_split_start: I64
    in_split: I64
    """Bytes for each member: in_split[in_split_start[i]:in_split_start[i + 1]]; empty if unknown."""
    out_split_start: I64
    out_split: I64
    """Bytes from each member, likewise."""

    def __len__(self) -> int:
        return len(self.kind)


def communications(
    host: HostTrace | None,
    device: DeviceTrace | None,
    *,
    rank: int = -1,
    groups: Iterable[Mapping[str, Any]] = (),
    flight: Sequence[Mapping[str, Any]] = (),
    recorded: Sequence[RecordedCall] = (),
) -> Communications:
    """All communications of one rank. `groups`: more entries with `pg_name` and `ranks`, as in a manifest; `flight`:
    entries of the Flight Recorder; `recorded`: calls that `etude collect` saw; `rank`: -1 takes that of the device
    trace."""
    if rank < 0 and device is not None and isinstance(device.distributed.get("rank"), int):
        rank = device.distributed["rank"]
    if device is not None:
        device = device.as_recorded
    known = recorded_groups(host, device, groups)
    calls = _merged(host, device)
    spans = _spans(calls, device)
    if recorded:
        calls = set_recorded(calls, recorded, spans)
        spans = _spans(calls, device)
    set_flight(calls, flight, {at: (span.start_ns, span.end_ns) for at, span in spans.items()})
    set_groups(calls, known)
    set_peers(calls, known, rank)
    return _table(calls, known)


def _merged(host: HostTrace | None, device: DeviceTrace | None) -> list[Call]:
    """Calls of both sides, those with the same record-function id merged; the host's figures take precedence."""
    on_device = device_calls(device) if device is not None else []
    if host is None:
        return on_device
    calls = host_calls(host, _around(host, device) if device is not None else None)
    if device is None:
        return calls
    by_id = {rf_id: call for call in on_device for rf_id in call.rf_ids}
    row_of = _rows_by_id(device)
    seen = set()
    for call in calls:
        twin = next((by_id[rf_id] for rf_id in call.rf_ids if rf_id in by_id), None)
        if twin is not None:
            seen.add(id(twin))
            call.fill(twin)
            call.order = twin.order
        works = [row_of.get(int(host.rf_id[row]), -1) for row in call.work_host]
        # the device trace does not know which thread requested the work
        if works and (not call.work or (min(works) >= 0 and set(works) != set(call.work))):
            call.work = works
    if len(seen) < len(calls):
        # without a time of its own a call comes right after the one requested before it
        for before, call in itertools.pairwise(calls):
            call.order = call.order if call.event >= 0 else before.order
    rest = [call for call in on_device if id(call) not in seen]
    return sorted(calls + rest, key=lambda call: call.order)


def _around(host: HostTrace, device: DeviceTrace) -> dict[int, int]:
    """For each call of the host trace with an event, the call around it, by their times; -1: none. The observer's own
    tree is wrong if work of gloo ends on another thread."""
    known = np.flatnonzero(device.is_phase("X") & (device.rf_id > 0) & (device.start_ns != UNKNOWN))
    known = known[np.argsort(device.rf_id[known], kind="stable")]
    rows = np.array(call_rows(host), np.int64)
    at = np.searchsorted(device.rf_id[known], host.rf_id[rows])
    there = np.append(device.rf_id[known], 0)[at] == host.rf_id[rows]
    rows, event = rows[there], known[at[there]]
    start = device.start_ns[event]
    end = start + np.maximum(device.duration_ns[event], 0)
    outer = innermost(device.tid[event], start, end, ~device.name_has("gloo:")[event])
    return dict(zip(rows.tolist(), np.append(rows, -1)[outer].tolist(), strict=True))


def _rows_by_id(device: DeviceTrace) -> dict[int, int]:
    rows = np.flatnonzero(device.name_has("gloo:") & (device.rf_id > 0))
    return dict(zip(device.rf_id[rows].tolist(), rows.tolist(), strict=True))


def _spans(calls: Sequence[Call], device: DeviceTrace | None) -> dict[int, CallSpan]:
    """Threads and Unix times of the calls that have an event."""
    if device is None:
        return {}
    start = device.start_ns + device.base_ns
    end = start + np.maximum(device.duration_ns, 0)
    rows = [(i, c.event) for i, c in enumerate(calls) if c.event >= 0]
    return {i: CallSpan(int(device.tid[row]), int(start[row]), int(end[row])) for i, row in rows}


def _table(calls: Sequence[Call], known: Mapping[str, tuple[int, ...] | None]) -> Communications:
    group_of = {name: i for i, name in enumerate(known)}
    dtype_of: dict[str, int] = {}
    rows: list[tuple[Call, CallPart, int, int]] = []
    for call in calls:
        split = parts(call)
        work = _shared(call.work, len(split))
        work_host = _shared(call.work_host, len(split))
        rows += zip([call] * len(split), split, work, work_host, strict=True)

    def column(values: Iterable[int], dtype: type = np.int64) -> NDArray[Any]:
        return np.fromiter(values, dtype, len(rows))

    def code(call: Call) -> int:
        named = call.dtype and call.collective != Collective.BARRIER
        return dtype_of.setdefault(call.dtype, len(dtype_of)) if named else -1

    def csr(splits: list[tuple[int, ...]]) -> tuple[I64, I64]:
        start = np.cumsum([0, *map(len, splits)])
        return start.astype(np.int64), np.array([n for split in splits for n in split], np.int64)

    in_split_start, in_split = csr([p.in_split for _, p, _, _ in rows])
    out_split_start, out_split = csr([p.out_split for _, p, _, _ in rows])
    return Communications(
        host=column(c.host for c, _, _, _ in rows),
        event=column(c.event for c, _, _, _ in rows),
        work=column(w for _, _, w, _ in rows),
        work_host=column(w for _, _, _, w in rows),
        kind=column((c.kind for c, _, _, _ in rows), np.uint8),
        collective=column((c.collective for c, _, _, _ in rows), np.uint8),
        dtype=column((code(c) for c, _, _, _ in rows), np.int32),
        dtypes=tuple(dtype_of),
        in_bytes=column(p.in_bytes for _, p, _, _ in rows),
        out_bytes=column(p.out_bytes for _, p, _, _ in rows),
        group=column((group_of.get(c.group, -1) if c.group is not None else -1 for c, _, _, _ in rows), np.int32),
        groups=tuple(known.items()),
        root=column((c.root for c, _, _, _ in rows), np.int32),
        src=column((c.src for c, _, _, _ in rows), np.int32),
        dst=column((c.dst for c, _, _, _ in rows), np.int32),
        tag=column(c.tag for c, _, _, _ in rows),
        sequence=column(c.sequence for c, _, _, _ in rows),
        in_split_start=in_split_start,
        in_split=in_split,
        out_split_start=out_split_start,
        out_split=out_split,
    )


def _shared(rows: Sequence[int], count: int) -> list[int]:
    """A row for each part of a call: its own if the numbers match, else the first for all."""
    if len(rows) == count:
        return list(rows)
    return [rows[0] if rows else -1] * count
