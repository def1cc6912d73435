"""Axes of a command: every point is a command of Etude, its scores are read from the JSON that it prints.

search: commands
run: predict llama3-8b --gpus 16 --system dgx-h100 --json {flags}
axes: {tp: [1, 2, 4], pp: [1, 2]}
when: tp * pp <= 8
score: {step: step_time_ns}            # or several: {step: step_time_ns, memory: memory_peak_bytes}
better: {mfu: higher}                  # less is better, where nothing is said
limits: {memory: memory <= 80e9}       # expressions over axes and scores
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from etude.base.errors import UsageError
from etude.decide.search.axes import AxesSpace, Point
from etude.decide.search.found import Found
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.limits import LimitsOfRows
from etude.decide.search.solver import Answer, Trials, search_space
from etude.decide.study import evaluate
from etude.decide.study.expressions import evaluated
from etude.decide.study.space import Space as Points


def solve(given: Given, asked: SearchRequest) -> Found:
    return search_space(CommandSpace(given, asked), asked)


class CommandSpace(AxesSpace):
    def __init__(self, given: Given, asked: SearchRequest) -> None:
        given.only("run", "axes", "when", "score", "better", "limits")
        asked.once("commands")
        command, axes, score = (given.keys.get(key) for key in ("run", "axes", "score"))
        if not isinstance(command, str) or not isinstance(axes, Mapping) or not isinstance(score, Mapping) or not score:
            hint = "run: predict ... {flags}; axes: {tp: [1, 2]}; score: {step: step_time_ns}"
            raise UsageError("`run`, `axes` and `score` are needed", where=given.where, hint=hint)
        self.given, self.asked, self.command = given, asked, command
        self.metrics = {str(name): str(text) for name, text in score.items()}
        self.scores = _signs(score, given.keys.get("better", {}), given.where)
        self.points = Points(axes=axes, when=str(given.keys.get("when", "")))
        self.axes = [list(values) for values in axes.values()]
        self.size = math.prod(map(len, self.axes))
        self.rest = "when" if asked.method in ("", "all") else "not tried, or `when`"
        self.limits = LimitsOfRows(given)

    def candidates(self) -> list[Point]:
        return [one for one in super().candidates() if self._allowed(self._at(one))]

    def _at(self, one: Point) -> dict[str, Any]:
        return {name: values[i] for name, values, i in zip(self.points.axes, self.axes, one, strict=True)}

    def _allowed(self, at: Mapping[str, Any]) -> bool:
        return not self.points.when or bool(evaluated(self.points.when, at, "when"))

    def rows(self, some: Sequence[Point], limit: float) -> list[Answer]:
        """A row for each point, or why it has none: `when`, a command that failed, or a limit."""
        at, asked = [self._at(one) for one in some], self.asked
        run = [one for one in at if self._allowed(one)]
        how = {name: getattr(asked, name) for name in ("workers", "ray", "out", "progress", "execute", "trust")}
        table = evaluate(Points(rows=run), self.command, self.metrics, where=self.given.where, **how) if run else None
        answers = iter(map(self.limits.answer, table.to_pylist() if table else []))
        return [next(answers) if self._allowed(one) else self.rest for one in at]

    def found(self, trials: Trials[Point]) -> Found:
        if not trials.rows:
            raise self.limits.nothing() if trials.pruned else self.limits.nothing("`when` excludes all candidates")
        return trials.found()


def _signs(score: Mapping[str, Any], better: Any, where: str) -> dict[str, int]:
    if not isinstance(better, Mapping) or any(v not in ("higher", "lower") for v in better.values()):
        raise UsageError("`better` must be higher or lower for a score", where=where, hint="better: {mfu: higher}")
    if unknown := [name for name in better if name not in score]:
        raise UsageError(f"`better` names `{unknown[0]}`, which is not a score", where=where)
    return {str(name): -1 if better.get(name) == "higher" else 1 for name in score}
