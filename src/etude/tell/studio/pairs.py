"""Two runs beside each other: those that are open, or one before and after the knobs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from etude.analyse.compare import breakdowns, compare
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
        "tables": {name: rows_of(_plain(table), ROWS) for name, table in tables.items()},
        "command": f"etude compare {first.words} {second.words}",
        "python": f"{first.python}; etude.compare(run, other)",
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
