from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import MaxBytes, Workers, open_job
from etude.surface.cli.output import AsJson, emit


@app.command(rich_help_panel=LOOK)
def diff(
    a: Annotated[Path, typer.Argument(help="A job.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="Another, in any format.", show_default=False)],
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    json: AsJson = False,
) -> int:
    """The first rank, node and column in which two jobs differ, or `same`; exit code 1 if they differ"""
    from dataclasses import asdict

    from etude.model.diff import diff as diff_jobs

    found = diff_jobs(open_job(a, None, workers, max_bytes), open_job(b, None, workers, max_bytes))
    if json:
        emit({"same": found is None, "difference": asdict(found) if found else None}, json=True)
    elif found is None:
        print("same")
    else:
        emit(asdict(found))
    return 1 if found else 0
