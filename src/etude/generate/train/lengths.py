"""Sample lengths: how long training samples are, how they are put into micro-batches, and what that makes of the work.

The plan's micro-batch is `micro_batch` samples of `seq` tokens. With lengths, each data-parallel rank has micro-batches
of its own: their tokens scale what depends on tokens, their pairs of query and key scale attention. The structure
stays; the figures are values of the ranks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import FormatError, UsageError
from etude.generate.plan import Batching, Plan
from etude.generate.ranks import Grid
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

LONGEST: Final = 1 << 40
"""Tokens of a sample: beyond any sequence."""
BY_TOKENS: Final = ("tp", "cp", "ep", "etp")
"""Groups whose collectives carry activations."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths and how often each comes."""

    tokens: I64
    share: F64

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """`2048`, or `512:0.5,2048:0.3,8192:0.2`, or a CSV file with columns `length` and, if wanted, `count`."""
        if text.lower().endswith(".csv"):
            return cls._of(_read(Path(text)), text)
        pairs = []
        for part in text.split(","):
            length, colon, share = part.partition(":")
            try:
                pairs.append((int(length), float(share) if colon else 1.0))
            except ValueError:
                raise UsageError(f"lengths: `{part}`", hint="2048, or 512:0.5,2048:0.5, or a .csv file") from None
        return cls._of(pairs, text)

    @classmethod
    def _of(cls, pairs: list[tuple[int, float]], where: str) -> Lengths:
        if any(abs(pair[0]) > LONGEST for pair in pairs):
            raise UsageError(f"a length of more than {LONGEST:,} tokens", where=where)
        tokens, share = np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs])
        if not len(tokens) or tokens.min() < 1 or not np.isfinite(share).all() or share.min() < 0 or not share.sum():
            raise UsageError("lengths are 1 at least, and some must come", where=where)
        return cls(tokens, share / share.sum())

    def stream(self, seed: int, longest: int) -> Iterator[int]:
        """Samples one after another, without end; cut at the sequence length."""
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
            "not a table of lengths", path=path, hint="columns `length` and, if wanted, `count`"
        ) from None


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """What each data-parallel rank (row) has in each of its micro-batches (column)."""

    samples: I64
    tokens: I64
    pairs: I64
    """Of query and key, causal: each token with itself and those before it."""

    def imbalance(self, cost: F64) -> float:
        """The fullest rank over the mean, less one."""
        total = cost.sum(axis=1)
        return float(total.max() / total.mean() - 1)


def deal(lengths: Lengths, plan: Plan, *, pair_cost: float) -> Dealt:
    """Samples dealt out to micro-batches. `pair_cost`: work of a pair in units of the work of a token."""
    shape = plan.dp, plan.micro_batches
    found = np.zeros((3, *shape), np.int64)
    stream = lengths.stream(plan.length_seed, plan.seq)
    left = [next(stream)]
    limit = plan.micro_batch * (plan.seq + pair_cost * _pairs(plan.seq))
    for m in range(shape[1]):
        for d in range(shape[0]):
            found[:, d, m] = _fill(plan, stream, left, pair_cost, limit)
    return Dealt(*found)


def _pairs(length: int) -> int:
    return length * (length + 1) // 2


def _fill(plan: Plan, stream: Iterator[int], left: list[int], pair_cost: float, limit: float) -> tuple[int, int, int]:
    """(samples, tokens, pairs) of one micro-batch. `left` has the sample that comes next."""
    if plan.batching == Batching.PACKED:
        return _packed(plan, stream, left)
    count, tokens, pairs = 0, 0, 0
    while True:
        length = left[0]
        if plan.batching == Batching.FIXED:
            full = count == plan.micro_batch
        elif plan.batching == Batching.TOKENS:
            full = tokens + length > plan.micro_batch * plan.seq
        else:
            full = tokens + length + pair_cost * (pairs + _pairs(length)) > limit
        if full and count:
            return count, tokens, pairs
        count, tokens, pairs = count + 1, tokens + length, pairs + _pairs(length)
        left[0] = next(stream)


def _packed(plan: Plan, stream: Iterator[int], left: list[int]) -> tuple[int, int, int]:
    """Sequences filled to the last token with documents, which do not see one another; the last is cut and goes on."""
    count, pairs = 0, 0
    for _ in range(plan.micro_batch):
        room = plan.seq
        while room:
            taken = min(left[0], room)
            count, pairs, room = count + 1, pairs + _pairs(taken), room - taken
            left[0] = left[0] - taken or next(stream)
    return count, plan.micro_batch * plan.seq, pairs


# -- values ----------------------------------------------------------------------------------------------------


def work_of(traces: tuple[Trace, ...], plan: Plan) -> float:
    """Work of a pair in units of the work of a token, from the FLOPs of a job."""
    attention = other = 0.0
    for trace in traces:
        core, rest = _rows(trace)
        attention += float(trace.flops[core].sum())
        other += float(trace.flops[rest].sum())
    if not other:
        return 0.0
    return (attention / _pairs(plan.seq)) / (other / plan.seq)


def _rows(trace: Trace) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Compute of micro-batches: the core of attention, and the rest."""
    codes, words = trace.coded("module")
    core = np.array([w.endswith("attention.core") for w in words] + [False])[codes]
    work = (trace.kind == int(Kind.COMP)) & (trace.micro_batch != UNKNOWN) & (trace.cpu != 1) & (trace.flops != UNKNOWN)
    return core & work, ~core & work


def with_lengths(job: Job, plan: Plan, dealt: Dealt) -> Job:
    """The job with each rank's own figures. Ranks of one stage and one data-parallel rank share them."""
    grid = Grid.of(plan)
    tokens = dealt.tokens / (plan.micro_batch * plan.seq)
    pairs = dealt.pairs / (plan.micro_batch * _pairs(plan.seq))
    made: dict[tuple[int, int, int], dict[str, I64]] = {}
    values: dict[int, Mapping[str, NDArray[Any]]] = {}
    for rank, (stage, copy) in enumerate(zip(grid.at["pp"].tolist(), grid.at["dp"].tolist(), strict=True)):
        before = job.values.get(rank)
        key = stage, copy, id(before)
        if key not in made:
            trace = job.traces[int(job.trace_of[rank])]
            made[key] = _scaled(trace.replace(**before) if before else trace, tokens[copy], pairs[copy])
        values[rank] = made[key]
    return job.replace(values=values)


def _scaled(trace: Trace, tokens: F64, pairs: F64) -> dict[str, I64]:
    core, rest = _rows(trace)
    known = trace.micro_batch != UNKNOWN
    of = np.where(known, trace.micro_batch, 0)
    carries = np.array([label in BY_TOKENS for label in trace.group_slots] + [False])[trace.group]
    moved = known & (carries | np.isin(trace.kind, (int(Kind.SEND), int(Kind.RECV))))
    found = {"flops": _times(trace.flops, core, pairs[of])}
    found["flops"] = _times(found["flops"], rest, tokens[of])
    found["tensor_bytes"] = _times(trace.tensor_bytes, core | rest, tokens[of])
    for column in ("in_bytes", "out_bytes"):
        found[column] = _times(getattr(trace, column), moved, tokens[of])
    return found


def _times(column: I64, rows: NDArray[np.bool_], factor: F64) -> I64:
    rows = rows & (column != UNKNOWN) & (column > 0)
    out = column.copy()
    out[rows] = np.maximum(np.rint(column[rows] * factor[rows]), 1).astype(np.int64)
    return out
