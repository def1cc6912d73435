"""Power, clocks, temperatures, errors and link counters joined with step times by time and rank.

A rank gets a vote from each signal (including its own step time) in which it is far from the others. Signals that move
where a rank changes are reported with it, and so is a nearby error (XID, ECC).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etude.analyse.changes import noise
from etude.analyse.samples import TIMES, Samples, numbers_of, times_ns
from etude.analyse.trend import Trend
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.model.job import ranges
from etude.model.schema import UNKNOWN

__all__ = ["RankSignals", "correlated", "joined"]

Row = dict[str, Any]

FAR: Final = 3.5
"""Scaled median deviations from the other ranks from which a signal votes."""
MOVED: Final = 5.0
"""Standard errors by which a signal must move where a rank changes to be reported with it."""
LEAST_MOVE: Final = 0.02
NEAR: Final = 2
"""Steps around a change within which an error is reported with it."""
FEWEST: Final = 3
_EVENT: Final = re.compile(r"xid|ecc|sbe|dbe", re.IGNORECASE)
_COUNTER: Final = re.compile(r"total|count|bytes|packets|errors|replay|discard|xmit|rcv|tx|rx", re.IGNORECASE)
_PLACE: Final = ("rank", "host", "hostname", "node", "gpu", "device")
_PARTS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class RankSignals:
    """One row per rank and one column per step, as in the samples they belong to; and errors, one per row."""

    values: dict[str, F64]
    events: list[Row]
    """time_ns, step, rank, signal, value."""
    note: str = ""
    """How ranks were assigned, if the table does not name them."""


def joined(samples: Samples, table: pa.Table, *, where: str = "") -> RankSignals:
    """The columns of a table with a time and a rank (or host and gpu), each as its mean in each step of each rank;
    counters as their increase. Also `signal` (or `metric`) and `value`, a row for each."""
    if len(samples) < 2 or int(samples.start_ns.min()) == UNKNOWN:
        raise UsageError("signals are joined by time, but the steps have no times", where=where)
    time = next((name for name in TIMES if name in table.column_names), "")
    if not time:
        raise UsageError("signals have no column of times", where=where, hint=", ".join(TIMES))
    at_ns = times_ns(table, time, where)
    row, note = _rows(samples, table, where)
    start = samples.start_ns
    ends = np.append(start[1:], start[-1] + int(np.median(np.diff(start))))
    step = np.searchsorted(start, at_ns, "right") - 1
    inside = (step >= 0) & (at_ns < ends[np.maximum(step, 0)]) & (row >= 0)
    if not inside.any():
        problem = f"no row is within the time of the run, {int(start[0])} to {int(ends[-1])} ns"
        hint = f"the rows are between {int(at_ns.min())} and {int(at_ns.max())} ns"
        raise UsageError(problem, where=where, hint=hint)
    values: dict[str, F64] = {}
    events: list[Row] = []
    for name, chosen, numbers in _columns(table, time, where):
        used = inside[chosen] & np.isfinite(numbers)
        order = np.lexsort((at_ns[chosen][used], row[chosen][used]))
        r, s = row[chosen][used][order], step[chosen][used][order]
        v, t = numbers[used][order], at_ns[chosen][used][order]
        if _EVENT.search(name):
            events += _events(name, samples, r, s, v, t)
        elif len(v):
            grows = _COUNTER.search(name) is not None and bool((np.diff(v)[np.diff(r) == 0] >= 0).all())
            values[name] = _by_step(samples.values.shape, r, s, _growth(r, v) if grows else v)
    return RankSignals(values, sorted(events, key=lambda e: (e["time_ns"], e["rank"])), note)


def correlated(found: Trend, signals: RankSignals) -> Row:
    """What signals say about a trend: `votes` by rank, `moves` of signals where ranks change, `events` and the changes
    they are near, and `texts`, the same in words."""
    moves = [move for one in found.findings if one.step is not None for move in _moves(found, signals, one)]
    votes = _votes(found.samples, signals)
    events = [event | {"near_change": _near(found, event)} for event in signals.events]
    texts = [
        f"{m['signal']} goes from {m['before']:.4g} to {m['after']:.4g} on {_named(m['ranks'])} at step {m['step']}"
        for m in moves
    ]
    texts += [
        f"rank {v['rank']} is far from the others in {len(v['signals'])} of {len(signals.values) + 1} signals: "
        + ", ".join(f"{s['signal']} (z {s['z']:+.1f})" for s in v["signals"])
        for v in votes
    ]
    texts += [
        f"{e['signal']} {e['value']:g} on rank {e['rank']} in step {e['step']}, "
        f"near the change at step {e['near_change']}"
        for e in events
        if e["near_change"] is not None
    ]
    return {"names": sorted(signals.values), "votes": votes, "moves": moves, "events": events, "texts": texts}


# -- joining -----------------------------------------------------------------------------------------------------------


def _rows(samples: Samples, table: pa.Table, where: str) -> tuple[I64, str]:
    """(row of the samples for each row of the table, -1 where none; how it was found)."""
    names = table.column_names
    note = ""
    if "rank" in names:
        rank = numbers_of(table, "rank", where)
    else:
        host = next((n for n in ("host", "hostname", "node") if n in names), "")
        gpu = next((n for n in ("gpu", "device") if n in names), "")
        if not gpu:
            raise UsageError("the signals do not name a rank", where=where, hint="a column `rank`, or host and gpu")
        places = list(zip(table[host].to_pylist() if host else [""] * len(table), table[gpu].to_pylist(), strict=True))
        known = sorted(set(places), key=lambda p: (_natural(str(p[0])), _natural(str(p[1]))))
        if len(known) != len(samples.ranks):
            raise UsageError(
                f"{len(known)} devices and {len(samples.ranks)} ranks", where=where, hint="add a column `rank`"
            )
        note = "ranks are assigned to devices in the order of host and gpu"
        number = {place: i for i, place in enumerate(known)}
        rank = samples.ranks[np.array([number[p] for p in places])].astype(np.float64)
    row = np.minimum(np.searchsorted(samples.ranks, rank), len(samples.ranks) - 1)
    return np.where(samples.ranks[row] == rank, row, -1).astype(np.int64), note


def _natural(text: str) -> list[tuple[int, str]]:
    """node2 before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _PARTS.split(text) if part]


def _columns(table: pa.Table, time: str, where: str) -> Iterator[tuple[str, I64, F64]]:
    """(name, rows, values) of each signal of a table: a column each, or a row each."""
    kind = next((name for name in ("signal", "metric") if name in table.column_names), "")
    if kind and "value" in table.column_names:
        values = numbers_of(table, "value", where)
        names = table[kind].to_numpy(zero_copy_only=False)
        for name in sorted({str(n) for n in names.tolist()}):
            rows = np.flatnonzero(names == name)
            yield name, rows, values[rows]
        return
    everything = np.arange(len(table))
    seen = False
    for name in table.column_names:
        if name in (time, "step", *_PLACE) or pa.types.is_string(table.schema.field(name).type):
            continue
        seen = True
        filled = pc.if_else(pc.is_valid(table[name]), table[name], None)
        yield name, everything, numbers_of(pa.table({name: filled}), name, where)
    if not seen:
        raise UsageError("there is no column of numbers", where=where)


def _by_step(shape: tuple[int, int], row: I64, step: I64, values: F64) -> F64:
    cell = row * shape[1] + step
    count = np.bincount(cell, minlength=shape[0] * shape[1])
    with np.errstate(all="ignore"):
        found: F64 = (np.bincount(cell, values, shape[0] * shape[1]) / count).reshape(shape)
    return found


def _growth(row: I64, values: F64) -> F64:
    """Increase of a counter from each row to the next of its rank; the first of a rank like the second."""
    grown = np.diff(values, prepend=values[:1])
    first = np.flatnonzero(np.diff(row, prepend=-1) != 0)
    after = np.minimum(first + 1, len(values) - 1)
    grown[first] = np.where(row[after] == row[first], grown[after], 0.0)
    return grown


def _events(name: str, samples: Samples, row: I64, step: I64, values: F64, time: I64) -> list[Row]:
    """New errors of a rank: a number that is not 0, or one that changed."""
    fresh = np.diff(row, prepend=-1) != 0
    before = np.where(fresh, 0.0, np.concatenate([[0.0], values[:-1]]))
    found = np.flatnonzero((values != before) & (values != 0))
    return [
        {"time_ns": int(time[i]), "step": int(samples.steps[step[i]]), "rank": int(samples.ranks[row[i]]),
         "signal": name, "value": float(values[i])}
        for i in found.tolist()
    ]  # fmt: skip


# -- what they say -----------------------------------------------------------------------------------------------------


def _votes(samples: Samples, signals: RankSignals) -> list[Row]:
    """Ranks that are far from the others in two signals or more."""
    if len(samples.ranks) < FEWEST:
        return []
    far: dict[int, list[Row]] = {}
    for name, values in {"own time": samples.own, **signals.values}.items():
        with np.errstate(all="ignore"):
            known = ~np.isnan(values).all(axis=1)
            middle = np.full(len(values), np.nan)
            middle[known] = np.nanmedian(values[known], axis=1)
        if known.sum() < FEWEST:
            continue
        centre = float(np.nanmedian(middle))
        wide = max(1.4826 * float(np.nanmedian(np.abs(middle - centre))), 0.005 * abs(centre), 1e-12)
        z = (middle - centre) / wide
        for row in np.flatnonzero(np.abs(np.nan_to_num(z)) >= FAR).tolist():
            far.setdefault(row, []).append({"signal": name, "z": float(z[row])})
    found = [{"rank": int(samples.ranks[row]), "votes": len(v), "signals": v} for row, v in far.items() if len(v) > 1]
    return sorted(found, key=lambda v: (-v["votes"], v["rank"]))


def _moves(found: Trend, signals: RankSignals, one: Any) -> Iterator[Row]:
    """Signals that move where a finding's ranks change: the median of the steps before against the steps after."""
    samples = found.samples
    if one.kind not in ("throttled", "common_change", "slow_rank", "faster") or one.step is None:
        return
    at = int(np.searchsorted(samples.steps, one.step))
    rows = np.isin(samples.ranks, one.ranks) if one.ranks else np.ones(len(samples.ranks), bool)
    for name, values in sorted(signals.values.items()):
        with np.errstate(all="ignore"):
            seen = values[rows]
            series = np.nanmedian(seen, axis=0) if not np.isnan(seen).all() else np.full(len(samples), np.nan)
        before, after = series[:at][~np.isnan(series[:at])], series[at:][~np.isnan(series[at:])]
        if len(before) < 2 or len(after) < 2:
            continue
        low, high = float(np.median(before)), float(np.median(after))
        wide = max(noise(before), noise(after)) * np.sqrt(1 / len(before) + 1 / len(after))
        if abs(high - low) > MOVED * wide and abs(high - low) > LEAST_MOVE * abs(low):
            ranks = list(one.ranks) or samples.ranks.tolist()
            yield {"step": one.step, "ranks": ranks, "signal": name, "before": low, "after": high}


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(np.array(ranks))}"


def _near(found: Trend, event: Row) -> int | None:
    """The change of that rank, or of the job, that is near an event."""
    steps = found.samples.steps
    at = int(np.searchsorted(steps, event["step"]))
    for change in found.changes:
        mine = change.rank is None or change.rank == event["rank"]
        if mine and abs(int(np.searchsorted(steps, change.step)) - at) <= NEAR:
            return change.step
    return None
