"""Spaces whose points are evaluated as in a study: axes, a condition, scores and limits that are expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.decide.search.axes import AxesSpace, Point
from etude.decide.search.found import Found, Row
from etude.decide.search.ranges import without_unknown
from etude.decide.search.request import DRAWING, PARALLEL, SearchRequest, SpaceFile
from etude.decide.search.solver import Answer, Trials
from etude.decide.study.expressions import evaluated
from etude.decide.study.space import Space as Points

if TYPE_CHECKING:
    import pyarrow as pa

FAILED = "failed"


class LimitsOfRows:
    """A row of a study becomes the row of a candidate, or why it has none."""

    def __init__(self, given: SpaceFile) -> None:
        self.where, self.limits = given.where, given.keys.get("limits") or {}
        self.first_error = ""
        if not isinstance(self.limits, Mapping):
            raise UsageError(f"limits: {self.limits!r}", where=self.where, hint="limits: {slow: latency <= 4}")

    def answer(self, row: Row) -> Answer:
        if error := row.pop("error"):
            self.first_error = self.first_error or error
            return FAILED
        broken = (name for name, text in self.limits.items() if not self._holds(str(name), str(text), row))
        return next(broken, "") or row

    def _holds(self, name: str, text: str, row: Row) -> bool:
        return bool(evaluated(text, row, f"{self.where}: limits: {name}"))

    def nothing(self, otherwise: str = "the limits exclude all candidates") -> UsageError:
        """The error of a space none of whose candidates has a row."""
        return UsageError(f"no candidate is left; the first: {self.first_error or otherwise}", where=self.where)


class StudySpace(AxesSpace):
    """Points of axes. A kind says how points are evaluated."""

    what: str
    """The key that says so."""
    hint: str

    def __init__(self, given: SpaceFile, asked: SearchRequest) -> None:
        given.only(self.what, "axes", "when", "score", "better", "limits")
        asked.once(given.kind)
        axes, score = given.keys.get("axes"), given.keys.get("score")
        said = isinstance(given.keys.get(self.what), str)
        if not said or not isinstance(axes, Mapping) or not isinstance(score, Mapping) or not score:
            raise UsageError(f"`{self.what}`, `axes` and `score` are needed", where=given.where, hint=self.hint)
        self.given, self.asked = given, asked
        self.metrics = {str(name): str(text) for name, text in score.items()}
        self.scores = _signs(score, given.keys.get("better", {}), given.where)
        self.points = Points(axes=self.axis_names(axes), when=str(given.keys.get("when", "")))
        self.axes = [list(values) for values in axes.values()]
        self.size = math.prod(map(len, self.axes))
        self.rest = "when" if asked.method in ("", "all") else "not tried, or `when`"
        self.limits = LimitsOfRows(given)

    def axis_names(self, axes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Axes by the names that expressions have for them."""
        return axes

    def evaluate(self, points: Points, how: Mapping[str, Any]) -> pa.Table:
        """A row for each point: its scores, and `error` where it failed."""
        raise NotImplementedError

    def candidates(self) -> list[Point]:
        return [one for one in super().candidates() if self._allowed(self._at(one))]

    def _at(self, one: Point) -> dict[str, Any]:
        return {name: values[i] for name, values, i in zip(self.points.axes, self.axes, one, strict=True)}

    def _allowed(self, at: Mapping[str, Any]) -> bool:
        return not self.points.when or bool(evaluated(self.points.when, at, "when"))

    def rows(self, some: Sequence[Point], limit: float) -> list[Answer]:
        """A row for each point, or why it has none: `when`, a point that failed, or a limit."""
        at = [self._at(one) for one in some]
        run = [one for one in at if self._allowed(one)]
        table = self.evaluate(Points(rows=run), self.asked.carrying()).to_pylist() if run else []
        answers = iter(map(self.limits.answer, without_unknown(table, self.metrics)))
        return [next(answers) if self._allowed(one) else self.rest for one in at]

    def found(self, trials: Trials[Point]) -> Found:
        if not trials.rows:
            raise self.limits.nothing() if trials.pruned else self.limits.nothing("`when` excludes all candidates")
        return trials.found()


def study_options(method: str) -> frozenset[str]:
    return PARALLEL | {"seed"} if method in DRAWING else PARALLEL


def _signs(score: Mapping[str, Any], better: Any, where: str) -> dict[str, int]:
    if not isinstance(better, Mapping) or any(v not in ("higher", "lower") for v in better.values()):
        raise UsageError("`better` must be higher or lower for a score", where=where, hint="better: {mfu: higher}")
    if unknown := [name for name in better if name not in score]:
        raise UsageError(f"`better` names `{unknown[0]}`, which is not a score", where=where)
    return {str(name): -1 if better.get(name) == "higher" else 1 for name in score}
