"""Axes of a command: every point is a command of Etude, its scores are read from the JSON that it prints.

search: commands
run: predict llama3-8b --gpus 16 --system dgx-h100 --json {flags}
axes: {tp: [1, 2, 4], pp: [1, 2]}
when: tp * pp <= 8
score: {step: step_time_ns}            # or several: {step: step_time_ns, memory: memory_peak_bytes}
better: {mfu: higher}                  # less is better, where nothing is said
limits: {memory: memory <= 80e9}       # expressions over axes and scores

A score that is a figure of the command has the range that the command gives it: `step_low`, `step_high`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etude.decide.search.ranges import metrics_with_ranges
from etude.decide.search.request import SearchRequest, SpaceFile
from etude.decide.search.study_space import StudySpace, study_options
from etude.decide.study import evaluate
from etude.decide.study.space import Space as Points

if TYPE_CHECKING:
    import pyarrow as pa


class CommandSpace(StudySpace):
    what = "run"
    hint = "run: predict ... {flags}; axes: {tp: [1, 2]}; score: {step: step_time_ns}"

    def evaluate(self, points: Points, how: Mapping[str, Any]) -> pa.Table:
        how = {**how, "execute": self.asked.execute, "trust": self.asked.trust, "where": self.given.where}
        return evaluate(points, str(self.given.keys["run"]), metrics_with_ranges(self.metrics), **how)


def space(given: SpaceFile, asked: SearchRequest) -> CommandSpace:
    return CommandSpace(given, asked)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return study_options(method)
