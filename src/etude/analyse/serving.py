"""Serving: when tokens arrive. A token arrives at the end of the pass that makes it, so

    ttft = end of the pass that makes the first token - arrival
    tpot = (end of the pass that makes the last - end of the one that makes the first) / (tokens - 1)

Prompts are read in passes of phase `prefill`, tokens made in passes of phase `decode` (or `mixed`, with prompts among
them); `step` numbers them. A trace does not say which request a token belongs to. `metrics` treats a batch as one
request that arrives at the start of the run; `etude predict serve` knows the requests and reports each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from etude.analyse.device_work import on_device
from etude.analyse.engine import engine_metrics, of_engine
from etude.kernels.arrays import F64, I64
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind
from etude.model.tokens import token_times
from etude.model.use import uses

__all__ = ["passes", "token_times"]


class Does(IntEnum):
    """What a pass does."""

    NONE = 0
    READS = 1
    MAKES = 2
    DRAFTS = 3


_OF_PHASE: Final = {"prefill": Does.READS, "decode": Does.MAKES, "mixed": Does.MAKES, "draft": Does.DRAFTS}


@dataclass(frozen=True, slots=True, eq=False)
class PassEnds:
    """The passes of a stage, by batch and step."""

    batch: I64
    step: I64
    end_ns: I64
    does: I64


def passes(part: RunPart) -> PassEnds:
    """The passes of a part of a run; each ends with the last of its nodes on the device, messages left out."""
    trace = part.trace
    codes, words = trace.coded("phase")
    does = np.array([_OF_PHASE.get(word, Does.NONE) for word in words] + [Does.NONE], np.int64)[codes]
    chosen = on_device(part, uses(trace)) & (trace.step != UNKNOWN) & (does > 0)
    rows = np.flatnonzero(chosen & (trace.kind != Kind.SEND) & (trace.kind != Kind.RECV))
    keys = np.stack([trace.micro_batch[rows], trace.step[rows]], 1).astype(np.int64)
    found, at = np.unique(keys, axis=0, return_inverse=True)
    end, what = np.full(len(found), UNKNOWN, np.int64), np.zeros(len(found), np.int64)
    np.maximum.at(end, at.reshape(-1), part.end_ns[rows])
    what[at.reshape(-1)] = does[rows]
    return PassEnds(found[:, 0], found[:, 1], end, what)


def served(run: Run) -> Iterator[tuple[str, float, str]]:
    """(metric, value, unit): ttft and tpot, means over batches and ranks of the last stage; and, with a card that says
    how many tokens come out, tokens_per_second."""
    job, card, span = run.job, run.card, run.timing.span()
    if span is None:
        return
    if any(of_engine(trace) for trace in job.traces):  # a stream of requests: a batch is not a request
        yield from engine_metrics(run)
        return
    last_stage = job.world_size - job.world_size // (card.plan.pp if card else 1)  # tokens come out of it
    times, weight = [np.zeros((0, 2))], [np.zeros(0)]
    for part in run.parts():
        found = _of_batches(passes(part), span[0] - int(run.timing.clock_offset_ns[part.at[0]]))
        times.append(found)
        weight.append(np.full(len(found), (job.ranks[part.at] >= last_stage).sum(), np.float64))
    every, ranks = np.concatenate(times), np.concatenate(weight)
    for name, column in zip(("ttft", "tpot"), every.T, strict=True):
        known = ~np.isnan(column) & (ranks > 0)
        if known.any():
            yield name, float(np.average(column[known], weights=ranks[known])) / 1e9, "s"
    if card is not None and card.plan.workload == "serving" and card.plan.tokens_per_step and span[1] > span[0]:
        rate = card.plan.tokens_per_step / ((span[1] - span[0]) / 1e9)
        yield "tokens_per_second", rate, "1/s"
        yield "tokens_per_second_per_device", rate / job.world_size, "1/s"


def _of_batches(found: PassEnds, begun_ns: int) -> F64:
    """(ttft, tpot) of each batch; NaN where no prompt was read, or a draft makes several tokens per pass."""
    rows = []
    for batch in np.unique(found.batch).tolist():
        ends, does = found.end_ns[found.batch == batch], found.does[found.batch == batch]
        reads = int(np.argmax(does != Does.READS)) if (does != Does.READS).any() else len(does)
        made = ends[reads:][does[reads:] == Does.MAKES]
        made = np.append(ends[reads - 1], made) if reads else made
        if len(made):
            one = (np.array([value], np.int64) for value in (begun_ns, made[0], made[-1], len(made)))
            (ttft,), (tpot,) = token_times(*one)
            rows.append((ttft if reads else np.nan, np.nan if (does == Does.DRAFTS).any() else tpot))
    return np.array(rows, np.float64).reshape(len(rows), 2)
