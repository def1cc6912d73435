"""Two runs side by side: what is slower, new or gone, and how similar they are.

Operations are aligned by what they are: name, kind, shapes; forms of one operator (`out=`, in place) are one. The
difference of each has two parts: a different count, and a different time per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.breakdown import breakdown
from etude.analyse.device_work import on_device
from etude.analyse.grouping import Tally, table
from etude.analyse.measures import MEASURES
from etude.analyse.variants import forms, one_form
from etude.kernels.arrays import F64, I64, U8
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.use import Use, segments, uses

__all__ = ["breakdowns", "compare", "per_step", "similarity"]


BY = ("kind", "name", "shapes")
Counted = dict[tuple[Any, ...], tuple[float, float]]
"""Operation -> (count, time in ns)."""


def compare(a: Run, b: Run, *, operators: bool = False) -> pa.Table:
    """A row for each operation of either run, the largest change first: kind, name, shapes, change (`same`, `slower`,
    `faster`, `more`, `fewer`, `new`, `gone`), count_a, count_b, time_a_ns, time_b_ns, delta_ns (b minus a, per rank),
    by_count_ns and by_speed_ns, which sum to it, and forms, where an operator was called in several (`aten::mm,
    aten::mm(out=)`). Times and counts are means over each run's ranks; if the runs have different numbers of steps, per
    step.

    With `operators`, device time is that of the operator that launched it: devices differ in their kernels, programs
    less in their operators.

    etude.compare(run, etude.open_run("after.json.gz"))
    """
    every = [_tally(run, operators, share) for run, share in zip((a, b), per_step(a, b), strict=True)]
    form = one_form(key for found in every for key in found)
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for key, one in form.items():
        alike.setdefault(one, []).append(key)
    ours, theirs = (_together(found, form) for found in every)
    rows = [_row(key, ours.get(key), theirs.get(key)) | {"forms": forms(same, key[2])} for key, same in alike.items()]
    rows.sort(key=lambda row: -abs(row["delta_ns"]))
    text, real = pa.string(), pa.float64()
    names = dict.fromkeys((*BY, "change"), text)
    numbers = ("count_a", "count_b", "time_a_ns", "time_b_ns", "delta_ns", "by_count_ns", "by_speed_ns")
    return table(rows, names | dict.fromkeys(numbers, real) | {"forms": text})


def per_step(a: Run, b: Run) -> tuple[float, float]:
    """The factor applied to the times of each run before they are compared: 1 / steps if both runs have steps and their
    numbers differ, otherwise 1."""
    steps = [
        len(np.unique(np.concatenate([np.zeros(0, np.int64), *(t.step[t.step != UNKNOWN] for t in run.job.traces)])))
        for run in (a, b)
    ]
    return (1 / steps[0], 1 / steps[1]) if all(steps) and steps[0] != steps[1] else (1.0, 1.0)


def _tally(run: Run, operators: bool, share: float) -> Counted:
    """(count, time) per rank of each kind of operation on the devices."""
    tally = Tally(BY, ("ns",))
    for part in run.parts():
        use = uses(part.trace)
        rows = np.flatnonzero(on_device(part, use))
        lasted = part.end_ns[rows] - part.start_ns[rows]
        rows, lasted, use = to_operators(part, rows, lasted, use, launched=operators)
        tally.add(part, rows, {"ns": lasted}, use, run.job.ranks[part.at].tolist())
    ranks = max(len(run.job.ranks), 1)
    return {tuple(r[k] for k in BY): (r["count"] * share / ranks, r["total_ns"] * share / ranks) for r in tally.rows()}


def _together(found: Counted, form: Mapping[Any, Any]) -> Counted:
    together: Counted = {}
    for key, (count, time) in found.items():
        before = together.get(form[key], (0.0, 0.0))
        together[form[key]] = before[0] + count, before[1] + time
    return together


def to_operators(part: RunPart, rows: I64, lasted: I64, use: U8, *, launched: bool) -> tuple[I64, I64, U8]:
    """(rows, times, uses): the time that a host operator spends between the operators it calls counts as its own; with
    `launched`, device work also counts for the operators that launched it. Each call counts once."""
    trace = part.trace
    own = segments(trace)[rows] | (launched & (trace.cpu[rows] != 1))
    caller = np.where(own, trace.parent[rows], -1)
    mine = caller >= 0
    found, at = np.unique(caller[mine], return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, at.reshape(-1), lasted[mine])
    use = use.copy()
    use[caller[mine]] = np.where(use[rows[mine]] == Use.NONE, Use.COMPUTE, use[rows[mine]])
    return np.concatenate([found.astype(np.int64), rows[~mine]]), np.concatenate([total, lasted[~mine]]), use


def _row(key: tuple[Any, ...], a: tuple[float, float] | None, b: tuple[float, float] | None) -> dict[str, Any]:
    count_a, time_a = a or (0.0, 0.0)
    count_b, time_b = b or (0.0, 0.0)
    delta = time_b - time_a
    mean_a = time_a / count_a if count_a else time_b / count_b if count_b else 0.0
    by_count = (count_b - count_a) * mean_a
    row = dict(zip(BY, key, strict=True)) | {"change": change((count_a, time_a), (count_b, time_b))}
    return row | {
        "count_a": count_a,
        "count_b": count_b,
        "time_a_ns": time_a,
        "time_b_ns": time_b,
        "delta_ns": delta,
        "by_count_ns": by_count,
        "by_speed_ns": delta - by_count,
    }


def change(a: tuple[float, float], b: tuple[float, float]) -> str:
    """What changed for an operation, from (count, time) to (count, time)."""
    if not a[0] or not b[0]:
        return "gone" if a[0] else "new"
    if abs(b[0] - a[0]) > 1e-9 * a[0]:
        return "more" if b[0] > a[0] else "fewer"
    return "same" if abs(b[1] - a[1]) <= 0.01 * max(a[1], 1.0) else "slower" if b[1] > a[1] else "faster"


def similarity(compared: pa.Table) -> dict[str, float]:
    """How similar two runs are, from 0 to 1: `structure`, the fraction of operations that both have; `time`, the
    overlap of the times of those; `score`, the product."""
    names = ("count_a", "count_b", "time_a_ns", "time_b_ns")
    columns = {name: np.asarray(compared[name].to_numpy(), np.float64) for name in names}
    structure = _share(columns["count_a"], columns["count_b"])
    both = (columns["count_a"] > 0) & (columns["count_b"] > 0)
    time = _share(columns["time_a_ns"][both], columns["time_b_ns"][both])
    return {"structure": structure, "time": time, "score": structure * time}


def _share(a: F64, b: F64) -> float:
    most = float(np.maximum(a, b).sum())
    return float(np.minimum(a, b).sum()) / most if most else 1.0


def breakdowns(a: Run, b: Run) -> pa.Table:
    """The parts of the time side by side: part, a_ns, b_ns, delta_ns, delta_pct; means over each run's ranks, and per
    step if the runs have different numbers of steps."""
    means: list[Mapping[str, float]] = []
    for run, share in zip((a, b), per_step(a, b), strict=True):
        found = breakdown(run)
        means.append({part: share * float(np.mean(found[part].to_numpy())) for part in MEASURES} if len(found) else {})
    rows = []
    for part in MEASURES:
        ours, theirs = means[0].get(part, 0.0), means[1].get(part, 0.0)
        pct = 100 * (theirs - ours) / ours if ours else None
        rows.append({"part": part, "a_ns": ours, "b_ns": theirs, "delta_ns": theirs - ours, "delta_pct": pct})
    return table(rows, {"part": pa.string()} | dict.fromkeys(("a_ns", "b_ns", "delta_ns", "delta_pct"), pa.float64()))
