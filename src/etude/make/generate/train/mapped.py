"""with_map(job, plan, mapped): a job of mapped attention with the actual tokens, pairs and message sizes of each
context-parallel rank. Empty messages, and attention to no keys, are removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.kernels.arrays import I32, I64, Bool
from etude.make.generate.choices import Batching
from etude.make.generate.maps.documents import dealt_out
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid
from etude.make.generate.train.lengths import Dealt, Lengths, with_lengths, work_of
from etude.model.job import Job
from etude.model.schema import NODE, UNKNOWN, Kind
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """Shares of context-parallel ranks, for every data-parallel rank (first axis) and micro-batch (second)."""

    tokens: I64
    pairs: I64
    """Pairs of the queries of one rank (third axis) with the keys of another (fourth)."""
    moved: I64
    """Tokens of keys and values sent from rank (third axis) to rank (fourth)."""
    pair_cost: float

    @property
    def imbalance(self) -> float:
        """Work of the fullest rank over the mean, minus one, weighted over micro-batches."""
        work = self.tokens + self.pair_cost * self.pairs.sum(axis=3)
        return float(work.max(axis=2).sum() / work.mean(axis=2).sum() - 1)

    @property
    def part_moved(self) -> float:
        """Tokens of keys and values that are sent, over those that a ring sends: (cp - 1) times all."""
        return float(self.moved.sum() / (self.tokens.sum() * max(self.tokens.shape[2] - 1, 1)))

    def summary(self) -> dict[str, Any]:
        messages = int((self.moved > 0).sum())
        return {"kv_of_ring": self.part_moved, "imbalance": self.imbalance, "messages_of_a_layer": messages}


def micro_batches(plan: Plan) -> Iterator[list[int]]:
    """Documents of each micro-batch: the first of each data-parallel rank, then the second of each, as lengths are
    dealt."""
    count = plan.dp * plan.micro_batches * plan.steps
    if not plan.lengths:
        yield from ([plan.seq] * plan.micro_batch for _ in range(count))
        return
    stream = Lengths.parse(plan.lengths).stream(plan.length_seed, plan.seq)
    if plan.batching == Batching.FIXED:
        yield from ([next(stream) for _ in range(plan.micro_batch)] for _ in range(count))
        return
    left = next(stream)
    for _ in range(count):
        found: list[int] = []
        for _ in range(plan.micro_batch):
            room = plan.seq
            while room:
                taken = min(left, room)
                found.append(taken)
                room, left = room - taken, left - taken or next(stream)
        yield found


def map_of(job: Job, plan: Plan) -> Mapped:
    cost = work_of(job.traces, plan)
    known: dict[tuple[int, ...], Any] = {}
    found = []
    for documents in micro_batches(plan):
        key = tuple(documents)
        if key not in known:
            known[key] = dealt_out(documents, str(plan.cp_map), plan.block, plan.cp, cost, plan.cp_shares)
        found.append(known[key])

    def column(name: str) -> I64:
        flat = np.stack([getattr(one, name) for one in found])
        return np.moveaxis(flat.reshape(-1, plan.dp, *flat.shape[1:]), 0, 1).copy()

    return Mapped(column("tokens"), column("pairs"), column("moved"), cost)


def with_map(job: Job, plan: Plan, mapped: Mapped) -> Job:
    """The job with the structure and values of every rank."""
    grid = RankGrid.of(plan)
    scaled = with_lengths(job, plan, _as_dealt(plan, mapped))
    traces: dict[tuple[int, bytes], int] = {}
    made: list[Trace] = []
    shared: dict[tuple[int, int, int], tuple[int, dict[str, I64]]] = {}
    trace_of, values = np.empty(len(job), np.int32), {}
    places = zip(grid.at["pp"].tolist(), grid.at["dp"].tolist(), grid.at["cp"].tolist(), strict=True)
    for rank, key in enumerate(places):
        stage, copy, cp = key
        if key not in shared:
            trace = job.traces[stage]
            own, keep = _own(trace, scaled.trace(rank), grid.at["cp"][job.peer_slots(rank)], mapped, copy, cp, plan)
            number = traces.setdefault((stage, keep.tobytes()), len(traces))
            if number == len(made):
                made.append(without(trace, keep))
            shared[key] = number, {name: column[keep] for name, column in own.items()}
        trace_of[rank], values[rank] = shared[key]
    return job.replace(traces=tuple(made), trace_of=trace_of, values=values)


def _as_dealt(plan: Plan, mapped: Mapped) -> Dealt:
    """Tokens and pairs with a row for each data- and context-parallel rank, in the order of their copies, times cp: so
    a rank with an equal part of the tokens has the factor 1."""
    tokens = np.moveaxis(mapped.tokens, 2, 1).reshape(plan.replicas, -1) * plan.cp
    pairs = np.moveaxis(mapped.pairs.sum(axis=3), 2, 1).reshape(plan.replicas, -1) * plan.cp
    return Dealt(np.ones_like(tokens), tokens, pairs, tokens, pairs, plan.micro_batches)


def _own(
    trace: Trace, scaled: Trace, peers: I32, mapped: Mapped, copy: int, cp: int, plan: Plan
) -> tuple[dict[str, I64], Bool]:
    """Values of a rank, and which rows it keeps."""
    codes, words = trace.coded("module")
    known = trace.micro_batch != UNKNOWN
    slot = np.where(known, np.where(known, trace.step, 0) * plan.micro_batches + trace.micro_batch, 0)
    behind = np.array([_behind(w) for w in words] + [-1])[codes]
    core = (behind >= 0) & (trace.kind == int(Kind.COMP)) & known & (trace.cpu != 1)
    pairs = mapped.pairs[copy, slot, cp, (cp - behind) % plan.cp]
    usual = plan.micro_batch * (plan.seq * (plan.seq + 1) // 2) / plan.cp**2
    flops = np.where(core, np.maximum(np.rint(trace.flops * (pairs / usual)), 1), scaled.flops).astype(np.int64)
    keep = ~(core & (behind > 0) & (pairs == 0))
    keep &= ~(_ends(codes, words, "attention.core.sum") & (mapped.moved[copy, slot, cp].sum(axis=1) == 0))
    size, whole = scaled.in_bytes.copy(), plan.micro_batch * plan.seq // plan.cp
    keys, back = (_ends(codes, words, f"attention.core.{end}") for end in ("keys", "back"))
    for kind, end in ((Kind.SEND, trace.dst), (Kind.RECV, trace.src)):
        at = np.flatnonzero((keys | back) & (trace.kind == int(kind)))
        other = peers[end[at]]
        # Keys go from their owner to a reader; their gradients go the other way.
        out = back[at] != (kind == Kind.SEND)
        tokens = np.where(out, mapped.moved[copy, slot[at], cp, other], mapped.moved[copy, slot[at], other, cp])
        size[at] = trace.in_bytes[at] // whole * tokens
        keep[at] = tokens > 0
    found = {"flops": flops, "tensor_bytes": scaled.tensor_bytes, "in_bytes": size, "out_bytes": scaled.out_bytes}
    return found, keep


def _behind(module: str) -> int:
    """How many places behind on the ring the owner of the keys is: 0 for the rank's own keys, -1 outside attention."""
    _, mark, number = module.rpartition("attention.core.far.")
    return int(number) if mark else 0 if module.endswith("attention.core") else -1


def _ends(codes: I32, words: list[str], end: str) -> Bool:
    return np.array([w.endswith(end) for w in words] + [False])[codes]


def with_domain(job: Job, plan: Plan) -> Job:
    """A job of tiles without the messages across the border of the field."""
    rows, columns = plan.domain_of
    grid = RankGrid.of(plan)
    traces: dict[tuple[int, bytes], int] = {}
    made: list[Trace] = []
    places: dict[tuple[int, int], int] = {}
    trace_of = np.empty(len(job), np.int32)
    offsets = [_offsets(trace) for trace in job.traces]
    for rank, key in enumerate(zip(grid.at["pp"].tolist(), grid.at["cp"].tolist(), strict=True)):
        if key not in places:
            stage, (y, x) = key[0], divmod(key[1], columns)
            dy, dx = offsets[stage]
            keep = (y + dy >= 0) & (y + dy < rows) & (x + dx >= 0) & (x + dx < columns)
            places[key] = traces.setdefault((stage, keep.tobytes()), len(traces))
            if places[key] == len(made):
                made.append(without(job.traces[stage], keep))
        trace_of[rank] = places[key]
    return job.replace(traces=tuple(made), trace_of=trace_of)


def _offsets(trace: Trace) -> tuple[I64, I64]:
    """For each row, the offset of its neighbour in rows and columns of the grid of tiles; 0 if it is not a halo
    message."""
    codes, words = trace.coded("module")
    marks = [w.rpartition(".halo.")[2] if ".halo." in w else "+0+0" for w in words] + ["+0+0"]
    return np.array([int(m[:2]) for m in marks])[codes], np.array([int(m[2:]) for m in marks])[codes]


# -- rows taken out ----------------------------------------------------------------------------------------------


def without(trace: Trace, keep: Bool) -> Trace:
    """The trace with only these rows. A row that waited for a removed one waits for what that one waited for."""
    if keep.all():
        return trace
    n, place = int(keep.sum()), np.cumsum(keep) - 1
    columns: dict[str, Any] = {c.name: getattr(trace, c.name)[keep] for c in NODE}
    columns["source_id"] = np.arange(n, dtype=np.uint64)
    for which, (row, waited) in _bridged(_pairs(trace, "data"), _pairs(trace, "ctrl"), keep).items():
        key = np.unique(place[row] * n + place[waited])
        why = getattr(trace, f"{which}_why")
        columns |= {
            f"{which}_start": np.concatenate([[0], np.cumsum(np.bincount(key // n, minlength=n))]).astype(np.int64),
            which: (key % n).astype(np.int32),
            f"{which}_why": np.full(len(key), int(why[0]) if len(why) else 0, np.uint8),
        }
    return trace.replace(**columns)


Edges = tuple[I64, I64]
"""Rows, and the rows that they wait for."""


def _pairs(trace: Trace, which: str) -> Edges:
    start, waited = getattr(trace, f"{which}_start"), getattr(trace, which)
    return np.repeat(np.arange(len(trace)), np.diff(start)), waited.astype(np.int64)


def _bridged(data: Edges, ctrl: Edges, keep: Bool) -> dict[str, Edges]:
    """Edges between kept rows. Through a removed row, data after data stays data; all else becomes control."""
    found = {"data": data, "ctrl": ctrl}
    found = {which: (row[keep[row]], waited[keep[row]]) for which, (row, waited) in found.items()}
    while any(not keep[waited].all() for _, waited in found.values()):
        lost = {which: ~keep[waited] for which, (_, waited) in found.items()}
        gone = {which: (row[lost[which]], waited[lost[which]]) for which, (row, waited) in found.items()}
        left = {which: (row[~lost[which]], waited[~lost[which]]) for which, (row, waited) in found.items()}
        turns = [_through(gone["ctrl"], data), _through(gone["ctrl"], ctrl), _through(gone["data"], ctrl)]
        found = {
            "data": _distinct([left["data"], _through(gone["data"], data)], len(keep)),
            "ctrl": _distinct([left["ctrl"], *turns], len(keep)),
        }
    return found


def _through(edges: Edges, more: Edges) -> Edges:
    """Edges from each row to what the rows that it waits for wait for; rows of `more` ascend."""
    late, early = more
    first = np.searchsorted(late, edges[1])
    count = np.searchsorted(late, edges[1], side="right") - first
    at = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count) + np.arange(int(count.sum()))
    return np.repeat(edges[0], count), early[at]


def _distinct(parts: list[Edges], n: int) -> Edges:
    key = np.unique(np.concatenate([row * n + waited for row, waited in parts]))
    return key // n, key % n
