"""Plans the communication of a job: a Program for each rank with only collectives, messages and waits.

Calls are issued in the order of the trace. Each is waited for where the trace first needs it: before the first call
that depends on it, directly or through work between them. Order on a stream or on a backend thread is not a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import TraceError, UsageError
from etude.kernels.arrays import I32, I64, Bool
from etude.kernels.compile import kernel
from etude.model.attrs import decode_value
from etude.model.feeder import feeder
from etude.model.job import Job, ranges
from etude.model.schema import UNKNOWN, Collective, Kind, LaneKind, ValueKind, Why
from etude.model.trace import Trace
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.program import NOTHING, CommKind, Program, StepKind
from etude.run.replay.sizes import ELEMENT
from etude.run.replay.unprofiled import unprofiled_step_ns

_RECORDED: Final = {
    "float": "float32", "double": "float64", "Half": "float16", "BFloat16": "bfloat16", "long int": "int64",
    "long": "int64", "int": "int32", "short": "int16", "short int": "int16", "signed char": "int8",
    "unsigned char": "uint8", "bool": "bool", "complex<float>": "complex64", "complex<double>": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
}  # fmt: skip
_ROOTED: Final = (CommKind.REDUCE, CommKind.BROADCAST, CommKind.GATHER, CommKind.SCATTER)
_SHARED_OUT: Final = (CommKind.ALL_GATHER, CommKind.GATHER)
_SHARED_IN: Final = (CommKind.REDUCE_SCATTER, CommKind.REDUCE_SCATTER_BLOCK, CommKind.SCATTER)


def plan_communication(job: Job, ranks: Sequence[int] | None = None) -> list[Program]:
    """The communication of these ranks, or of all ranks present, as one Program for each rank."""
    chosen = job.ranks.tolist() if ranks is None else list(ranks)
    absent = sorted(set(chosen) - set(job.ranks.tolist()))
    if absent:
        hint = f"present: {ranges(job.ranks)}"
        raise UsageError(f"ranks {ranges(np.array(absent))} are not in the job", where="--ranks", hint=hint)
    if not chosen:
        raise UsageError("no rank is chosen", where="--ranks", hint=f"present: {ranges(job.ranks)}")
    orders: dict[int, CallOrder] = {}
    return [_program(job, rank, orders) for rank in chosen]


# -- order and waits ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class CallOrder:
    """The calls of a trace in the order of issue, and when each is waited for."""

    rows: I64
    """Nodes of the calls."""
    wait_at: I64
    """Call i is waited for before call wait_at[i] is issued; len(rows): at the end."""
    before_ns: I64
    """`before_ns`: recorded work of the host and the device before the waits that precede call i; `after_ns`: after
    them."""
    after_ns: I64


class _Edges(NamedTuple):
    """Dependencies in CSR form: node n waits for `on[start[n]:start[n + 1]]`."""

    start: I64
    on: I32
    held: Bool  # False: only an order in a queue, not a wait


def call_order(trace: Trace) -> CallOrder:
    """Finds the order, the waits and the work between calls: one pass over the dependencies for the waits, one for the
    work."""
    talks = (trace.kind == Kind.COLL) | (trace.kind == Kind.SEND) | (trace.kind == Kind.RECV)
    order = _run_order(trace)
    position = np.full(len(trace), -1, np.int64)
    rows = order[talks[order]].astype(np.int64)
    position[rows] = np.arange(len(rows))
    edges = _edges(trace, talks)
    wait_at = np.full(len(trace), len(rows), np.int64)
    _first_needed(order, position, edges, wait_at)
    cost = np.where((trace.duration_ns == UNKNOWN) | talks | _frames(trace), 0, trace.duration_ns)
    begin, since = np.zeros(len(trace), np.int64), np.full(len(trace), -1, np.int64)
    _work_before(order, position, edges, np.maximum(cost, 0), begin, since)
    gap = np.maximum(np.diff(begin[rows], prepend=0), 0)
    waited = np.zeros(len(rows) + 1, np.bool_)
    waited[wait_at[rows]] = True
    after = np.where(waited[: len(rows)], np.maximum(since[rows], 0), 0)
    return CallOrder(rows, wait_at[rows], np.maximum(gap - after, 0), after)


def _run_order(trace: Trace) -> I32:
    """Rows in an order in which each comes after all that it waits for; of several that are ready, the smallest
    first."""
    with feeder(trace, missing="drop") as feed:
        return feed.drain(0)


def _frames(trace: Trace) -> Bool:
    """Operators that called others: their time is already counted in those."""
    found = np.zeros(len(trace), np.bool_)
    found[trace.parent[trace.parent >= 0]] = True
    return found


def _outermost(trace: Trace) -> I64:
    """The outermost operator around each node; the node itself if it has no parent."""
    found = np.where(trace.parent >= 0, trace.parent, np.arange(len(trace)))
    while (found[found] != found).any():
        found = found[found]
    return found


def _edges(trace: Trace, talks: Bool) -> _Edges:
    """Data and control dependencies of each node."""
    of = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
    of_ctrl = np.repeat(np.arange(len(trace)), np.diff(trace.ctrl_start))
    node, on = np.concatenate([of, of_ctrl]), np.concatenate([trace.data, trace.ctrl])
    why = np.concatenate([trace.data_why, trace.ctrl_why])
    keep = on >= 0
    node, on, why = node[keep], on[keep], why[keep]
    queued = talks[on] & talks[node] & np.isin(why, (Why.PROGRAM, Why.STREAM, Why.COLLECTIVE))
    # A backend thread runs one call after another: the next one did not wait for the result of this one.
    lane, outermost = trace.lane, _outermost(trace)
    backend = np.zeros(len(trace.lane_kind) + 1, np.bool_)  # the last entry is for nodes without a lane
    backend[lane[talks]] = True
    backend &= np.append(trace.lane_kind == LaneKind.THREAD, False)
    in_turn = (lane[on] == lane[node]) & backend[lane[node]] & (why == Why.PROGRAM) & (outermost[on] != outermost[node])
    held = ~(queued | in_turn)
    sort = np.argsort(node, kind="stable")
    start = np.searchsorted(node[sort], np.arange(len(trace) + 1)).astype(np.int64)
    return _Edges(start, on[sort].astype(np.int32), held[sort])


@kernel
def _first_needed(order, position, edges, wait_at):  # type: ignore[no-untyped-def]
    """Sets wait_at[n] to the first call that waits for node n, directly or through nodes that are not calls."""
    for i in range(len(order) - 1, -1, -1):
        node = order[i]
        first = position[node] if position[node] >= 0 else wait_at[node]
        for k in range(edges.start[node], edges.start[node + 1]):
            if edges.held[k] and first < wait_at[edges.on[k]]:
                wait_at[edges.on[k]] = first


@kernel
def _work_before(order, position, edges, cost, begin, since):  # type: ignore[no-untyped-def]
    """Sets begin[n]: when node n could start if calls took no time; since[n]: the longest work from the end of a call
    to it."""
    for node in order:
        for k in range(edges.start[node], edges.start[node + 1]):
            on = edges.on[k]
            if not edges.held[k]:
                continue
            begin[node] = max(begin[node], begin[on] + cost[on])
            if position[on] >= 0:
                since[node] = max(since[node], 0)
            elif since[on] >= 0:
                since[node] = max(since[node], since[on] + cost[on])


# -- calls -------------------------------------------------------------------------------------------------------------


class _Told(NamedTuple):
    """What the attributes say about calls: node -> value."""

    root: dict[int, int]
    dtype: dict[int, str]
    in_split: dict[int, list[int]]
    out_split: dict[int, list[int]]


def _told(trace: Trace) -> _Told:
    found: dict[str, dict[int, Any]] = {name: {} for name in _Told._fields}
    names = {"comm_root": "root", "dtype": "dtype", "in_split": "in_split", "out_split": "out_split"}
    for (name, kind), (nodes, cells) in trace.attr_cells().items():
        if name in names and (kind.is_list or kind == ValueKind.STRING or kind.is_integer):
            values = (decode_value(trace.heap, kind, cell) for cell in cells.tolist())
            found[names[name]].update(zip(nodes.tolist(), values, strict=True))
    return _Told(**found)


def _program(job: Job, rank: int, orders: dict[int, CallOrder]) -> Program:
    where, number = f"rank {rank}", int(job.trace_of[job.index(rank)])
    trace = job.trace(rank)
    own_times = "duration_ns" in job.values.get(rank, {})
    order = call_order(trace) if own_times else orders.get(number)
    if order is None:
        order = orders[number] = call_order(trace)
    told = _told(trace)
    build = ProgramBuilder(
        rank=rank, world_size=job.world_size, job=job.name, only="communication", steps=_steps(trace),
        recorded_step_ns=_span(job, rank), unprofiled_step_ns=unprofiled_step_ns(job),
    )  # fmt: skip
    groups = job.group_slots(rank)
    waits: dict[int, list[int]] = {}
    for call, at in enumerate(order.wait_at.tolist()):
        waits.setdefault(at, []).append(call)
    batches = _batches(trace, order)
    start = _starts(job, rank)
    for call, row in enumerate(order.rows.tolist()):
        _host(build, int(order.before_ns[call]))
        for earlier in waits.get(call, []):
            if earlier != call - 1:
                build.wait(earlier)
        _host(build, int(order.after_ns[call]))
        given = _call(job, trace, told, rank, row, groups, build, where)
        build.comm(
            **given,
            is_async=int(order.wait_at[call]) != call + 1,
            batch=int(batches[call]),
            label=trace.text("name", row),
            start_ns=int(start[row]),
            work_ns=max(int(trace.duration_ns[row]), 0),
            node=row,
        )
    for earlier in waits.get(len(order.rows), []):
        if earlier != len(order.rows) - 1:
            build.wait(earlier)
    return build.build()


def _host(build: ProgramBuilder, ns: int) -> None:
    if ns > 0:
        build.step(StepKind.HOST, ns)


def _steps(trace: Trace) -> int:
    """Number of training steps in a trace, at least 1."""
    return len(np.unique(trace.step[trace.step != UNKNOWN])) or 1


def _span(job: Job, rank: int) -> int:
    """Recorded time of one step, in ns; NOTHING if no times were recorded."""
    if job.timing is None:
        return NOTHING
    span = job.timing.of_rank(job.index(rank)).span()
    return (span[1] - span[0]) // _steps(job.trace(rank)) if span else NOTHING


def _starts(job: Job, rank: int) -> I64:
    """Recorded starts in ns since the start of the rank's recording; NOTHING if unknown."""
    if job.timing is None:
        return np.full(len(job.trace(rank)), NOTHING, np.int64)
    start, _ = job.timing.block(job.index(rank))
    known = start != UNKNOWN
    return np.where(known, start - (start[known].min() if known.any() else 0), NOTHING)


def _batches(trace: Trace, order: CallOrder) -> I64:
    """The batch of each call: messages issued one after another with no wait between them form one batch; NOTHING if
    none.

    Without batches, a backend that runs the messages of two ranks in order could make a send wait for a later
    receive.
    """
    message = (trace.kind[order.rows] == Kind.SEND) | (trace.kind[order.rows] == Kind.RECV)
    waited = np.zeros(len(order.rows) + 1, np.bool_)
    waited[order.wait_at] = True
    joined = np.zeros(len(order.rows), np.bool_)
    joined[1:] = message[1:] & message[:-1] & ~waited[1 : len(order.rows)]
    number = np.cumsum(~joined) - 1
    single = np.bincount(number, minlength=1)[number] == 1 if len(number) else number == 0
    return np.where(single, NOTHING, number)


def _call(
    job: Job, trace: Trace, told: _Told, rank: int, row: int, groups: I32, build: ProgramBuilder, where: str
) -> dict[str, Any]:
    """The arguments of `ProgramBuilder.comm` for a call."""
    place = f"{where}, node {int(trace.source_id[row]) + int(job.id_base[job.index(rank)])}"
    kind = _kind(trace, row, place)
    dtype = _dtype(trace, told, row)
    if kind in (CommKind.SEND, CommKind.RECV):
        return _message(job, trace, rank, row, kind, dtype, place)
    members, name = _members(job, trace, row, groups, place)
    if rank not in members:
        raise TraceError(f"a collective of group `{name}`, but the rank is not a member", where=place)
    into, out = _bytes(trace, row, kind, len(members), place)
    root = NOTHING
    if kind in _ROOTED:
        root = members[_within(told.root.get(row, 0), len(members), place)]
    splits = {}
    for side in ("in_split", "out_split"):
        share = getattr(told, side).get(row, [])
        if share and len(share) != len(members):
            raise TraceError(f"`{side}` has {len(share)} parts, but there are {len(members)} members", where=place)
        splits[side] = share if len(set(share)) > 1 else []  # equal shares need no list
    if kind in (CommKind.GATHER, CommKind.SCATTER) and any(splits.values()):
        raise TraceError(f"a {kind.name.lower()} of unequal shares cannot be replayed", where=place)
    width = ELEMENT[dtype]
    sizes = [into, out, *splits["in_split"], *splits["out_split"]]
    if any(size % width for size in sizes) or _shares_break(kind, into, out, len(members), width, splits):
        dtype, width = "uint8", 1
    return {
        "kind": kind, "in_bytes": into, "out_bytes": out, "dtype": dtype, "group": build.group(members, name),
        "peer": root, "in_splits": [s // width for s in splits["in_split"]],
        "out_splits": [s // width for s in splits["out_split"]],
    }  # fmt: skip


def _shares_break(kind: CommKind, into: int, out: int, n: int, width: int, splits: dict[str, list[int]]) -> bool:
    """Whether an equal share of a buffer would not be a whole number of elements."""
    whole = out if kind in _SHARED_OUT else into if kind in (*_SHARED_IN, CommKind.ALL_TO_ALL) else 0
    return not splits["in_split"] and not splits["out_split"] and whole % (n * width) != 0


def _kind(trace: Trace, row: int, place: str) -> CommKind:
    if trace.kind[row] == Kind.SEND:
        return CommKind.SEND
    if trace.kind[row] == Kind.RECV:
        return CommKind.RECV
    found = int(trace.collective[row])
    if not Collective.NONE < found < Collective.OTHER:
        raise TraceError("a collective of unknown kind", where=place)
    return CommKind(found)


def _dtype(trace: Trace, told: _Told, row: int) -> str:
    """Data type of a call; `uint8` (plain bytes) if no known type was recorded."""
    if told.dtype.get(row) in ELEMENT:
        return told.dtype[row]
    text = trace.text("in_types", row)
    inner = text.partition("Tensor(")[2].partition(")")[0].removeprefix("c10::")
    return _RECORDED.get(inner, "uint8")


def _members(job: Job, trace: Trace, row: int, groups: I32, place: str) -> tuple[list[int], str]:
    slot = int(trace.group[row])
    if slot < 0:
        return list(range(job.world_size)), "world"
    group = int(groups[slot])
    members = job.groups.ranks(group)
    if members is None:
        hint = "give them with --groups"
        raise TraceError(f"the members of group `{job.groups.names[group]}` are not known", where=place, hint=hint)
    return members.tolist(), job.groups.names[group]


def _within(root: int, n: int, place: str) -> int:
    if not 0 <= root < n:
        raise TraceError(f"its root is member {root} of a group of {n}", where=place)
    return root


def _message(job: Job, trace: Trace, rank: int, row: int, kind: CommKind, dtype: str, place: str) -> dict[str, Any]:
    slot = int(trace.dst[row] if kind == CommKind.SEND else trace.src[row])
    peer = int(job.peer_slots(rank)[slot]) if slot >= 0 else -1
    if not 0 <= peer < job.world_size or peer == rank:
        raise TraceError("the other end of a message is not known", where=place)
    size = int(trace.in_bytes[row] if trace.in_bytes[row] != UNKNOWN else trace.out_bytes[row])
    if size < 0:
        raise TraceError("the size of a message was not recorded", where=place)
    tag = int(trace.tag[row])
    tag = tag + int(job.tag_base[job.index(rank)]) if tag >= 0 else 0
    return {
        "kind": kind,
        "in_bytes": size if kind == CommKind.SEND else 0,
        "out_bytes": size if kind == CommKind.RECV else 0,
        "dtype": dtype if size % ELEMENT[dtype] == 0 else "uint8",
        "peer": peer,
        "tag": tag,
    }


def _bytes(trace: Trace, row: int, kind: CommKind, n: int, place: str) -> tuple[int, int]:
    """Input and output bytes of a rank; if only one was recorded, the other is derived from it."""
    into, out = int(trace.in_bytes[row]), int(trace.out_bytes[row])
    if kind == CommKind.BARRIER:
        return 0, 0
    if into == UNKNOWN and out == UNKNOWN:
        raise TraceError("the size of a collective was not recorded", where=place)
    if kind in _SHARED_OUT:
        into, out = (out // n if into == UNKNOWN else into), (into * n if out == UNKNOWN else out)
    elif kind in _SHARED_IN:
        into, out = (out * n if into == UNKNOWN else into), (into // n if out == UNKNOWN else out)
    else:
        into, out = (out if into == UNKNOWN else into), (into if out == UNKNOWN else out)
    if into < 0 or out < 0:
        raise TraceError(f"a collective of {min(into, out)} bytes", where=place)
    return into, out
