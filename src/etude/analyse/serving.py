"""Serving as its passes tell it: time to the first token, time of each further one.

Prompts are read in passes of phase `prefill`, tokens made in passes of phase `decode` (or `mixed`, with prompts among
them); `step` numbers them.

    ttft = from the start of the run to the end of a batch's first stretch of prefill passes, mean over batches
    tpot = from the end of one pass of a batch to the end of its next, where that makes tokens, median

These are of batches: how long one request of a stream waited for its turn is what `etude predict --serve` says.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from etude.analyse.runs import Run, on_device, runs, uses
from etude.model.card import Card
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.timing import Timing

F64 = NDArray[np.float64]

READS, MAKES, DRAFTS = ("prefill",), ("decode", "mixed"), ("draft",)


def served(job: Job, timing: Timing, card: Card | None = None) -> Iterator[tuple[str, float, str]]:
    """(metric, value, unit): ttft, tpot and, with a card that says how many tokens come out, tokens_per_second."""
    first: list[float] = []
    pace: list[F64] = []
    serving = card is not None and card.plan.workload == "serving"
    last_stage = job.world_size - job.world_size // (card.plan.pp if card else 1)
    span = timing.span()
    if span is None:
        return
    for run in runs(job, timing):
        found = _passes(run, span[0] - int(timing.clock_offset_ns[run.at[0]]))
        mine = int((job.ranks[run.at] >= last_stage).sum())  # tokens come out of the last stage
        if found is None or not mine:
            continue
        first += found[0] * mine
        pace += [found[1]] * mine
    if first:
        yield "ttft", float(np.mean(first)) / 1e9, "s"
    if pace and len(gaps := np.concatenate(pace)):
        yield "tpot", float(np.median(gaps)) / 1e9, "s"
    if serving and card is not None and card.plan.tokens_per_step and span[1] > span[0]:
        rate = card.plan.tokens_per_step / ((span[1] - span[0]) / 1e9)
        yield "tokens_per_second", rate, "1/s"
        yield "tokens_per_second_per_device", rate / job.world_size, "1/s"


def _passes(run: Run, begun_ns: int) -> tuple[list[float], F64] | None:
    """(time to the first token of each batch, times between its passes that make tokens); None without such passes."""
    trace = run.trace
    codes, words = trace.coded("phase")
    if not set(words) & {*READS, *MAKES}:
        return None
    what = np.array([1 if w in READS else 2 if w in MAKES else 3 if w in DRAFTS else 0 for w in words] + [0])[codes]
    chosen = on_device(run, uses(trace)) & (trace.step != UNKNOWN) & (what > 0)
    rows = np.flatnonzero(chosen & (trace.kind != Kind.SEND) & (trace.kind != Kind.RECV))
    if not len(rows):
        return None
    keys = np.stack([trace.micro_batch[rows], trace.step[rows]], 1)
    passes, at = np.unique(keys, axis=0, return_inverse=True)
    end, kind = np.full(len(passes), np.iinfo(np.int64).min), np.zeros(len(passes), np.int64)
    np.maximum.at(end, at.reshape(-1), run.end_ns[rows])
    kind[at.reshape(-1)] = what[rows]
    first, gaps = [], []
    for batch in np.unique(passes[:, 0]).tolist():
        ends, kinds = end[passes[:, 0] == batch], kind[passes[:, 0] == batch]
        reads = int(np.argmax(kinds != 1)) if (kinds != 1).any() else len(kinds)
        first += [float(ends[reads - 1] - begun_ns)] if reads else []
        if not (kinds == 3).any():  # else a pass makes more than one token, and how many is not said
            gaps.append(np.diff(ends)[kinds[1:] == 2])
    return first, np.concatenate(gaps).astype(np.float64) if gaps else np.zeros(0)
