"""What other verbs wrote, as something that the studio shows: a served stream, a fleet, a world, a study, an archive.
Each has tables to ask, charts, a timeline where rows have times, and the page of `etude report` where there is one."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.tell.studio.index import TimelineIndex, index_of
from etude.tell.studio.tables import build_tables, slices_in
from etude.tell.studio.windows import warm

RECORDS: Final = {"outcome.json": "world", "fleet.json": "fleet", "served.json": "served stream"}
STUDY: Final = ("points", "rows")
"""Tables of a study, as files of its folder."""
MOST_POINTS: Final = 4_000
"""Points of a chart that are drawn one by one; more are drawn as windows with their lowest, middle and highest."""
WINDOWS: Final = 400


def kind_of(path: Path) -> str:
    """What a folder is, if another verb wrote it; else nothing."""
    for name, kind in RECORDS.items():
        if (path / name).is_file():
            return kind
    if (path / "study.yaml").is_file() and (path / "points.parquet").is_file():
        return "study"
    return "archive" if (path / "runs" / "0.parquet").is_file() and (path / "metrics").is_dir() else ""


@dataclass
class StudioFolder:
    """A folder as it was given. Its tables are read when something needs them."""

    path: Path
    kind: str
    _kept: dict[str, Any] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, path: Path, kind: str) -> StudioFolder:
        found = cls(path, kind)
        warm(found.index)
        return found

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What is computed when it is first asked for."""
        with self._turn:
            if name not in self._kept:
                self._kept[name] = make()
            return self._kept[name]

    @property
    def tables(self) -> dict[str, pa.Table]:
        found: dict[str, pa.Table] = self.once("tables of it", lambda: _read(self.path, self.kind))
        return found

    @cached_property
    def index(self) -> TimelineIndex:
        def make(folder: Path, about: dict[str, Any]) -> None:
            timed = {} if self.kind in ("study", "archive") else self.tables
            more = {"name": self.path.resolve().name, "timing": "simulated", "system": "", "nodes": 0}
            build_tables(slices_in(timed), folder, about | more)

        return index_of(self.path, self.kind, make)

    @property
    def words(self) -> str:
        return shlex.quote(str(self.path))

    @property
    def has_page(self) -> bool:
        return self.kind in RECORDS.values()

    @property
    def command(self) -> str:
        """The command that shows the same."""
        if self.kind == "study":
            return f"etude query {self.words} 'select * from points'"
        if self.kind == "archive":
            return f"etude archive list --into {self.words}"
        return f"etude report {self.words} -o page.html"

    @property
    def python(self) -> str:
        """The line of Python that gives its first table."""
        if self.kind == "archive":
            return f"pyarrow.dataset.dataset({str(self.path / 'runs')!r}).to_table()"
        first = self.path / f"{next(iter(self.tables), 'points')}.parquet"
        return f"pyarrow.parquet.read_table({str(first)!r})"

    def page(self) -> tuple[bytes, str]:
        """The page of `etude report`, and the policy that it declares."""
        from etude.tell.report.asked.pages import folder_page
        from etude.tell.view.page import policy_of, render

        if not self.has_page:
            raise UsageError(f"a {self.kind} has no page here")
        found: str = self.once("page", lambda: render(folder_page([self.path])))
        return found.encode(), policy_of(found)


def _read(path: Path, kind: str) -> dict[str, pa.Table]:
    if kind in RECORDS.values():
        from etude.tell.report.asked.pages import outcome_subject

        return dict(outcome_subject(path).files)
    if kind == "archive":
        from etude.tell.archive import TABLES, Lake

        lake = Lake(path)
        return {name: lake.query(f"select * from {name}") for name in TABLES}
    from etude.store.tables import read_table

    return {name: read_table(path / f"{name}.parquet") for name in STUDY if (path / f"{name}.parquet").is_file()}


# -- charts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a query: the first column across, the second up, a third, if there is one, by colour."""

    title: str
    sql: str
    form: str
    """`points`, `steps` or `bars`."""


def charts_of(one: StudioFolder) -> list[Chart]:
    """What is worth seeing first, by the columns that tables have."""
    found: list[Chart] = []
    for name, table in one.tables.items():
        if len(table):
            found += _charts(name, set(table.schema.names), table)
    return found


def _charts(name: str, columns: set[str], table: pa.Table) -> list[Chart]:
    quoted, found = f'"{name}"', []

    def chart(title: str, sql: str, form: str = "points") -> None:
        found.append(Chart(f"{name}: {title}", sql, form))

    if {"arrival_s", "first_token_s", "finish_s"} <= columns:
        what = f"from {quoted} where finish_s is not null order by 1"
        chart("time to the first token", f"select arrival_s, first_token_s - arrival_s as ttft_s {what}")
        chart("latency", f"select arrival_s, finish_s - arrival_s as latency_s {what}")
    if {"start_ns", "decode", "waiting"} <= columns:
        what = f"from {quoted} order by 1"
        chart("running and waiting requests", f"select start_ns / 1e9 as time_s, decode as running {what}", "steps")
        chart("requests that wait", f"select start_ns / 1e9 as time_s, waiting {what}", "steps")
        chart("blocks in use", f"select start_ns / 1e9 as time_s, blocks {what}", "steps")
    if {"time_s", "holder", "devices"} <= columns:
        chart("devices by holder", f"select time_s, devices, holder from {quoted} order by time_s", "steps")
    if {"time_s", "base_w", "serving_w", "training_w"} <= columns:
        chart("power", f"select time_s, base_w + serving_w + training_w as watts from {quoted} order by 1", "steps")
    if {"state", "start_s", "end_s"} <= columns:
        sums = f"select state, sum(end_s - start_s) / 3600 as hours from {quoted} group by 1 order by 2 desc"
        chart("time by state", sums, "bars")
    if {"metric", "variant", "ratio"} <= columns:
        sums = f"select variant || ', ' || metric as what, avg(ratio) as ratio from {quoted} group by 1 order by 1"
        chart("against the baseline", sums, "bars")
    if {"variant", "commands"} <= columns:
        numbers = [f.name for f in table.schema if pa.types.is_floating(f.type)]
        for number in numbers[:6]:
            sums = f'select variant, avg("{number}") as "{number}" from {quoted} group by 1 order by 1'
            chart(number, sums, "bars")
    if {"run", "span_ns", "origin"} <= columns:
        chart("time of each run", f"select name || ' ' || run[:6] as run, span_ns / 1e6 as ms from {quoted}", "bars")
    if {"run", "metric", "value"} <= columns:
        sums = f"select metric, value from {quoted} join runs using (run) where unit = 'ns' order by 2 desc limit 20"
        chart("metrics in ns", sums, "bars")
    if {"run", "what", "cost_ns"} <= columns:
        sums = f"select what, cost_ns / 1e6 as ms from {quoted} where cost_ns > 0 order by 2 desc limit 20"
        chart("what costs most", sums, "bars")
    return found


def charts(one: StudioFolder) -> dict[str, Any]:
    """Each chart with its points. Of too many, windows of the first column with lowest, middle and highest."""
    from etude.store.sql import query_tables

    def made() -> list[dict[str, Any]]:
        drawn = []
        for chart in charts_of(one):
            found = query_tables(one.tables, chart.sql)
            names = found.schema.names
            about = {"title": chart.title, "sql": chart.sql, "form": chart.form, "columns": names, "rows": len(found)}
            drawn.append(about | _points(found, chart.form))
        return drawn

    sizes = {name: [len(table), table.schema.names] for name, table in one.tables.items()}
    return {"charts": one.once("charts", made), "tables": sizes, "command": one.command, "python": one.python}


def _points(found: pa.Table, form: str) -> dict[str, Any]:
    if form == "bars":
        return {
            "x": [str(v) for v in found.column(0).to_pylist()],
            "y": [_plain(v) for v in found.column(1).to_pylist()],
        }
    x, y = (found.column(at).to_numpy(zero_copy_only=False).astype(np.float64) for at in (0, 1))
    series = [str(v) for v in found.column(2).to_pylist()] if len(found.schema.names) > 2 else [""] * len(x)
    parts = {}
    for name in dict.fromkeys(series):
        mine = np.flatnonzero((np.array(series, object) == name) & np.isfinite(x) & np.isfinite(y))
        parts[name] = _windowed(x[mine], y[mine])
    return {"series": parts}


def _windowed(x: Any, y: Any) -> dict[str, Any]:
    if len(x) <= MOST_POINTS:
        return {"x": x.tolist(), "y": y.tolist()}
    low, high = float(x.min()), float(x.max())
    place = np.minimum(((x - low) / max(high - low, 1e-300) * WINDOWS).astype(np.int64), WINDOWS - 1)
    order = np.lexsort((y, place))
    first = np.flatnonzero(np.append(True, np.diff(place[order]) > 0))
    last = np.append(first[1:], len(order))
    middle = (first + last) // 2
    sorted_y, windows = y[order], place[order][first]
    return {
        "x": (low + (windows + 0.5) * (high - low) / WINDOWS).tolist(),
        "y": sorted_y[middle].tolist(),
        "low": sorted_y[first].tolist(),
        "high": sorted_y[last - 1].tolist(),
    }


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)


def examples(one: StudioFolder) -> tuple[str, ...]:
    """Queries to begin with."""
    first = next(iter(one.tables), "runs")
    return (f'select * from "{first}" limit 100', *(chart.sql for chart in charts_of(one)[:6]))


def columns(tables: Mapping[str, pa.Table]) -> dict[str, list[str]]:
    return {name: table.schema.names for name, table in tables.items()}
