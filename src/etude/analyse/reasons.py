"""Why one run takes longer than another: a list of changes that sum to the difference.

Every moment of a device belongs to one operation: if several run at once, the first of compute, communication, memory
counts, and within a class the one that started first. Otherwise the moment is idle, with the cause that ends the gap.
So times of operations and causes sum to the span of each run, and their differences to the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.compare import change, per_step, to_operators
from etude.analyse.device_work import on_device
from etude.analyse.grouping import table
from etude.analyse.idle import CAUSES, idle
from etude.analyse.launches import launches
from etude.analyse.measures import CLASSES
from etude.analyse.variants import one_form
from etude.base.units import format_time
from etude.kernels.arrays import I64, U8
from etude.kernels.intervals import merged
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.use import Use, uses

__all__ = ["host_side", "reasons"]


IDLE: Final = "idle"
_HOST_CAUSES: Final = ("host", "launch", "synchronisation")
_KINDS: Final = {
    **dict.fromkeys(("part", "what", "change"), pa.string()),
    **dict.fromkeys(("count_a", "count_b", "a_ns", "b_ns", "delta_ns", "share"), pa.float64()),
    "because": pa.string(),
}


def reasons(a: Run, b: Run) -> pa.Table:
    """What changed from a to b, the largest first: part (`compute`, `communication`, `memory`, `idle`), what (an
    operator, a kernel that none launched, or a cause of idle time), change, count_a, count_b (calls; of idle time
    gaps), a_ns, b_ns, delta_ns, share of the whole difference, because (what is known of it). Times are means over
    ranks as in `compare`; delta_ns sums to the difference of the spans."""
    shares = per_step(a, b)
    sides = [_spent(run, share) for run, share in zip((a, b), shares, strict=True)]
    host = host_side(a, b)
    total = sum(v[1] for v in sides[1].values()) - sum(v[1] for v in sides[0].values())
    rows = []
    sides = _same_names(sides)
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        one, two = (side.get(key, _NOTHING) for side in sides)
        row: dict[str, Any] = {
            "part": key[0],
            "what": key[1],
            "change": change(one[:2], two[:2]),
            "count_a": one[0],
            "count_b": two[0],
        }
        row |= {"a_ns": one[1], "b_ns": two[1], "delta_ns": two[1] - one[1]}
        row["share"] = row["delta_ns"] / total if total else None
        row["because"] = _why_idle(key[1], one, two, host) if key[0] == IDLE else _why(one, two)
        rows.append(row)
    rows.sort(key=lambda row: -abs(row["delta_ns"]))
    return table(rows, _KINDS)


Spent = tuple[float, float, float, dict[str, float]]
"""Calls, own time, total time, time by kernel."""
_NOTHING: Final[Spent] = (0.0, 0.0, 0.0, {})


def _same_names(sides: list[dict[tuple[str, str], Spent]]) -> list[dict[tuple[str, str], Spent]]:
    """The forms of each operator merged under one name."""
    form = one_form((part, what, None) for side in sides for part, what in side)
    found: list[dict[tuple[str, str], Spent]] = [{} for _ in sides]
    for into, side in zip(found, sides, strict=True):
        for (part, what), spent in side.items():
            _add(into, (part, form[part, what, None][1]), spent, 1)
    return found


def _spent(run: Run, share: float) -> dict[tuple[str, str], Spent]:
    """By (part, what): how the ranks of a run spend their time, per rank and, with `share`, per step."""
    found: dict[tuple[str, str], Spent] = {}
    ranks = max(len(run.job.ranks), 1)
    for part in run.parts():
        for key, spent in _of_part(part).items():
            _add(found, key, spent, share * len(part.at) / ranks)
    for row in idle(run).to_pylist():
        _add(found, (IDLE, row["cause"]), (row["gaps"], row["time_ns"], row["time_ns"], {}), share / ranks)
    return found


def _add(found: dict[tuple[str, str], Spent], key: tuple[str, str], more: Spent, weight: float) -> None:
    calls, own, whole, kernels = found.get(key, _NOTHING)
    kernels = dict(kernels)
    for name, time in more[3].items():
        kernels[name] = kernels.get(name, 0.0) + weight * time
    found[key] = calls + weight * more[0], own + weight * more[1], whole + weight * more[2], kernels


def _of_part(part: RunPart) -> dict[tuple[str, str], Spent]:
    """The work of a device by operator, or by kernel where no operator launched it."""
    trace, use = part.trace, uses(part.trace)
    rows = np.flatnonzero(on_device(part, use))
    own, whole = own_times(part, rows, use), part.end_ns[rows] - part.start_ns[rows]
    codes, words = trace.coded("name")
    names = [*words, "(no name)"]  # -1, no name, is the last
    found: dict[tuple[str, str], Spent] = {}
    for wanted in CLASSES:  # an operator may launch a kernel and a copy
        mine = np.flatnonzero(use[rows] == wanted)
        calls, of_call, _ = to_operators(part, rows[mine], own[mine], use, launched=True)
        in_all = to_operators(part, rows[mine], whole[mine], use, launched=True)[1]
        code = codes[calls] + 1
        sums = [np.bincount(code, weights, len(words) + 1) for weights in (None, of_call, in_all)]
        for k in np.flatnonzero(sums[0]).tolist():
            found[wanted.label, names[k - 1]] = float(sums[0][k]), float(sums[1][k]), float(sums[2][k]), {}
        launched = mine[(trace.cpu[rows[mine]] != 1) & (trace.parent[rows[mine]] >= 0)]
        pair = np.stack([codes[trace.parent[rows[launched]]], codes[rows[launched]]], 1)
        unique, which = np.unique(pair, axis=0, return_inverse=True)
        total = np.bincount(which.reshape(-1), own[launched], len(unique))
        for (by, kernel), time in zip(unique.tolist(), total.tolist(), strict=True):
            found[wanted.label, names[by]][3][names[kernel]] = time
    return found


def own_times(part: RunPart, rows: I64, use: U8) -> I64:
    """The time in which each of these rows is what its device is doing; they sum to the busy time."""
    own = np.zeros(len(rows), np.int64)
    begun, ended = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for wanted in CLASSES:
        mine = np.flatnonzero(use[rows] == wanted)
        mine = mine[np.lexsort((-part.end_ns[rows[mine]], part.start_ns[rows[mine]]))]
        start, end = part.start_ns[rows[mine]], part.end_ns[rows[mine]]
        before = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
        first = np.minimum(np.maximum(start, before), end)
        covers = _Cover(*merged(begun, ended))
        own[mine] = end - first - (covers.until(end) - covers.until(first))
        begun, ended = np.concatenate([begun, start]), np.concatenate([ended, end])
    return own


class _Cover:
    """How much of the time up to a moment is covered by disjoint intervals."""

    def __init__(self, start: I64, end: I64) -> None:
        self.start, self.end = start, end
        self.total = np.concatenate([[0], np.cumsum(end - start)])

    def until(self, time: I64) -> I64:
        at = np.searchsorted(self.start, time, "right")
        last = np.maximum(at - 1, 0)
        beyond = np.maximum(self.end[last] - time, 0) if len(self.end) else np.zeros(len(time), np.int64)
        return np.asarray(np.where(at > 0, self.total[at] - beyond, 0))


# -- the hosts ---------------------------------------------------------------------------------------------------------


def host_side(a: Run, b: Run) -> pa.Table:
    """What the hosts do, side by side: measure, a, b, delta, delta_pct; means as in `compare`. host_ns is the hosts'
    own time, without waiting; launches is their number of launches, host_per_launch_ns the ratio of the two,
    launch_call_ns the time in the calls that launch, launch_delay_ns from their end to the start of what they launched;
    idle_*_ns is idle time of the devices by its cause."""
    sides = [_host(run, share) for run, share in zip((a, b), per_step(a, b), strict=True)]
    rows = []
    for measure in dict.fromkeys([*sides[0], *sides[1]]):
        one, two = (side.get(measure, 0.0) for side in sides)
        pct = 100 * (two - one) / one if one else None
        rows.append({"measure": measure, "a": one, "b": two, "delta": two - one, "delta_pct": pct})
    return table(rows, {"measure": pa.string()} | dict.fromkeys(("a", "b", "delta", "delta_pct"), pa.float64()))


def _host(run: Run, share: float) -> dict[str, float]:
    ranks = max(len(run.job.ranks), 1)
    found = {"host_ns": 0.0}
    for part in run.parts():
        found["host_ns"] += share * len(part.at) / ranks * float(host_times(part)[1].sum())
    calls = launches(run)
    for name, column in (("launches", "launches"), ("launch_call_ns", "host_ns"), ("launch_delay_ns", "delay_ns")):
        found[name] = share * float(np.mean([v or 0 for v in calls[column].to_pylist()] or [0.0]))
    found["host_per_launch_ns"] = found["host_ns"] / found["launches"] if found["launches"] else 0.0
    found |= {f"idle_{cause}_ns": 0.0 for cause in CAUSES}
    for row in idle(run).to_pylist():
        found[f"idle_{row['cause']}_ns"] += share / ranks * row["time_ns"]
    return found


def host_times(part: RunPart) -> tuple[I64, I64]:
    """(rows, ns): what the host itself does, without waiting for the device and without what an operator calls. If the
    host is the device, its computation counts as device work."""
    trace = part.trace
    rows = np.flatnonzero((uses(trace) == Use.HOST) & part.timed & (trace.cpu == 1))
    lasted = part.end_ns[rows] - part.start_ns[rows]
    return rows, np.where(trace.duration_ns[rows] != UNKNOWN, np.minimum(trace.duration_ns[rows], lasted), lasted)


# -- in words ----------------------------------------------------------------------------------------------------------


def _why(a: Spent, b: Spent) -> str:
    if not a[0] or not b[0]:
        return f"{_number(max(a[0], b[0]))} calls, {_each(a if a[0] else b)} each"
    told = []
    if (said := _other_kernels(a[3], b[3])) is not None:
        told.append(said)
    if abs(a[0] - b[0]) > 1e-9 * a[0]:
        told.append(f"{_number(a[0])} → {_number(b[0])} calls")
    one, two = a[2] / a[0], b[2] / b[0]
    if abs(two - one) > 0.01 * one:
        told.append(f"{format_time(round(one))} → {format_time(round(two))} per call")
    hidden = [1 - own / whole if whole else 0.0 for _, own, whole, _ in (a, b)]
    if abs(hidden[1] - hidden[0]) > 0.01:
        told.append(f"{hidden[0]:.0%} → {hidden[1]:.0%} of it overlapped with other work")
    return ", ".join(told)


def _each(spent: Spent) -> str:
    return format_time(round(spent[2] / spent[0])) if spent[0] else "0 ns"


def _other_kernels(a: dict[str, float], b: dict[str, float]) -> str | None:
    """Kernels that took over an operator's time and were not used before."""
    gone, new = ({k: t for k, t in x.items() if k not in y} for x, y in ((a, b), (b, a)))
    if sum(new.values()) < 0.5 * sum(b.values()) or sum(gone.values()) < 0.5 * sum(a.values()) or not new or not gone:
        return None
    one, two = (max(kernels, key=kernels.__getitem__) for kernels in (gone, new))
    return f"kernel `{_short(two)}` instead of `{_short(one)}`"


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _why_idle(cause: str, a: Spent, b: Spent, host: pa.Table) -> str:
    told = [f"{_number(a[0])} → {_number(b[0])} gaps"]
    side = {row["measure"]: (row["a"], row["b"]) for row in host.to_pylist()}
    if cause in _HOST_CAUSES and all(side["launches"]):
        told.append(_times("host", side["host_ns"]))
        told.append(f"{_number(side['launches'][0])} → {_number(side['launches'][1])} launches")
        told.append(_times("host time per launch", side["host_per_launch_ns"]))
    return ", ".join(told)


def _times(what: str, sides: Sequence[float]) -> str:
    return f"{what} {format_time(round(sides[0]))} → {format_time(round(sides[1]))}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else f"{value:,.1f}"
