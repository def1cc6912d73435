"""SQL over what was written: what `etude query` asks for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part
from etude.base.outputs import Tabled
from etude.steps.asked.jobs import JobInput, JobSource

if TYPE_CHECKING:
    import pyarrow as pa


TABLES = (
    "tables: nodes, deps, attrs, groups, ranks; requests, passes, replicas; sessions, tasks; links, visits, "
    "operations; events, states, jobs; points, rows of a study; those of an archive"
)
NOT_JOBS = (
    *("fleet.json", "served.json", "outcome.json", "visits.parquet"),
    *("study.yaml", "runs/0.parquet"),
)
"""Files of folders that are no jobs."""


@dataclass(frozen=True, kw_only=True)
class Query(JobInput):
    """SQL over a job (nodes, deps, attrs, groups, ranks) or a served stream (requests, passes; sessions, tasks)

    etude query job/ "select name, sum(duration_ns) from nodes group by 1"
    etude query job/ "describe nodes"         the columns of a table

    A Parquet job is not loaded for it.
    """

    sql: str = argument("text", TABLES, like="select 1", plain=True)
    top: int = figure("count", "number of rows to fetch; 0: all", 0)
    seconds: float | None = figure("number", "end a query that takes longer than this", None, most=3600, panel="Output")
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class QueryInputs:
    source: JobSource
    sql: str
    top: int
    seconds: float | None = None
    is_job: bool = True


def inputs(asked: Query) -> QueryInputs:
    path = Path(asked.path)
    if any((path / name).is_file() for name in NOT_JOBS):
        return QueryInputs(JobSource(path), asked.sql, asked.top, asked.seconds, is_job=False)
    return QueryInputs(JobSource.of(asked), asked.sql, asked.top, asked.seconds)


def run(given: QueryInputs) -> "tuple[pa.Table, bool]":
    """The rows, and whether there are more."""
    from etude.capture.opening import is_columns, refuse_for_columns
    from etude.store import sql as store_sql

    source, path, sql = given.source, given.source.path, given.sql
    if given.top:
        sql = f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) LIMIT {given.top + 1}"
    if (path / "runs" / "0.parquet").is_file():
        from etude.tell.archive import Lake

        found = Lake(path).query(sql, seconds=given.seconds)
    elif not given.is_job:
        found = store_sql.query_tables(_tables(path), sql, seconds=given.seconds)
    elif is_columns(path) and source.times is None:
        refuse_for_columns(path, source.groups, source.max_bytes)
        found = store_sql.query(path, sql, seconds=given.seconds)
    else:
        found = store_sql.query(source.open(), sql, seconds=given.seconds)
    more = bool(given.top) and len(found) > given.top
    return found.slice(0, given.top) if more else found, more


def _tables(path: Path) -> "dict[str, pa.Table]":
    """The tables of what `etude fleet`, `etude serve`, `etude study run` or `etude simulate --links` wrote."""
    from etude.store.tables import read_link_statistics, read_table
    from etude.world.fleet import is_fleet, read_fleet
    from etude.world.folder import is_outcome, read_outcome
    from etude.world.serve.stored import read_served

    if is_outcome(path):
        return read_outcome(path)[1]
    if is_fleet(path):
        return read_fleet(path).tables
    if (path / "served.json").is_file():
        return read_served(path).tables
    if (path / "study.yaml").is_file():
        return {name: read_table(path / f"{name}.parquet") for name in ("points", "rows")}
    return read_link_statistics(path)


def answer(found: Any) -> dict[str, Any]:
    from etude.base.excerpts import rows_of

    rows = rows_of(found[0])
    if found[1]:
        many = len(found[0])
        rows |= {"rows_in_all": None, "note": f"the first {many} rows; there are more: aggregate, or use LIMIT, OFFSET"}
    return rows
