"""Two runs beside each other: those that are open, or one before and after the knobs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.compare import breakdowns, compare
from etude.analyse.steps import steps
from etude.base.excerpts import rows_of
from etude.model.run import Run
from etude.tell.studio.building import build
from etude.tell.studio.index import read_index
from etude.tell.studio.session import StudioRun, StudioSession, about_run

ROWS: Final = 40
"""Operations that are shown."""
SHOWN: Final = ("kind", "name", "change", "count_a", "count_b", "time_a_ns", "time_b_ns", "delta_ns")


def comparison(first: StudioRun, second: StudioRun) -> dict[str, Any]:
    """What takes longer, and what less: the tables of `etude compare`."""
    a, b = first.run(), second.run()
    spans = [run.timing.span() for run in (a, b)]
    before, after = (0 if span is None else span[1] - span[0] for span in spans)
    change = after / max(before, 1) - 1
    word = "as long as" if before == after else f"{abs(change):.1%} {'longer' if change > 0 else 'less time'} than"
    operations = compare(a, b)
    tables = {"Time of a device": breakdowns(a, b), "Operations, the largest change first": operations.select(SHOWN)}
    return {
        "words": f"The second takes {word} the first.",
        "steps": _steps_of_both(first, second),
        "ratios": _ratios(operations),
        "tables": {name: rows_of(_plain(table), ROWS) for name, table in tables.items()},
        "command": f"etude compare {first.words} {second.words}",
        "python": f"{first.python}; etude.compare(run, other)",
    }


def _steps_of_both(first: StudioRun, second: StudioRun) -> list[list[int]]:
    """(step, its start and its length in the first, its start and its length in the second) of each step that both
    have, over all ranks, on the clock of the timeline."""
    found = [_steps_of(one) for one in (first, second)]
    return [[number, *found[0][number], *found[1][number]] for number in sorted(found[0].keys() & found[1].keys())]


def _steps_of(one: StudioRun) -> dict[int, tuple[int, int]]:
    def made() -> dict[int, tuple[int, int]]:
        table = steps(one.run())
        number, rank, begin, end = (table[name].to_numpy() for name in ("step", "rank", "start_ns", "end_ns"))
        shift = one.index.shift_ns[np.searchsorted(one.index.ranks, rank)]
        found = {}
        for step in np.unique(number).tolist():
            mine = number == step
            start = int((begin + shift)[mine].min())
            found[step] = (start, int((end + shift)[mine].max()) - start)
        return found

    steps_found: dict[int, tuple[int, int]] = one.once("steps of it", made)
    return steps_found


def _ratios(operations: pa.Table) -> dict[str, float]:
    """How many times as long a call of each name takes in the second, as means over its calls."""
    sums: dict[str, list[float]] = {}
    columns = ("name", "count_a", "time_a_ns", "count_b", "time_b_ns")
    for name, *values in zip(*(operations[column].to_pylist() for column in columns), strict=True):
        held = sums.setdefault(name, [0.0] * 4)
        for at, value in enumerate(values):
            held[at] += value or 0.0
    return {
        name: (after / calls_after) / (before / calls_before)
        for name, (calls_before, before, calls_after, after) in sums.items()
        if calls_before and before and calls_after
    }


def _plain(table: pa.Table) -> pa.Table:
    """Figures in whole ns, where they are means."""
    for at, field in enumerate(table.schema):
        if field.name.endswith("_ns") and pa.types.is_floating(field.type):
            table = table.set_column(at, field.name, pa.compute.round(table.column(at)))
    return table


def run_of(session: StudioSession, one: StudioRun, run: Run, words: str) -> int:
    """The number of a run that was computed, with an index of its own for its timeline; it goes with the session."""
    folder = Path(tempfile.mkdtemp(prefix="etude-studio-", dir=session.scratch))
    build(run, folder, run.timing.clock_offset_ns, about_run(run), lambda amount: None)
    made = StudioRun(one.source, read_index(folder), {"run": run, "job": run.job})
    return session.add(made)
