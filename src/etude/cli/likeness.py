from typing import Annotated, Any

import typer

from etude.cli.app import LOOK, app
from etude.cli.inputs import JobPath, open_job
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit


@app.command(rich_help_panel=LOOK)
def likeness(
    a: JobPath,
    b: JobPath,
    system: Annotated[str, typer.Option("--system", "-s", help="Simulate both on it: a name, or a YAML file.")] = "",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """How much one job behaves like another: distances of distributions, sums, simulated times

    Figures are those of a mean rank in a mean step, so jobs of other size compare. A distance is 0 where both are the
    same and 1 at most; an error is the second over the first, less one; points are parts of a whole.

    etude likeness run/ job/ --system dgx-h100
    """
    from etude.machine import open_system
    from etude.predict import likeness as compare

    found = compare(open_job(a), open_job(b), open_system(system) if system else None)
    emit(found if json or csv else [_read(row) for row in found], json=json, csv=csv, md=md)


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """A row as people read it."""
    if row["measure"] == "error":
        return row | {"a": f"{row['a']:,}", "b": f"{row['b']:,}", "difference": f"{row['difference']:+.2%}"}
    if row["measure"] == "points":
        return row | {"a": f"{row['a']:.1%}", "b": f"{row['b']:.1%}", "difference": f"{row['difference']:+.1%}"}
    return row | {"difference": f"{row['difference']:.3f}"}
