"""One rank of a dry run as a trace: its operators that do work, with FLOPs and bytes, and no times.

What a rank writes (see `watch`) has a row for each operator that PyTorch dispatched. Rows that do work become
nodes; views and empty tensors do not. A node waits for what its stream did before, for what the program lets its stream
wait for, and for the writers of what it reads on other streams.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.capture.dry.watch import TEXTS
from etude.cost.aten import aten_work
from etude.cost.aten_inputs import listed, tensor_types, width_of
from etude.kernels.arrays import I64
from etude.model.build import build_trace
from etude.model.schema import UNKNOWN, Collective, Kind, Why
from etude.model.trace import Trace

_KINDS: Final = {"send": Kind.SEND, "recv": Kind.RECV}


class DryStorages(msgspec.Struct):
    events: list[int]
    """A number and its bytes, in turns; below 0 they are freed."""
    places: list[int]
    streams: list[int]
    made_at: list[int]
    roles: dict[str, str]


class DryCall(msgspec.Struct):
    """A communication: what it is, with whom, how much."""

    kind: str
    group: str
    in_bytes: int
    out_bytes: int
    peer: int | None
    root: int | None
    tag: int


class DryColumns(msgspec.Struct):
    """A row for each operator; texts are numbers of words."""

    name: list[int]
    in_shapes: list[int]
    in_types: list[int]
    in_values: list[int]
    in_strides: list[int]
    out_shapes: list[int]
    out_types: list[int]
    module: list[int]
    phase: list[int]
    step: list[int]
    stream: list[int]
    place: list[int]
    works: list[int]
    reads: list[list[int]]
    writes: list[list[int]]
    after: list[list[int]]
    forward: list[int]
    communication: list[DryCall | None]


class DryExchange(msgspec.Struct):
    """A collective of numbers that the rank knew, and the line that asked for what came out of it, if any did."""

    members: list[int]
    number: int
    """Among those of the group, from 1."""
    value: str
    where: str
    line: str


class DryModelCall(msgspec.Struct):
    """A call of a model that no other module makes."""

    model: int
    """Its number among all models that were called so."""
    name: str
    """Of its class."""
    parameters: int
    row: int
    """Rows before it."""


class DryShardCuts(msgspec.Struct):
    """Places among the members of a group at which the size of a weight's shards changes."""

    members: list[int]
    places: list[int]


class DryRank(msgspec.Struct):
    """All that a rank wrote."""

    format: int
    torch: str
    rank: int
    world: int
    steps: int
    words: list[str]
    columns: DryColumns
    groups: dict[str, list[int]]
    group_members: list[list[int]]
    storages: DryStorages
    step_events: list[int]
    calls: list[DryModelCall]
    cut_short: bool
    """Whether the program was ended because its calls were alike."""
    shard_cuts: list[DryShardCuts]
    unknown: dict[str, int]
    answered: dict[str, int]
    exchanges: list[DryExchange]
    notes: list[str]
    problem: dict[str, Any] | None


def read_dry_rank(path: Path) -> DryRank:
    try:
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=DryRank)
    except (OSError, EOFError, msgspec.MsgspecError) as problem:
        raise FormatError(f"is not what a rank of a dry run writes: {problem}", path=path) from None


@dataclass(frozen=True, slots=True, eq=False)
class DryTrace:
    """The trace of a rank, and what its slots stand for on this rank."""

    trace: Trace
    groups: tuple[tuple[int, ...], ...]
    """Members of the group behind each slot."""
    peers: tuple[tuple[int, int], ...]
    """Group slot and rank of the world behind each peer slot."""


def dry_trace(rank: DryRank, first_step: int, steps: int = 0) -> DryTrace:
    """The operators from a step on that do work, of `steps` steps (0: until the end)."""
    found = rank.columns
    step = np.array(found.step, np.int64)
    wanted = (step >= first_step) & (step < first_step + steps if steps else True)
    rows = np.flatnonzero((np.array(found.works) == 1) & wanted)
    number = np.full(len(found.works) + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    calls = [found.communication[row] for row in rows]
    columns, groups, peers = _calls(rank, calls)
    for name in TEXTS:
        columns[name] = np.array(getattr(found, name), np.int64)[rows], rank.words
    told = np.array([call is not None for call in calls], bool)
    columns["in_values"] = np.where(told, -1, columns["in_values"][0]), rank.words  # they name groups of this rank
    columns["flops"], columns["tensor_bytes"] = _work(rank, rows, columns["kind"])
    columns |= _lanes(found, rows)
    columns["step"] = step[rows] - first_step
    start, edge, why = _edges(found, rows, number)
    slots = tuple(f"g{i}" for i in range(len(groups)))
    trace = build_trace(columns, data=(start, edge), data_why=why, group_slots=slots, peer_slots=len(peers))
    return DryTrace(trace, tuple(groups), tuple(peers))


def _lanes(found: DryColumns, rows: I64) -> dict[str, Any]:
    stream, place = (np.array(column, np.int64)[rows] for column in (found.stream, found.place))
    calls = np.array([found.communication[row] is not None for row in rows], bool)
    on_host = (place == 0) & ~calls
    return {
        "cpu": on_host.astype(np.int8),
        "thread": np.where(on_host, 1, UNKNOWN),
        "stream": np.where(on_host, UNKNOWN, stream),
    }


def _calls(rank: DryRank, calls: list[DryCall | None]) -> tuple[dict[str, Any], list[tuple[int, ...]], list[Any]]:
    """(Columns of communications, members of each group slot, group slot and rank of each peer slot.)"""
    n = len(calls)
    groups: dict[tuple[int, ...], int] = {}
    peers: dict[tuple[int, int], int] = {}
    kind, collective = np.full(n, Kind.COMP, np.uint8), np.zeros(n, np.uint8)
    in_bytes, out_bytes, tag = np.full(n, UNKNOWN), np.full(n, UNKNOWN), np.full(n, -1)
    group, src, dst = (np.full(n, -1, np.int32) for _ in range(3))
    for i, call in enumerate(calls):
        if call is None:
            continue
        slot = groups.setdefault(tuple(rank.groups[call.group]), len(groups))
        kind[i] = _KINDS.get(call.kind, Kind.COLL)
        if kind[i] == Kind.COLL:
            group[i], collective[i] = slot, Collective.parse(call.kind)
            in_bytes[i], out_bytes[i] = call.in_bytes, call.out_bytes
            continue
        ends = [-1 if call.peer is None else call.peer, rank.rank]
        there, here = (peers.setdefault((slot, end), len(peers)) for end in ends)
        src[i], dst[i] = (here, there) if kind[i] == Kind.SEND else (there, here)
        in_bytes[i] = out_bytes[i] = max(call.in_bytes, call.out_bytes)
        tag[i] = call.tag
    columns = {
        "kind": kind,
        "collective": collective,
        "in_bytes": in_bytes,
        "out_bytes": out_bytes,
        "tag": tag,
        "group": group,
        "src": src,
        "dst": dst,
    }
    return columns, list(groups), list(peers)


def _work(rank: DryRank, rows: I64, kind: NDArray[np.uint8]) -> tuple[I64, I64]:
    """(FLOPs, bytes) of operators, each distinct one once. One that no formula knows reads what it is given and writes
    what it makes, once, and counts no operation."""
    found, words = rank.columns, rank.words
    names = ("name", "in_shapes", "in_types", "in_values", "out_shapes", "out_types")
    keys = np.stack([np.array(getattr(found, name), np.int64)[rows] for name in names], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    flops, size_bytes = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    for i, texts in enumerate([[words[j] for j in key] for key in distinct.tolist()]):
        work = aten_work(*texts[:4])
        moved = _bytes(*texts[1:3]) + _bytes(*texts[4:])
        flops[i] = max(0, work.flops)
        size_bytes[i] = work.size_bytes if work.size_bytes > 0 else moved
    compute, which = kind == Kind.COMP, which.reshape(-1)
    return np.where(compute, flops[which], UNKNOWN), np.where(compute, size_bytes[which], UNKNOWN)


def _bytes(shapes: str, types: str) -> int:
    total = 0
    for shape, kind in zip(listed(shapes), listed(types), strict=False):
        widths = [width_of(name) for name in tensor_types(kind)]
        each = shape if shape and isinstance(shape[0], list) else [shape]
        for size, width in zip(each, widths, strict=False):
            total += int(np.prod(size, dtype=np.int64)) * width
    return total


def _edges(found: DryColumns, rows: I64, number: I64) -> tuple[I64, I64, NDArray[np.uint8]]:
    """Dependencies as a CSR: order and waits of streams, and tensors that another stream wrote."""
    stream = np.array(found.stream, np.int64)
    counts = np.array([len(found.after[row]) for row in rows], np.int64)
    source = np.array([one for row in rows for one in found.after[row]], np.int64)
    target = np.repeat(rows, counts)
    why = np.where(stream[source] == stream[target], Why.STREAM, Why.EVENT).astype(np.uint8)
    writer, reader = _flows(found, rows)
    other = stream[writer] != stream[reader]
    source, target = np.concatenate([source, writer[other]]), np.concatenate([target, reader[other]])
    why = np.concatenate([why, np.full(int(other.sum()), Why.TENSOR, np.uint8)])
    source, target = number[source], number[target]
    inside = (source >= 0) & (target >= 0) & (source < target)
    source, target, why = source[inside], target[inside], why[inside]
    _, once = np.unique(target * (len(rows) + 1) + source, return_index=True)
    return np.searchsorted(target[once], np.arange(len(rows) + 1)), source[once], why[once]


def _flows(found: DryColumns, rows: I64) -> tuple[I64, I64]:
    """(The row that wrote last what another reads, the row that reads it.)"""
    n = len(found.works) + 1
    written = np.array([s * n + row for row in rows.tolist() for s in found.writes[row]], np.int64)
    read = np.array([s * n + row for row in rows.tolist() for s in found.reads[row]], np.int64)
    if not len(written) or not len(read):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    written = np.unique(written)
    at = np.searchsorted(written, read, "left") - 1
    same = (at >= 0) & (written[at] // n == read // n)
    return written[at[same]] % n, read[same] % n
