"""Sample lengths: their distribution, how samples are grouped into micro-batches, and the effect on the work.

The plan's micro-batch is `micro_batch` samples of `seq` tokens. With lengths, each data-parallel rank has its own
micro-batches: their tokens scale all work per token, their pairs of query and key scale attention. The structure of the
job stays the same; the values differ by rank.
"""

from __future__ import annotations

import csv
import math
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, UsageError
from etude.base.grammar import line
from etude.kernels.arrays import F64, I64, Bool
from etude.make.generate.choices import Batching
from etude.make.generate.plan import WAITING, Plan
from etude.make.generate.ranks import RankGrid
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

LONGEST: Final = 1 << 40
"""Limit of a sample's length in tokens, longer than any sequence."""
BY_TOKENS: Final = ("tp", "cp", "ep", "ep_in", "ep_out", "etp")
"""Groups whose collectives carry activations."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of samples and the frequency of each."""

    tokens: I64
    share: F64

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Reads `2048`, or `512:0.5,2048:0.3,8192:0.2`, or a CSV file with columns `length` and, optionally, `count`.
        Raises UsageError or FormatError."""
        if text.lower().endswith(".csv"):
            return cls._of(_read(Path(text)), text)
        pairs = []
        for part in line(text, "lengths", "2048, or 512:0.5,2048:0.5, or a .csv file").split(","):
            length, share = part.cut(":")
            pairs.append((length.count(most=LONGEST), share.number() if share is not None else 1.0))
        return cls._of(pairs, text)

    @classmethod
    def _of(cls, pairs: list[tuple[int, float]], where: str) -> Lengths:
        if any(abs(pair[0]) > LONGEST for pair in pairs):
            raise UsageError(f"a length of more than {LONGEST:,} tokens", where=where)
        tokens, share = np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs])
        if not len(tokens) or tokens.min() < 1 or not np.isfinite(share).all() or share.min() < 0 or not share.sum():
            raise UsageError("lengths are at least 1, and their weights add up to more than 0", where=where)
        return cls(tokens, share / share.sum())

    def stream(self, seed: int, longest: int) -> Iterator[int]:
        """Endless stream of sample lengths, cut at `longest`."""
        random = np.random.default_rng(seed)
        while True:
            yield from np.minimum(random.choice(self.tokens, 4096, p=self.share), longest).tolist()


def _read(path: Path) -> list[tuple[int, float]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        return [(int(row["length"]), float(row.get("count") or 1)) for row in rows]
    except (UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError):
        raise FormatError(
            "is not a table of lengths", path=path, hint="columns `length` and, optionally, `count`"
        ) from None


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """Work of each data-parallel rank (row) in each of its micro-batches (column), steps one after another."""

    samples: I64
    tokens: I64
    """Tokens worked on: with padding, where samples are padded."""
    pairs: I64
    """Causal pairs of query and key: each token with itself and those before it; with padding."""
    own_tokens: I64
    """Tokens of the samples, without padding."""
    own_pairs: I64
    per_step: int
    """Micro-batches of a step."""
    left: int = 0
    """Samples of the epoch that are in no step."""

    @property
    def steps(self) -> int:
        return self.tokens.shape[1] // self.per_step

    @property
    def padding(self) -> float:
        """Fraction of the tokens worked on that is padding."""
        return 1.0 - float(self.own_tokens.sum()) / float(self.tokens.sum())

    def imbalance(self, pair_cost: float) -> float:
        """Work of the steps, each as long as its fullest rank's, over that with even ranks, minus one."""
        work = (self.tokens + pair_cost * self.pairs).reshape(len(self.tokens), self.steps, self.per_step).sum(axis=2)
        return float(work.max(axis=0).sum() / work.mean(axis=0).sum() - 1.0)


Batch = list[int]
"""Lengths of the samples of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a micro-batch; infinity: no limit."""

    count: float = math.inf
    tokens: float = math.inf
    padded: float = math.inf
    """Tokens with all samples padded to the longest."""
    work: float = math.inf
    """Tokens plus `pair_cost` for each pair."""
    pair_cost: float = 0.0
    powers: float = math.inf
    """Number of samples times longest^power."""
    power: float = 1.0

    def take(self, count: int, tokens: int, pairs: int, longest: int) -> bool:
        """Whether these samples fit one micro-batch; an excess of 1e-9 counts as rounding."""
        return (
            count <= self.count
            and tokens <= self.tokens
            and count * longest <= self.padded
            and tokens + self.pair_cost * pairs <= self.work * (1 + 1e-9)
            and count * float(longest) ** self.power <= self.powers * (1 + 1e-9)
        )

    @classmethod
    def of(cls, plan: Plan, pair_cost: float, most_tokens: int) -> Bounds:
        """Limits of the plan; `most_tokens`: the tokens that fit into memory."""
        budget = plan.budget or plan.micro_batch * plan.seq
        sequences = budget / plan.seq
        match plan.batching:
            case Batching.FIXED | Batching.PADDED:
                return cls(count=plan.micro_batch)
            case Batching.TOKENS:
                return cls(tokens=min(budget, most_tokens))
            case Batching.PADDED_TOKENS | Batching.ONLINE:
                return cls(padded=min(budget, most_tokens))
        if plan.power:
            return cls(padded=most_tokens, powers=sequences * float(plan.seq) ** plan.power, power=plan.power)
        work = sequences * (plan.seq + pair_cost * _pairs(plan.seq))
        return cls(tokens=most_tokens, work=work, pair_cost=pair_cost)


def deal(lengths: Lengths, plan: Plan, *, pair_cost: float, most_tokens: int = LONGEST) -> Dealt:
    """Distributes samples over micro-batches. `pair_cost`: work of a pair in units of the work of a token;
    `most_tokens`: limit of a micro-batch with several samples."""
    stream = lengths.stream(plan.length_seed, plan.seq)
    wanted = plan.dp * plan.micro_batches * plan.steps
    if plan.batching == Batching.PACKED:
        left = [next(stream)]
        flat = [_packed(plan, stream, left) for _ in range(wanted)]
        return _in_turn(plan, np.array(flat, np.int64))
    bounds = Bounds.of(plan, pair_cost, most_tokens)
    if plan.samples:
        return _epoch(plan, list(islice(stream, plan.samples)), bounds)
    batches = _batches(plan, stream, bounds)
    return _in_turn(plan, _counted(plan, list(islice(batches, wanted))))


def _in_turn(plan: Plan, flat: I64) -> Dealt:
    """Distributes the micro-batches of one stream: the first of each rank, then the second of each rank."""
    return Dealt(*_five(np.moveaxis(flat.reshape(-1, plan.dp, 5), (2, 1), (0, 1)).copy()), plan.micro_batches)


def _five(found: I64) -> tuple[I64, I64, I64, I64, I64]:
    samples, tokens, pairs, own_tokens, own_pairs = found
    return samples, tokens, pairs, own_tokens, own_pairs


def _epoch(plan: Plan, samples: Batch, bounds: Bounds) -> Dealt:
    """Every rank gets its own samples, in round-robin order, and forms its own micro-batches. All ranks do the same
    number of steps: as many as every rank can fill, or with `join` as many as the longest rank needs, the others with
    empty micro-batches. Raises UsageError if the samples do not fill one step."""
    mine = [list(_batches(plan, iter(samples[rank :: plan.dp]), bounds)) for rank in range(plan.dp)]
    m, made = plan.micro_batches, [len(batches) for batches in mine]
    steps = -(-max(made) // m) if plan.join else min(made) // m
    if not steps:
        problem = f"{plan.samples:,} samples do not fill one step of {plan.dp} ranks x {m} micro-batches"
        raise UsageError(problem, hint="use more --samples, a smaller --global-batch, or --join")
    found = np.zeros((5, plan.dp, steps * m), np.int64)
    for rank, batches in enumerate(mine):
        taken = batches[: steps * m]
        if taken:
            found[:, rank, : len(taken)] = _counted(plan, taken).T
    return Dealt(*_five(found), m, left=plan.samples - int(found[0].sum()))


def _batches(plan: Plan, stream: Iterator[int], bounds: Bounds) -> Iterator[Batch]:
    if plan.batching == Batching.ONLINE:
        return _online(stream, bounds.padded, plan.window or WAITING)
    return _arriving(stream, bounds)


def _arriving(stream: Iterator[int], bounds: Bounds) -> Iterator[Batch]:
    """Micro-batches in order of arrival: a sample that does not fit begins the next one. A single sample always
    fits."""
    batch: Batch = []
    tokens = pairs = longest = 0
    for length in stream:
        more = tokens + length, pairs + _pairs(length), max(longest, length)
        if batch and not bounds.take(len(batch) + 1, *more):
            yield batch
            batch, more = [], (length, _pairs(length), length)
        batch.append(length)
        tokens, pairs, longest = more
    if batch:
        yield batch


def _online(stream: Iterator[int], budget: float, window: int) -> Iterator[Batch]:
    """Micro-batches out of `window` waiting samples: the one that has waited longest and those nearest to it in length
    (on ties the longer one first), as many as fit when all are padded to the longest."""
    number = count()
    waiting = sorted((length, next(number)) for length in islice(stream, window))
    while waiting:
        first = min(range(len(waiting)), key=lambda i: waiting[i][1])
        low, high, longest = first, first + 1, waiting[first][0]
        while low > 0 or high < len(waiting):
            longer = waiting[high][0] - waiting[first][0] if high < len(waiting) else math.inf
            shorter = waiting[first][0] - waiting[low - 1][0] if low > 0 else math.inf
            if longer <= shorter and (high + 1 - low) * waiting[high][0] <= budget:
                longest, high = waiting[high][0], high + 1
            elif low > 0 and (high + 1 - low) * longest <= budget:
                low -= 1
            else:
                break
        yield [length for length, _ in waiting[low:high]]
        del waiting[low:high]
        for length in islice(stream, window - len(waiting)):
            insort(waiting, (length, next(number)))


PADDED: Final = (Batching.PADDED, Batching.PADDED_TOKENS, Batching.ONLINE)


def _counted(plan: Plan, batches: Sequence[Batch]) -> I64:
    """Samples, tokens, pairs, own tokens and own pairs of each micro-batch."""
    padded = plan.batching in PADDED or plan.power > 0
    found = np.empty((len(batches), 5), np.int64)
    for i, batch in enumerate(batches):
        n, own, own_pairs = len(batch), sum(batch), sum(map(_pairs, batch))
        most = max(batch)
        worked = (n * most, n * _pairs(most)) if padded else (own, own_pairs)
        found[i] = n, *worked, own, own_pairs
    return found


def _pairs(length: int) -> int:
    return length * (length + 1) // 2


def _packed(plan: Plan, stream: Iterator[int], left: list[int]) -> tuple[int, int, int, int, int]:
    """A micro-batch of sequences filled to the last token with documents that do not attend to one another; the last
    document is cut and continues in the next sequence. Returns the five figures of `_counted`."""
    number, pairs = 0, 0
    for _ in range(plan.micro_batch):
        room = plan.seq
        while room:
            taken = min(left[0], room)
            number, pairs, room = number + 1, pairs + _pairs(taken), room - taken
            left[0] = left[0] - taken or next(stream)
    tokens = plan.micro_batch * plan.seq
    return number, tokens, pairs, tokens, pairs


# -- values ----------------------------------------------------------------------------------------------------


def work_of(traces: tuple[Trace, ...], plan: Plan) -> float:
    """Work of a pair in units of the work of a token, from the FLOPs of a job's traces."""
    attention = other = 0.0
    for trace in traces:
        core, rest = _rows(trace)
        attention += float(trace.flops[core].sum())
        other += float(trace.flops[rest].sum())
    if not other:
        return 0.0
    return (attention / _pairs(plan.seq)) / (other / plan.seq)


def _rows(trace: Trace) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Compute rows of micro-batches: (core of attention, all others)."""
    codes, words = trace.coded("module")
    core = np.array([w.endswith("attention.core") or "attention.core.far." in w for w in words] + [False])[codes]
    work = (trace.kind == int(Kind.COMP)) & (trace.micro_batch != UNKNOWN) & (trace.cpu != 1) & (trace.flops != UNKNOWN)
    return core & work, ~core & work


def with_lengths(job: Job, plan: Plan, dealt: Dealt) -> Job:
    """The job with the values of each rank. Ranks of the same stage and data-parallel rank share them."""
    grid = RankGrid.of(plan)
    tokens = dealt.tokens / (plan.micro_batch * plan.seq)
    pairs = dealt.pairs / (plan.micro_batch * _pairs(plan.seq))
    made: dict[tuple[int, int, int], dict[str, I64]] = {}
    values: dict[int, Mapping[str, NDArray[Any]]] = {}
    copies = grid.at["dp" if len(tokens) == plan.dp else "copy"]  # context-parallel ranks may differ
    for rank, (stage, copy) in enumerate(zip(grid.at["pp"].tolist(), copies.tolist(), strict=True)):
        before = job.values.get(rank)
        key = stage, copy, id(before)
        if key not in made:
            trace = job.traces[int(job.trace_of[rank])]
            made[key] = _scaled(trace.replace(**before) if before else trace, tokens[copy], pairs[copy], dealt.per_step)
        values[rank] = made[key]
    return job.replace(values=values)


def attention_rows(trace: Trace) -> tuple[Bool, Bool, Bool]:
    """Rows of micro-batches: (core of attention, other compute, messages and collectives that carry activations)."""
    core, rest = _rows(trace)
    carries = np.array([label in BY_TOKENS for label in trace.group_slots] + [False])[trace.group]
    carries |= np.isin(trace.kind, (int(Kind.SEND), int(Kind.RECV)))
    return core, rest, carries & (trace.micro_batch != UNKNOWN)


def _scaled(trace: Trace, tokens: F64, pairs: F64, per_step: int) -> dict[str, I64]:
    core, rest, moved = attention_rows(trace)
    known = trace.micro_batch != UNKNOWN
    of = np.where(known, trace.step * per_step + trace.micro_batch, 0)
    found = {"flops": scaled_column(trace.flops, core, pairs[of])}
    found["flops"] = scaled_column(found["flops"], rest, tokens[of])
    found["tensor_bytes"] = scaled_column(trace.tensor_bytes, core | rest, tokens[of])
    for column in ("in_bytes", "out_bytes"):
        found[column] = scaled_column(getattr(trace, column), moved, tokens[of])
    return found


def scaled_column(column: I64, rows: NDArray[np.bool_], factor: F64) -> I64:
    rows = rows & (column != UNKNOWN) & (column > 0)
    out = column.copy()
    out[rows] = np.maximum(np.rint(column[rows] * factor[rows]), 1).astype(np.int64)
    return out
