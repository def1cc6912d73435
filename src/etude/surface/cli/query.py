from typing import Annotated

import typer

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit


@app.command(rich_help_panel=LOOK)
def query(
    path: JobPath,
    sql: Annotated[
        str,
        typer.Argument(
            help="Tables: nodes, deps, attrs, groups, ranks; requests, passes, replicas; sessions, tasks; links, "
            "visits, operations; events, states, jobs.",
            show_default=False,
        ),
    ],
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """SQL over a job (nodes, deps, attrs, groups, ranks) or a served stream (requests, passes; sessions, tasks)

    etude query job/ "select name, sum(duration_ns) from nodes group by 1"
    etude query job/ "describe nodes"         the columns of a table

    A Parquet job is not loaded for it.
    """
    from etude.base.units import parse_bytes
    from etude.capture.opening import is_columns, refuse_for_columns
    from etude.store import sql as store_sql
    from etude.world.fleet import is_fleet

    if is_fleet(path):
        from etude.world.fleet import read_fleet

        emit(store_sql.query_tables(read_fleet(path).tables, sql), json=json, csv=csv, md=md)
        return
    if (path / "served.json").is_file():
        from etude.world.serve.stored import read_served

        emit(store_sql.query_tables(read_served(path).tables, sql), json=json, csv=csv, md=md)
        return
    if (path / "visits.parquet").is_file():
        import pyarrow.parquet as pq

        emit(store_sql.query_tables({p.stem: pq.read_table(p) for p in path.glob("*.parquet")}, sql),
             json=json, csv=csv, md=md)  # fmt: skip
        return
    if is_columns(path):
        refuse_for_columns(path, groups, parse_bytes(max_bytes) if max_bytes else None)
    source = path if is_columns(path) else open_job(path, groups, workers, max_bytes)
    emit(store_sql.query(source, sql), json=json, csv=csv, md=md)
