"""The input of a trend: one value for each rank and step of a run, or for each rank of many recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from etude.analyse.measures import MEASURES
from etude.analyse.steps import steps
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.model.run import Run
from etude.model.schema import UNKNOWN

__all__ = ["VALUES", "Samples", "from_table", "of_run", "of_runs", "with_work", "work_of_table"]


STEP_TIME: Final = "step_time"
VALUES: Final = (STEP_TIME, *(name.removesuffix("_ns") for name in MEASURES))
"""What can be followed over steps: from its start to that of the next, or one of the measures of its device time."""
TIMES: Final = ("time", "timestamp", "start_ns", "date")
EXACT: Final = 2.0**53
"""Largest whole number that a float holds exactly: 104 days of nanoseconds."""
PLACES: Final = ("step", "sample", "iteration", "window")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Rows are ranks, columns are steps (or recordings) in the order of time; NaN where nothing is known."""

    name: str
    """What is measured."""
    ranks: I64
    steps: I64
    """Number of each column, as the run has it."""
    start_ns: I64
    """When each column begins; UNKNOWN where not recorded."""
    values: F64
    own: F64
    """What ranks are compared by: the time of their own work, without waiting for others."""
    work: F64 | None = None
    """Amount of work: FLOPs, tokens."""
    whole: bool = True
    """Whether values are whole numbers: nanoseconds."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def job(self) -> F64:
        """One value per column: the median over ranks."""
        found = np.nanmedian(self.values, axis=0)
        return np.rint(found) if self.whole else found


def of_run(run: Run, value: str = STEP_TIME) -> Samples:
    """The steps of a run."""
    known(value)
    found = steps(run)
    if not len(found):
        raise UsageError("no steps are recorded in this run", hint="give several recordings, or a CSV of values")
    rank, step = found["rank"].to_numpy(), found["step"].to_numpy()
    ranks, row = np.unique(rank, return_inverse=True)
    numbers, column = np.unique(step, return_inverse=True)
    shape = len(ranks), len(numbers)
    start = _matrix(shape, row, column, found["start_ns"])
    own = _matrix(shape, row, column, found["compute_ns"])
    if value == STEP_TIME:
        values = _matrix(shape, row, column, found["span_ns"])
        following = np.diff(start, axis=1)
        values[:, :-1] = np.where(np.isnan(following), values[:, :-1], following)
        own = own if np.nanmax(own) > 0 else values
    else:
        values = own = _matrix(shape, row, column, found[f"{value}_ns"])
    first = np.array([found["start_ns"].to_numpy()[column == i].min() for i in range(len(numbers))], np.int64)
    return Samples(value, ranks, numbers, first, values, own, _flops(run, ranks, numbers))


def of_runs(runs: Sequence[Run], value: str = STEP_TIME) -> Samples:
    """One column per recording, ordered by start: the median of its steps, or its span if it has no steps."""
    parts = sorted((_window(run, value) for run in runs), key=lambda part: int(part.start_ns[0]))
    ranks = np.unique(np.concatenate([part.ranks for part in parts]))
    at = [np.searchsorted(ranks, part.ranks) for part in parts]

    def joined(columns: list[F64]) -> F64:
        found = np.full((len(ranks), len(parts)), np.nan)
        for number, (rows, column) in enumerate(zip(at, columns, strict=True)):
            found[rows, number] = column
        return found

    worked = [part.work for part in parts]
    return Samples(
        value, ranks, np.arange(len(parts)), np.concatenate([part.start_ns for part in parts]),
        joined([part.values[:, 0] for part in parts]), joined([part.own[:, 0] for part in parts]),
        joined([w[:, 0] for w in worked if w is not None]) if all(w is not None for w in worked) else None,
    )  # fmt: skip


def from_table(table: pa.Table, value: str, *, where: str = "") -> Samples:
    """A column `value` of a table with one of the columns step and time, and `rank` where there are several. Rows are
    taken in the order of step or time; without either, in the order of the table."""
    names = table.column_names
    if value not in names:
        shown = ", ".join(f"`{n}`" for n in names[:12])
        raise UsageError(f"there is no column `{value}`", where=where, hint=f"columns: {shown}")
    values = numbers_of(table, value, where)
    if float(np.nanmax(np.abs(values), initial=0.0)) >= EXACT:
        raise UsageError(f"column `{value}` holds numbers from 2**53 on, which are not exact", where=where)
    place = next((name for name in (*PLACES, *TIMES) if name in names), "")
    rank = _whole_numbers(table, "rank", where) if "rank" in names else np.zeros(len(table), np.int64)
    label = _labels(table, place, rank, where)
    ranks, row = np.unique(rank, return_inverse=True)
    steps_, column = np.unique(label, return_inverse=True)
    cell = row * max(len(steps_), 1) + column
    if len(np.unique(cell)) < len(cell):
        raise UsageError(
            f"a rank has two rows for the same {place or 'row'}", where=where, hint="give one row per rank and step"
        )
    matrix = np.full((len(ranks), len(steps_)), np.nan)
    matrix[row, column] = values
    if not np.isfinite(matrix).any(axis=0).all() or not len(steps_):
        raise UsageError(f"column `{value}` has no value in a step", where=where)
    whole = pa.types.is_integer(table.schema.field(value).type)
    start = np.full(len(steps_), UNKNOWN, np.int64)
    time = next((name for name in TIMES if name in names), "")
    if time:
        start[column] = times_ns(table, time, where)
    shown_steps = steps_ if place in PLACES else np.arange(len(steps_))
    return Samples(value, ranks, shown_steps, start, matrix, matrix, whole=whole)


def with_work(samples: Samples, work: F64 | None) -> Samples:
    return replace(samples, work=work)


def work_of_table(samples: Samples, table: pa.Table, *, where: str = "") -> F64:
    """Amount of work of each rank and step: a table with columns step, rank and one more, as in `samples`."""
    rest = [name for name in table.column_names if name not in ("rank", *PLACES, *TIMES)]
    place = next((name for name in PLACES if name in table.column_names), "")
    if len(rest) != 1 or not place:
        raise UsageError("work must be a table of step, rank and one more column", where=where, hint="step,rank,tokens")
    rank = numbers_of(table, "rank", where) if "rank" in table.column_names else np.zeros(len(table))
    step, amount = numbers_of(table, place, where), numbers_of(table, rest[0], where)
    found = np.full(samples.values.shape, np.nan)
    row, column = np.searchsorted(samples.ranks, rank), np.searchsorted(samples.steps, step)
    row, column = np.minimum(row, len(samples.ranks) - 1), np.minimum(column, len(samples.steps) - 1)
    here = (samples.ranks[row] == rank) & (samples.steps[column] == step)
    found[row[here], column[here]] = amount[here]
    lacking = np.argwhere(np.isnan(found) & ~np.isnan(samples.own))
    if len(lacking):
        r, c = lacking[0].tolist()
        raise UsageError(f"the work of rank {samples.ranks[r]} in step {samples.steps[c]} is not given", where=where)
    if not (found[~np.isnan(found)] > 0).all():
        raise UsageError("an amount of work that is not positive", where=where)
    return found


def known(value: str) -> None:
    if value not in VALUES:
        raise UsageError(f"a run has no value `{value}`", hint=f"known: {', '.join(VALUES)}")


def _window(run: Run, value: str) -> Samples:
    """One recording as one column."""
    known(value)
    if len(steps(run)):
        found = of_run(run, value)
        with np.errstate(all="ignore"):
            values, own = (np.rint(np.nanmedian(m, axis=1))[:, None] for m in (found.values, found.own))
            work = None if found.work is None else np.nanmedian(found.work, axis=1)[:, None]
        return replace(
            found, steps=np.zeros(1, np.int64), start_ns=found.start_ns[:1], values=values, own=own, work=work
        )
    from etude.analyse.breakdown import breakdown

    table = breakdown(run)
    name = "span_ns" if value == STEP_TIME else f"{value}_ns"
    values = table[name].to_numpy(zero_copy_only=False).astype(np.float64)[:, None]
    compute = table["compute_ns"].to_numpy(zero_copy_only=False).astype(np.float64)[:, None]
    starts = [int(part.start_ns[part.timed].min()) for part in run.parts() if part.timed.any()]
    if not starts or np.isnan(values).all():
        raise UsageError("no node in this recording has a time")
    own = compute if value == STEP_TIME and np.nanmax(compute) > 0 else values
    return Samples(
        value, np.asarray(run.job.ranks, np.int64), np.zeros(1, np.int64), np.array([min(starts)]), values, own
    )


def _matrix(shape: tuple[int, int], row: I64, column: I64, values: pa.ChunkedArray) -> F64:
    found = np.full(shape, np.nan)
    found[row, column] = values.to_numpy(zero_copy_only=False)
    return found


def _flops(run: Run, ranks: I64, numbers: I64) -> F64 | None:
    """FLOPs of each rank and step, where all have some."""
    found = np.zeros((len(ranks), len(numbers)))
    for part in run.parts():
        trace = part.trace
        counted = np.flatnonzero((trace.flops != UNKNOWN) & (trace.flops > 0) & (trace.step != UNKNOWN))
        column = np.searchsorted(numbers, trace.step[counted])
        counted = counted[column < len(numbers)]
        column = column[column < len(numbers)]
        counted, column = (
            counted[numbers[column] == trace.step[counted]],
            column[numbers[column] == trace.step[counted]],
        )
        total = np.bincount(column, trace.flops[counted].astype(np.float64), len(numbers))
        found[np.isin(ranks, np.asarray(run.job.ranks)[part.at])] = total
    return found if (found > 0).all() else None


def numbers_of(table: pa.Table, name: str, where: str) -> F64:
    kind = table.schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise UsageError(f"column `{name}` holds {kind}, not numbers", where=where)
    return np.asarray(table[name].to_numpy(zero_copy_only=False), np.float64)


def _whole_numbers(table: pa.Table, name: str, where: str) -> I64:
    """A column that numbers rows: whole numbers, none missing."""
    found = numbers_of(table, name, where)
    wrong = np.flatnonzero(~np.isfinite(found) | (found != np.rint(found)) | (np.abs(found) >= EXACT))
    if len(wrong):
        raise UsageError(f"column `{name}` has no whole number in row {int(wrong[0]) + 1}", where=where)
    return found.astype(np.int64)


def times_ns(table: pa.Table, name: str, where: str) -> I64:
    """A column of times: dates, whole numbers of nanoseconds, or seconds, by their size."""
    column = table[name]
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return np.asarray(column.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
    if column.null_count:
        raise UsageError(f"column `{name}` has rows without a time", where=where)
    numbers = numbers_of(table, name, where)
    most = float(np.abs(numbers).max(initial=0.0))
    # seconds since 1970 are below 1e11 for a thousand years, milliseconds below 1e14, microseconds below 1e17
    scale = (
        1
        if name.endswith("_ns")
        else next((s for top, s in ((1e11, 10**9), (1e14, 10**6), (1e17, 1000)) if most < top), 1)
    )
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.int64) * scale
    return np.rint(numbers * scale).astype(np.int64)


def _labels(table: pa.Table, place: str, rank: I64, where: str) -> I64:
    """The index of each row of a rank: its step, its time, or a running number."""
    if place in PLACES:
        return _whole_numbers(table, place, where)
    if place:
        return times_ns(table, place, where)
    order = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[order], rank[order])
    number = np.empty(len(rank), np.int64)
    number[order] = np.arange(len(rank)) - first
    return number
