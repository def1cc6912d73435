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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etude.base.errors import UsageError
from etude.decide.search.found import Found, Row, frontier
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.methods import METHODS, Point
from etude.decide.study import evaluate
from etude.decide.study.expressions import evaluated
from etude.decide.study.space import Space

FAILED = "failed"


def solve(given: Given, asked: SearchRequest) -> Found:
    given.only("run", "axes", "when", "score", "better", "limits")
    method = asked.one_of("all", *METHODS)
    asked.once("commands")
    command, axes, score = (given.keys.get(key) for key in ("run", "axes", "score"))
    if not isinstance(command, str) or not isinstance(axes, Mapping) or not isinstance(score, Mapping) or not score:
        raise UsageError("`run`, `axes` and `score` are needed", where=given.where,
                         hint="run: predict ... {flags}; axes: {tp: [1, 2]}; score: {step: step_time_ns}")  # fmt: skip
    signs = _signs(score, given.keys.get("better", {}), given.where)
    space, metrics = Space(axes=axes, when=str(given.keys.get("when", ""))), {str(k): str(v) for k, v in score.items()}
    whole = math.prod(len(values) for values in axes.values())
    judge = _Judge(command, metrics, asked, given)
    if method in METHODS:
        judge.local(METHODS[method], space, signs)
    else:
        judge.take(space)
    if not judge.good:
        raise UsageError(
            f"no candidate is left; the first: {judge.first_error or 'the limits exclude all candidates'}",
            where=given.where,
        )
    left = whole - len(judge.good) - sum(judge.pruned.values())
    judge.pruned["when" if method == "all" else "not tried, or `when`"] += left
    name, sign = next(iter(signs.items()))
    good = sorted(judge.good, key=lambda row: sign * row[name])
    return Found(
        best=good[0], frontier=frontier(good, signs), tried=len(good),
        pruned={k: v for k, v in judge.pruned.items() if v}, space=whole, rows=good,
    )  # fmt: skip


class _Judge:
    """Runs commands, and keeps results within the limits."""

    def __init__(self, command: str, metrics: dict[str, str], asked: SearchRequest, given: Given) -> None:
        self._command, self._metrics, self._asked, self._given = command, metrics, asked, given
        self.good: list[Row] = []
        self.pruned: Counter[str] = Counter()
        self.first_error = ""

    def take(self, space: Space) -> list[Row | None]:
        """A row for each point; None if it failed or is outside a limit."""
        a = self._asked
        table = evaluate(
            space, self._command, self._metrics, workers=a.workers, ray=a.ray, out=a.out, progress=a.progress,
            execute=a.execute, trust=a.trust, where=self._given.where,
        )  # fmt: skip
        found: list[Row | None] = []
        for row in table.to_pylist():
            why = _why_not(row, self._given.keys.get("limits", {}), self._given.where)
            self.first_error = self.first_error or row["error"]
            if why:
                self.pruned[why] += 1
                found.append(None)
            else:
                self.good.append({k: v for k, v in row.items() if k != "error"})
                found.append(self.good[-1])
        return found

    def local(self, method: Callable[..., Point], space: Space, signs: Mapping[str, int]) -> None:
        """Runs a local method. Points that `when` excludes have the worst score."""
        axes = [list(values) for values in space.axes.values()]
        name, sign = next(iter(signs.items()))

        def score(points: Sequence[Point]) -> list[float]:
            at = [{axis: v[n] for axis, v, n in zip(space.axes, axes, point, strict=True)} for point in points]
            allowed = [not space.when or bool(evaluated(space.when, row, "when")) for row in at]
            some = [row for row, ok in zip(at, allowed, strict=True) if ok]
            rows = iter(self.take(Space(rows=some)) if some else [])
            values = [next(rows) if ok else None for ok in allowed]
            return [math.inf if row is None else float(sign * row[name]) for row in values]

        method(axes, score, seed=self._asked.seed)


def _signs(score: Mapping[str, Any], better: Any, where: str) -> dict[str, int]:
    if not isinstance(better, Mapping) or any(v not in ("higher", "lower") for v in better.values()):
        raise UsageError("`better` must be higher or lower for a score", where=where, hint="better: {mfu: higher}")
    if unknown := [name for name in better if name not in score]:
        raise UsageError(f"`better` names `{unknown[0]}`, which is not a score", where=where)
    return {str(name): -1 if better.get(name) == "higher" else 1 for name in score}


def _why_not(row: Mapping[str, Any], limits: Any, where: str) -> str:
    if row["error"]:
        return FAILED
    for name, text in limits.items():
        if not evaluated(str(text), row, f"{where}: limits: {name}"):
            return str(name)
    return ""
