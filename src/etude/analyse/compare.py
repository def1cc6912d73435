"""Two runs side by side: what takes longer, what is new, what is gone, and how alike they are.

Operations are aligned by what they are: name, kind, shapes. The difference of each has two parts: it comes more or less
often, and one takes more or less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.breakdown import breakdown
from etude.analyse.device_work import on_device
from etude.analyse.grouping import Tally, table
from etude.analyse.measures import MEASURES
from etude.model.run import Run, RunPart
from etude.model.use import uses

__all__ = ["breakdowns", "compare", "similarity"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

BY = ("kind", "name", "shapes")


def compare(a: Run, b: Run, *, operators: bool = False) -> pa.Table:
    """A row for each operation of either run, the largest change first: kind, name, shapes, change (`same`, `slower`,
    `faster`, `more`, `fewer`, `new`, `gone`), count_a, count_b, time_a_ns, time_b_ns, delta_ns (b less a, a rank),
    by_count_ns and by_speed_ns, which sum to it. Times and counts are means over each run's ranks.

    With `operators`, device time is that of the operator that launched it: devices differ in their kernels, programs
    less in their operators.
    """
    ours, theirs = _tally(a, operators), _tally(b, operators)
    rows = [_row(key, ours.get(key), theirs.get(key)) for key in dict.fromkeys([*ours, *theirs])]
    rows.sort(key=lambda row: -abs(row["delta_ns"]))
    text, real = pa.string(), pa.float64()
    names = dict.fromkeys((*BY, "change"), text)
    numbers = ("count_a", "count_b", "time_a_ns", "time_b_ns", "delta_ns", "by_count_ns", "by_speed_ns")
    return table(rows, names | dict.fromkeys(numbers, real))


def _tally(run: Run, operators: bool) -> dict[tuple[Any, ...], tuple[float, float]]:
    """(count, time) a rank of each kind of operation on the devices."""
    tally = Tally(BY, ("ns",))
    for part in run.parts():
        use = uses(part.trace)
        rows = np.flatnonzero(on_device(part, use))
        lasted = part.end_ns[rows] - part.start_ns[rows]
        if operators:
            rows, lasted, use = _to_operators(part, rows, lasted, use)
        tally.add(part, rows, {"ns": lasted}, use, run.job.ranks[part.at].tolist())
    ranks = max(len(run.job.ranks), 1)
    return {tuple(r[k] for k in BY): (r["count"] / ranks, r["total_ns"] / ranks) for r in tally.rows()}


def _to_operators(part: RunPart, rows: I64, lasted: I64, use: U8) -> tuple[I64, I64, U8]:
    """(rows, times, uses) with the work of a device as that of the operators that launched it, each call once."""
    caller = np.where(part.trace.cpu[rows] != 1, part.trace.parent[rows], -1)
    launched = caller >= 0
    found, at = np.unique(caller[launched], return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, at.reshape(-1), lasted[launched])
    use = use.copy()
    use[caller[launched]] = use[rows[launched]]
    return np.concatenate([found.astype(np.int64), rows[~launched]]), np.concatenate([total, lasted[~launched]]), use


def _row(key: tuple[Any, ...], a: tuple[float, float] | None, b: tuple[float, float] | None) -> dict[str, Any]:
    count_a, time_a = a or (0.0, 0.0)
    count_b, time_b = b or (0.0, 0.0)
    delta = time_b - time_a
    mean_a = time_a / count_a if count_a else time_b / count_b if count_b else 0.0
    by_count = (count_b - count_a) * mean_a
    if not a or not b:
        change = "gone" if a else "new"
    elif count_a != count_b:
        change = "more" if count_b > count_a else "fewer"
    else:
        change = "same" if abs(delta) <= 0.01 * max(time_a, 1.0) else "slower" if delta > 0 else "faster"
    row = dict(zip(BY, key, strict=True)) | {"change": change, "count_a": count_a, "count_b": count_b}
    return row | {
        "time_a_ns": time_a,
        "time_b_ns": time_b,
        "delta_ns": delta,
        "by_count_ns": by_count,
        "by_speed_ns": delta - by_count,
    }


def similarity(compared: pa.Table) -> dict[str, float]:
    """How alike two runs are, from 0 to 1: `structure`, the part of operations that both have; `time`, of those that
    both have, the part of time; `score`, the product."""
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
    """The parts of the time side by side: part, a_ns, b_ns, delta_ns, delta_pct; means over each run's ranks."""
    means: list[Mapping[str, float]] = []
    for run in (a, b):
        found = breakdown(run)
        means.append({part: float(np.mean(found[part].to_numpy())) for part in MEASURES} if len(found) else {})
    rows = []
    for part in MEASURES:
        ours, theirs = means[0].get(part, 0.0), means[1].get(part, 0.0)
        pct = 100 * (theirs - ours) / ours if ours else None
        rows.append({"part": part, "a_ns": ours, "b_ns": theirs, "delta_ns": theirs - ours, "delta_pct": pct})
    return table(rows, {"part": pa.string()} | dict.fromkeys(("a_ns", "b_ns", "delta_ns", "delta_pct"), pa.float64()))
