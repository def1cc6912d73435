"""Steps of a program without optimizer: calls of its largest model.

A step begins with a call that no other module makes, and ends where the next one begins; the last ends with the
program. What comes before the first call (weights, say) belongs to none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from etude.capture.dry.launch import DrySettings
from etude.capture.dry.recorded_rank import DryModelCall, DryRank


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Which steps of ranks a job has."""

    first: int
    count: int = 0
    """0: all from the first on."""
    assumption: str = ""


def step_window(read: dict[int, DryRank], told: DrySettings) -> tuple[dict[int, DryRank], StepWindow]:
    """(The ranks with their steps, those that are wanted.) All of the program where it has no steps, or too few."""
    steps = min(one.steps for one in read.values())
    if steps or not told.steps:
        return read, StepWindow(told.warmup, told.steps) if told.steps and steps > told.warmup else StepWindow(0)
    calls = {rank: calls_of_largest(one) for rank, one in read.items()}
    if len({len(of_rank) for of_rank in calls.values()}) > 1 or not all(calls.values()):
        return read, StepWindow(0, assumption="no optimizer made a step: the program is taken from beginning to end")
    first = read[min(read)]
    of_first = calls[first.rank]
    skipped = min(told.warmup, len(of_first) - 1)
    window = StepWindow(1 + skipped, told.steps, _assumption(first, of_first, skipped, told.steps))
    return {rank: _stepped(one, calls[rank]) for rank, one in read.items()}, window


def calls_of_largest(rank: DryRank) -> list[DryModelCall]:
    """The calls of the model with most parameters; of several such, of the one that was called first."""
    if not rank.calls:
        return []
    largest = max(rank.calls, key=lambda one: one.parameters)
    return [one for one in rank.calls if one.model == largest.model]


def without_preparation(rank: DryRank) -> DryRank:
    """A rank whose first step begins with the first call of its largest model: what comes before (weights that are
    made, cut and sent) belongs to none."""
    first = next((one.row for one in calls_of_largest(rank)), 0)
    step = [-1] * first + rank.columns.step[first:]
    return msgspec.structs.replace(rank, columns=msgspec.structs.replace(rank.columns, step=step))


def _stepped(rank: DryRank, calls: list[DryModelCall]) -> DryRank:
    starts = np.array([one.row for one in calls], np.int64)
    step = np.searchsorted(starts, np.arange(len(rank.columns.step)), "right")
    return msgspec.structs.replace(rank, columns=msgspec.structs.replace(rank.columns, step=step.tolist()))


def _assumption(rank: DryRank, calls: list[DryModelCall], skipped: int, wanted: int) -> str:
    last = min(skipped + wanted, len(calls))
    taken = f"call {last}" if last == skipped + 1 else f"calls {skipped + 1} to {last}"
    said = f"no optimizer made a step: a step is one call of {calls[0].name}, and {taken} of {len(calls)} is the job"
    if rank.cut_short:
        return f"{said}; the last calls were alike, so the rest of the program was not run"
    found = rank.columns
    between = pairwise(one.row for one in calls)  # after the last one comes what the program does at its end
    kinds = {tuple(zip(found.name[a:b], found.in_shapes[a:b], strict=True)) for a, b in between}
    return f"{said}; calls are not alike, and --whole takes all of them" if len(kinds) > 1 else said
