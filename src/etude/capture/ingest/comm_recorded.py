"""What `etude collect` saw of the calls of `torch.distributed`, assigned to the calls of a trace.

The profiler of gloo records neither group nor peer, and its threads begin work in any order. A recorded call has its
group, its number and its peer, and is found again by its thread: the calls of a thread are in the same order in both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from etude.base.errors import FormatError
from etude.capture.ingest.comm_calls import LARGEST, Call, type_of
from etude.capture.ingest.comm_groups import same_type
from etude.model.job import MAX_WORLD
from etude.model.schema import Kind
from etude.store import compressed

Number = Annotated[int, Meta(gt=-(2**62), lt=2**62)]
Count = Annotated[int, Meta(ge=0, lt=2**62)]
Bytes = Annotated[int, Meta(ge=0, lt=LARGEST)]
Rank = Annotated[int, Meta(ge=0, lt=MAX_WORLD)]


class RecordedCall(msgspec.Struct, gc=False):
    """One call. Ranks are global, times are Unix times."""

    name: str
    group: str
    issued_ns: Count
    sequence: Count | None = None
    """Number of the collective in its group, the same on every member."""
    operation: Number | None = None
    """Number of the call in its group as this rank's backend counts them."""
    peer: Rank | None = None
    tag: Number | None = None
    in_bytes: Bytes | None = None
    out_bytes: Bytes | None = None
    dtype: str = ""
    thread: Number | None = None
    """Its number in the system; None for what only the Flight Recorder saw."""
    returned_ns: Count | None = None


class _File(msgspec.Struct):
    calls: list[RecordedCall]


class CallSpan(NamedTuple):
    """Thread and Unix times of a call's event."""

    thread: int
    start_ns: int
    end_ns: int


def read_calls(path: Path, max_bytes: int | None = None) -> list[RecordedCall]:
    """The calls of one rank, in the order in which they were made."""
    heap, size = compressed.load(path, max_bytes)
    try:
        return msgspec.json.decode(heap[:size].tobytes(), type=_File).calls
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise FormatError(f"not a list of communication calls: {problem}", path=path) from None


def set_recorded(calls: list[Call], recorded: Sequence[RecordedCall], spans: Mapping[int, CallSpan]) -> list[Call]:
    """Fills in group, number and peer of each call that was recorded; returns the calls with the collectives of each
    group in the order of their numbers. `spans`: of the calls that have an event, by their place in `calls`."""
    matched: dict[int, RecordedCall] = {}
    for thread in {span.thread for span in spans.values()}:
        places = sorted((at for at, span in spans.items() if span.thread == thread), key=lambda at: spans[at].start_ns)
        rows = [row for row in recorded if row.thread == thread]
        matched |= _on_thread([(at, calls[at], spans[at]) for at in places], rows)
    unseen = sorted((row for row in recorded if row.thread is None), key=lambda row: row.issued_ns)
    made = [row.issued_ns for row in unseen]
    for at, span in spans.items():
        first = bisect_left(made, span.start_ns)
        inside = at not in matched and first < len(made) and made[first] <= span.end_ns
        if inside and same_type(calls[at], unseen[first].name):
            matched[at] = unseen[first]
    for at, row in matched.items():
        _fill(calls[at], row)
    return _by_number(calls, matched)


def _on_thread(own: list[tuple[int, Call, CallSpan]], rows: list[RecordedCall]) -> dict[int, RecordedCall]:
    """The recorded call of each call of a thread: in turn, if they are of the same types; else, where C++ has called
    too, by time: an event lies within the call."""
    types = [type_of(row.name) for row in rows]
    if types == [(call.kind, call.collective) for _, call, _ in own]:
        return {at: row for (at, _, _), row in zip(own, rows, strict=True)}
    middles = [(span.start_ns + span.end_ns) // 2 for _, _, span in own]
    found = {}
    for row, kind in zip(rows, types, strict=True):
        low, high = bisect_left(middles, row.issued_ns), bisect_left(middles, row.returned_ns or 0)
        inside = [at for at, call, _ in own[low:high] if (call.kind, call.collective) == kind]
        if len(inside) == 1:
            found[inside[0]] = row
    return found


def _fill(call: Call, row: RecordedCall) -> None:
    call.group = call.group if call.group is not None else row.group
    call.dtype = call.dtype or row.dtype
    if call.sequence < 0 and row.sequence is not None:
        call.sequence = row.sequence
    if call.inputs is None and row.in_bytes is not None:
        call.inputs = [row.in_bytes]
    if call.outputs is None and row.out_bytes is not None:
        call.outputs = [row.out_bytes]
    if call.tag < 0 and row.tag is not None:
        call.tag = row.tag
    if call.kind == Kind.SEND and call.dst < 0 and row.peer is not None:
        call.dst = row.peer
    if call.kind == Kind.RECV and call.src < 0 and row.peer is not None:
        call.src = row.peer


def _by_number(calls: list[Call], matched: Mapping[int, RecordedCall]) -> list[Call]:
    """The calls, the collectives of each group by their numbers; as they were if not all have one."""
    done = list(calls)
    places: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        if call.kind == Kind.COLL and call.group is not None:
            places.setdefault(call.group, []).append(at)
    for own in places.values():
        rows = [matched[at] for at in own if at in matched]
        for name in ("sequence", "operation"):
            numbers: list[int] = [number for row in rows if (number := getattr(row, name)) is not None]
            if len(numbers) == len(own):
                for at, k in zip(own, sorted(range(len(own)), key=numbers.__getitem__), strict=True):
                    done[at] = calls[own[k]]
                break
    return done
