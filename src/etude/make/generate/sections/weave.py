"""Weave: the programs of a rank's sections merged into one, with the messages of borders inserted.

Sections that share a rank take turns: forward passes in the order of the sections; those that wait for gradients run
backward in the opposite order after the last one is done. Within a turn a program is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, Bool
from etude.kernels.compile import kernel
from etude.make.generate.blocks.ops import Phase, Stream
from etude.model.build import build_trace
from etude.model.graph import dependencies, topological_order
from etude.model.schema import COLUMN, NODE, UNKNOWN, Kind, Why
from etude.model.trace import Trace

MADE = ("lane", "layout", "source_id", "io", "parent")
"""Columns that are rebuilt."""


@dataclass(frozen=True, slots=True, eq=False)
class SectionPart:
    """A section's program on a rank."""

    trace: Trace
    turn: I64
    """Turn of each row."""
    tag_base: int
    label: str
    joint: bool = False
    """Turns are those of actions, between which only compute is ordered."""
    words: dict[str, tuple[I32, list[str]]] = field(default_factory=dict)
    """Requested text columns, cached: a part is woven many times."""

    def coded(self, column: str) -> tuple[I32, list[str]]:
        if column not in self.words:
            self.words[column] = self.trace.coded(column)
        return self.words[column]


@dataclass(frozen=True, slots=True, eq=False)
class MessageEnds:
    """Ends of messages on a rank, a row each."""

    part: I64
    row: I64
    """The row that a receive is for, or that a send comes from."""
    sends: Bool
    slot: I64
    """Peer slot, from 0."""
    tag: I64
    micro_batch: I64
    back: Bool
    module: I64
    """Number of the border."""
    size_bytes: I64
    early: Bool
    """Whether a send waits for no row: it is placed before its own."""

    def __len__(self) -> int:
        return len(self.row)

    def structure(self) -> bytes:
        """Everything except the sizes, which are values of the ranks."""
        columns = (self.part, self.row, self.sends, self.slot, self.tag, self.micro_batch, self.back, self.module,
                   self.early)  # fmt: skip
        return b"".join(np.ascontiguousarray(c, np.int64).tobytes() for c in columns)


@dataclass(frozen=True, slots=True, eq=False)
class Woven:
    """The program, and the positions of the parts' rows and of the messages in it."""

    trace: Trace
    rows: tuple[I64, ...]
    ends: I64


def not_before(trace: Trace, turn: I64) -> I64:
    """The turns of rows, none before that of its dependencies."""
    dep = dependencies(trace)
    return np.asarray(_latest(dep.start, dep.rows, topological_order(trace), turn), np.int64)


def when_needed(trace: Trace, turn: I64, free: Bool) -> I64:
    """The turns of rows; `free` ones come with the first row that waits for them, if that is earlier than their own."""
    dep = dependencies(trace)
    return np.asarray(_earliest(dep.start, dep.rows, topological_order(trace), turn, free), np.int64)


@kernel
def _earliest(start, rows, order, turn, free):  # type: ignore[no-untyped-def]
    found = turn.copy()
    for i in order[::-1]:
        for k in range(start[i], start[i + 1]):
            if rows[k] >= 0 and free[rows[k]]:
                found[rows[k]] = min(found[rows[k]], found[i])
    return found


@kernel
def _latest(start, rows, order, turn):  # type: ignore[no-untyped-def]
    found = turn.copy()
    for i in order:
        for k in range(start[i], start[i + 1]):
            if rows[k] >= 0:
                found[i] = max(found[i], found[rows[k]])
    return found


def weave(parts: Sequence[SectionPart], ends: MessageEnds, borders: Sequence[str]) -> Woven:
    """`borders`: their names, for the column `module`."""
    starts = np.cumsum([0] + [len(p.trace) for p in parts])
    total, peers = int(starts[-1]), np.cumsum([0] + [p.trace.peer_slots for p in parts])
    anchor = starts[ends.part] + ends.row
    turn = np.concatenate([p.turn for p in parts])
    # A receive is placed before the row that waits for it, a send after its source row.
    turns = np.concatenate([turn, turn[anchor]])
    beside = np.concatenate([np.ones(total, np.int64), np.where(ends.sends & ~ends.early, 2, 0)])
    order = np.lexsort((beside, np.concatenate([np.arange(total), anchor]), turns))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns = _columns(parts, ends, borders, int(peers[-1]), peers)
    columns = {n: (c[0][order], c[1]) if isinstance(c, tuple) else c[order] for n, c in columns.items()}
    own = np.arange(total, len(order))
    tied = ~(ends.sends & ends.early)
    pairs = np.where(ends.sends, own, anchor)[tied], np.where(ends.sends, anchor, own)[tied]
    data, data_why = _edges(parts, starts, "data", pairs)
    held_up = [_between(parts, turn, starts), _queued(parts, turn)]
    more = np.concatenate([e[0] for e in held_up]), np.concatenate([e[1] for e in held_up])
    ctrl, ctrl_why = _edges(parts, starts, "ctrl", more)
    slots = [f"{p.label}.{label}" for p in parts for label in p.trace.group_slots]
    trace = build_trace(
        columns,
        data=_csr(place[data[0]], place[data[1]], len(order)),
        ctrl=_csr(place[ctrl[0]], place[ctrl[1]], len(order)),
        data_why=data_why[np.argsort(place[data[0]], kind="stable")],
        ctrl_why=ctrl_why[np.argsort(place[ctrl[0]], kind="stable")],
        group_slots=slots,
        peer_slots=int(peers[-1]) + (int(ends.slot.max()) + 1 if len(ends) else 0),
    )
    rows = tuple(place[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    return Woven(trace, rows, place[total:])


def _columns(
    parts: Sequence[SectionPart], ends: MessageEnds, borders: Sequence[str], first_peer: int, peers: I64
) -> dict[str, Any]:
    """Every column that any part has, rows of the parts first, then the ends of messages."""
    groups = np.cumsum([0] + [len(p.trace.group_slots) for p in parts])
    fresh = _fresh(ends, borders, first_peer)
    found: dict[str, Any] = {}
    for c in NODE:
        if c.name in MADE or (c.name not in fresh and all(getattr(p.trace, c.name).strides == (0,) for p in parts)):
            continue
        if COLUMN[c.name].is_text:
            found[c.name] = _words([p.coded(c.name) for p in parts], fresh.get(c.name), len(ends))
            continue
        columns = [getattr(p.trace, c.name) for p in parts]
        moved = {"group": groups, "src": peers, "dst": peers}.get(c.name)
        if moved is not None:
            columns = [np.where(v >= 0, v + moved[i], v) for i, v in enumerate(columns)]
        elif c.name == "tag":
            columns = [np.where(v >= 0, v + p.tag_base, v) for v, p in zip(columns, parts, strict=True)]
        more = fresh.get(c.name, np.full(len(ends), c.default, c.dtype))
        found[c.name] = np.concatenate([*columns, np.asarray(more, c.dtype)])
    return found


def _fresh(ends: MessageEnds, borders: Sequence[str], first_peer: int) -> dict[str, Any]:
    slot = first_peer + ends.slot
    return {
        "kind": np.where(ends.sends, int(Kind.SEND), int(Kind.RECV)),
        "name": ((~ends.sends).astype(np.int64), ["nccl:send", "nccl:recv"]),
        "cpu": np.zeros(len(ends), np.int8),
        "stream": np.where(ends.sends, int(Stream.BORDER), UNKNOWN),
        "in_bytes": ends.size_bytes,
        "src": np.where(ends.sends, -1, slot),
        "dst": np.where(ends.sends, slot, -1),
        "tag": ends.tag,
        "phase": (ends.back.astype(np.int64), [Phase.FORWARD.label, Phase.INPUT.label]),
        "module": (ends.module, list(borders)),
        "micro_batch": ends.micro_batch,
        "step": np.zeros(len(ends), np.int64),
    }


def _words(
    parts: Sequence[tuple[I32, list[str]]], fresh: tuple[I64, list[str]] | None, count: int
) -> tuple[I64, list[str]]:
    known: dict[str, int] = {}
    codes = []
    for found, words in [*parts, fresh or (np.full(count, -1), [])]:
        number = np.array([known.setdefault(w, len(known)) for w in words] + [-1], np.int64)
        codes.append(number[found])
    return np.concatenate(codes), list(known)


Edges = tuple[I64, I64]


def _edges(parts: Sequence[SectionPart], starts: I64, which: str, more: Edges) -> tuple[Edges, NDArray[np.uint8]]:
    """(rows, rows that they wait for) of the parts and more, and why."""
    rows, waited, why = [], [], []
    for part, at in zip(parts, starts.tolist(), strict=False):
        start, edge = getattr(part.trace, f"{which}_start"), getattr(part.trace, which)
        rows.append(np.repeat(np.arange(len(start) - 1), np.diff(start)) + at)
        waited.append(edge.astype(np.int64) + at)
        why.append(getattr(part.trace, f"{which}_why"))
    reason = Why.TENSOR if which == "data" else Why.PROGRAM
    why.append(np.full(len(more[0]), int(reason), np.uint8))
    return (np.concatenate([*rows, more[0]]), np.concatenate([*waited, more[1]])), np.concatenate(why)


def _csr(rows: I64, waited: I64, n: int) -> tuple[I64, I32]:
    order = np.argsort(rows, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
    return start, waited[order].astype(np.int32)


def _queued(parts: Sequence[SectionPart], turn: I64) -> Edges:
    """In a joint pipeline collectives of a stream run in order, whichever section they belong to: members with
    different orders would deadlock."""
    if not any(p.joint for p in parts):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    kind, stream = (np.concatenate([getattr(p.trace, name) for p in parts]) for name in ("kind", "stream"))
    part = np.repeat(np.arange(len(parts)), [len(p.trace) for p in parts])
    rows = np.flatnonzero(kind == int(Kind.COLL))
    rows = rows[np.lexsort((rows, turn[rows], stream[rows]))]
    before, after = rows[:-1], rows[1:]
    others = (stream[before] == stream[after]) & (part[before] != part[after])  # a section's own are in order
    return after[others], before[others]


def _between(parts: Sequence[SectionPart], turn: I64, starts: I64) -> Edges:
    """Edges from one turn to the next: the start of a turn waits for the end of the previous one. Messages delay
    nothing else, and wait only for their own data."""
    turns = np.unique(turn).tolist()
    if len(turns) == 1:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    kind = np.concatenate([p.trace.kind for p in parts])
    works = (kind != int(Kind.SEND)) & (kind != int(Kind.RECV))
    if any(p.joint for p in parts):
        works = (kind == int(Kind.COMP)) & (np.concatenate([p.trace.cpu for p in parts]) != 1)
    pairs = [_edges(parts, starts, which, (np.zeros(0, np.int64),) * 2)[0] for which in ("data", "ctrl")]
    row, waits_for = np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])
    inside = works[row] & works[waits_for] & (turn[row] == turn[waits_for])
    waits, awaited = np.zeros(len(turn), bool), np.zeros(len(turn), bool)
    waits[row[inside]], awaited[waits_for[inside]] = True, True
    rows, ends = [], []
    before = np.zeros(0, np.int64)
    for one in turns:
        mine = works & (turn == one)
        first, last = np.flatnonzero(mine & ~waits), np.flatnonzero(mine & ~awaited)
        rows.append(np.repeat(first, len(before)))
        ends.append(np.tile(before, len(first)))
        before = last if len(last) else before
    found = np.concatenate(rows) * len(turn) + np.concatenate(ends)
    found = np.setdiff1d(found, pairs[1][0] * len(turn) + pairs[1][1])  # some exist already
    return found // len(turn), found % len(turn)
