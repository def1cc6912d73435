from typing import Annotated

import typer

from etude.base.units import counted
from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, read_options
from etude.surface.cli.output import AsJson, emit, say


@app.command(rich_help_panel=LOOK)
def check(
    path: JobPath,
    complete: Annotated[bool, typer.Option("--complete", help="Missing ranks are an error.")] = False,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    json: AsJson = False,
) -> int:
    """All errors and warnings found in a job; exit code 1 if there are errors"""
    from etude.capture import opening

    with read_options(path, groups, workers, max_bytes) as options:
        findings = opening.check(path, complete=complete, **options)
    rows = [
        {"severity": f.severity, "rank": f.rank, "ranks": f.ranks, "node": f.node, "what": f.what, "hint": f.hint}
        for f in findings
    ]
    errors = sum(f.severity == "error" for f in findings)
    if json:
        emit({"findings": rows, "errors": errors, "warnings": len(rows) - errors}, json=True)
    elif rows:
        emit([{k: v for k, v in row.items() if k != "rank"} for row in rows])
    say(f"{counted(errors, 'error')}, {counted(len(rows) - errors, 'warning')}" if rows else "no problems found")
    return 1 if errors else 0
