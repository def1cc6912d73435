"""Axes of a command: every point is a command of Etude, its scores are read from the JSON that it prints.

search: commands
run: predict llama3-8b --gpus 16 --system dgx-h100 --json {flags}
axes: {tp: [1, 2, 4], pp: [1, 2]}
when: tp * pp <= 8
score: {step: step_time_ns}            # or several: {step: step_time_ns, memory: memory_peak_bytes}
better: {mfu: higher}                  # less is better, where nothing is said
limits: {memory: memory <= 80e9}       # expressions over axes and scores
"""

from collections.abc import Mapping
from typing import Any

from etude.errors import UsageError
from etude.search.found import Found, frontier
from etude.search.given import Asked, Given
from etude.study import Space, evaluate
from etude.study.expressions import evaluated

FAILED = "failed"


def solve(given: Given, asked: Asked) -> Found:
    given.only("run", "axes", "when", "score", "better", "limits")
    asked.one_of("all")
    command, axes, score = (given.keys.get(key) for key in ("run", "axes", "score"))
    if not isinstance(command, str) or not isinstance(axes, Mapping) or not isinstance(score, Mapping) or not score:
        raise UsageError("`run`, `axes` and `score` are needed", where=given.where,
                         hint="run: predict ... {flags}; axes: {tp: [1, 2]}; score: {step: step_time_ns}")  # fmt: skip
    signs = _signs(score, given.keys.get("better", {}), given.where)
    whole = 1
    for values in axes.values():
        whole *= len(values) if isinstance(values, list) else 1
    space = Space(axes=axes, when=str(given.keys.get("when", "")))
    table = evaluate(
        space, command, {str(k): str(v) for k, v in score.items()}, workers=asked.workers, ray=asked.ray,
        out=asked.out, progress=asked.progress,
    )  # fmt: skip
    rows = table.to_pylist()
    pruned = {"when": whole - len(rows)}
    good = []
    for row in rows:
        why = _why_not(row, given.keys.get("limits", {}), given.where)
        if why:
            pruned[why] = pruned.get(why, 0) + 1
        else:
            good.append({k: v for k, v in row.items() if k != "error"})
    if not good:
        first = next((row["error"] for row in rows if row["error"]), "limits refuse all")
        raise UsageError(f"no candidate is left; the first: {first}", where=given.where)
    name, sign = next(iter(signs.items()))
    good.sort(key=lambda row: sign * row[name])
    return Found(
        best=good[0], frontier=frontier(good, signs), tried=len(good),
        pruned={k: v for k, v in pruned.items() if v}, space=whole, rows=good,
    )  # fmt: skip


def _signs(score: Mapping[str, Any], better: Any, where: str) -> dict[str, int]:
    if not isinstance(better, Mapping) or any(v not in ("higher", "lower") for v in better.values()):
        raise UsageError("`better` says higher or lower of a score", where=where, hint="better: {mfu: higher}")
    if unknown := [name for name in better if name not in score]:
        raise UsageError(f"`better` names `{unknown[0]}`, which is no score", where=where)
    return {str(name): -1 if better.get(name) == "higher" else 1 for name in score}


def _why_not(row: Mapping[str, Any], limits: Any, where: str) -> str:
    if row["error"]:
        return FAILED
    for name, text in limits.items():
        if not evaluated(str(text), row, f"{where}: limits: {name}"):
            return str(name)
    return ""
