"""Where the step time of archived runs changed, what part of the step did, and what differs between the two runs.

Runs of one model (or name) on as many ranks are a series, by their start. A run differs from the one before if its step
is longer or shorter by more than both `least` and three errors: those of the two medians over steps, and the scatter of
the series from run to run. A change that the runs that follow do not show is that of a single run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.card_changes import changed_keys
from etude.analyse.causes import PARTS, cause_of

__all__ = ["QUERIES", "run_changes"]

ERRORS: Final = 3.0
FOLLOW: Final = 3
"""Runs after a change that must show half of it, in the median."""
SERIES: Final = 5
"""Runs from which their scatter is known."""
KERNEL: Final = "kernel:"
"""`kernel:OPERATOR/KERNEL` is a metric: time per step and rank."""
OFTEN: Final = 1 / 3
USUAL: Final = 0.4307
"""Of the differences from run to run at least this part is chance; its standard score."""
QUERIES: Final = {
    "runs": "select run, name, path, start_ns, world_size, model from runs order by start_ns, path, run",
    "steps": f"select run, rank, step, span_ns, {', '.join(PARTS)} from steps",
    "collectives": "select run, collective, group_name, calls, total_transfer_ns, total_wait_ns from collectives",
    "cards": "select run, key, value from cards",
    "kernels": f"select run, metric, value from metrics where metric like '{KERNEL}%'",
}
COLUMNS: Final = {
    "name": pa.string(),
    "before": pa.string(),
    "after": pa.string(),
    "before_ns": pa.int64(),
    "after_ns": pa.int64(),
    "change_pct": pa.float64(),
    "lasts": pa.bool_(),
    "cause": pa.string(),
    "cause_ns": pa.int64(),
    "most": pa.string(),
    "differs": pa.string(),
    "command": pa.string(),
}


@dataclass(frozen=True, slots=True)
class ArchivedSteps:
    """Medians over the steps and ranks of a run."""

    run: str
    path: str
    step_ns: float
    error_ns: float
    parts: dict[str, float]


def run_changes(tables: dict[str, pa.Table], least: float = 0.03) -> pa.Table:
    """One row per change, by series and start: name, the runs before and after it, the step of both, change_pct,
    whether it lasts, cause (one of `causes.CAUSES`) with how much of it that is, what of it changed most (a collective,
    a kernel), the keys of the cards that differ, and the command that compares the two."""
    rows: list[dict[str, Any]] = []
    for name, series in _series(tables):
        scatter = _scatter([one.step_ns for one in series])
        for i in range(1, len(series)):
            before, after = series[i - 1], series[i]
            more = after.step_ns - before.step_ns
            error = max(float(np.hypot(before.error_ns, after.error_ns)), scatter)
            if abs(more) <= least * before.step_ns or abs(more) <= ERRORS * error:
                continue
            rows.append(_row(name, before, after, series[i + 1 : i + 1 + FOLLOW], tables))
    schema = pa.schema(list(COLUMNS.items()))
    return pa.Table.from_pylist(rows, schema)


def _series(tables: dict[str, pa.Table]) -> Iterator[tuple[str, list[ArchivedSteps]]]:
    steps = tables["steps"]
    of = np.array(steps["run"].to_pylist(), object)
    groups: dict[tuple[str, int], list[ArchivedSteps]] = {}
    for run in tables["runs"].to_pylist():
        mine = steps.filter(pa.array(of == run["run"]))
        first = min(mine["step"].to_pylist(), default=0)
        later = mine.filter(pa.array(np.asarray(mine["step"].to_numpy()) > first)) if len(mine) else mine
        mine = later if len(later) else mine  # the first step warms up
        if len(mine):
            made = _medians(run, mine)
            groups.setdefault((run["model"] or run["name"] or "", run["world_size"] or 0), []).append(made)
    for (name, ranks), series in groups.items():
        yield f"{name} on {ranks} ranks" if ranks else name, series


def _medians(run: dict[str, Any], mine: pa.Table) -> ArchivedSteps:
    number = np.asarray(mine["step"].to_numpy(), np.int64)
    span = np.asarray(mine["span_ns"].to_numpy(), np.float64)
    each = np.array([float(np.median(span[number == one])) for one in np.unique(number).tolist()])
    spread = 1.4826 * float(np.median(np.abs(each - np.median(each))))
    parts = {name: float(np.median(np.asarray(mine[name].fill_null(0).to_numpy()))) for name in PARTS}
    error = 1.25 * spread / float(np.sqrt(len(each)))
    return ArchivedSteps(run["run"], run["path"] or "", float(np.median(each)), error, parts)


def _scatter(values: Sequence[float]) -> float:
    """How far two runs that follow one another usually differ."""
    if len(values) < SERIES:
        return 0.0
    return float(np.quantile(np.abs(np.diff(values)), OFTEN)) / USUAL


def _row(
    name: str, before: ArchivedSteps, after: ArchivedSteps, follow: Sequence[ArchivedSteps], tables: dict[str, pa.Table]
) -> dict[str, Any]:
    more = after.step_ns - before.step_ns
    sign = float(np.sign(more))
    kernels = _kernels(before.run, tables), _kernels(after.run, tables)
    cause = cause_of(before.parts, after.parts, kernels, sign)
    lasts = None
    if follow:
        lasts = bool((np.median([one.step_ns for one in follow]) - before.step_ns) * np.sign(more) > abs(more) / 2)
    in_comm = cause.name == PARTS["exposed_comm_ns"]
    most = _collective(before, after, tables["collectives"], sign) if in_comm else cause.most
    return {
        "name": name,
        "before": before.run,
        "after": after.run,
        "before_ns": round(before.step_ns),
        "after_ns": round(after.step_ns),
        "change_pct": 100 * more / before.step_ns,
        "lasts": lasts,
        "cause": cause.name,
        "cause_ns": round(cause.grown_ns),
        "most": most,
        "differs": _differs(before.run, after.run, tables["cards"]),
        "command": f"etude compare {before.path} {after.path}" if before.path and after.path else "",
    }


def _kernels(run: str, tables: dict[str, pa.Table]) -> dict[tuple[str, str], float]:
    """Time by operator and kernel, of a run that was archived with them."""
    found = {}
    for row in tables["kernels"].to_pylist() if "kernels" in tables else []:
        if row["run"] == run and row["value"] is not None:
            operator, _, kernel = row["metric"].removeprefix(KERNEL).partition("/")
            found[operator, kernel] = row["value"]
    return found


def _collective(before: ArchivedSteps, after: ArchivedSteps, found: pa.Table, sign: float) -> str:
    """The collective whose calls changed most, and whether in their transfer or in waiting."""
    each: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in found.to_pylist():
        if row["run"] in (before.run, after.run) and row["calls"]:
            for what in ("transfer", "wait"):
                key = (row["collective"] or "", row["group_name"] or "", what)
                each.setdefault(key, {})[row["run"]] = (row[f"total_{what}_ns"] or 0) / row["calls"]
    both = {key: (v[after.run] - v[before.run]) * sign for key, v in each.items() if len(v) == 2}
    if not both:
        return ""
    collective, group, what = max(both, key=lambda key: both[key])
    return f"{collective} of {group}: {'waiting' if what == 'wait' else 'its transfer'}"


def _differs(before: str, after: str, cards: pa.Table) -> str:
    """Keys of the two cards with other values, code first."""
    said: dict[str, dict[str, str]] = {before: {}, after: {}}
    for row in cards.to_pylist():
        if row["run"] in said:
            said[row["run"]][row["key"]] = row["value"]
    return changed_keys(said[before], said[after])
