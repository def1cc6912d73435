from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import Workers
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.cli.runs import open_run, show


@app.command(rich_help_panel=ANALYSE)
def compare(
    a: Annotated[Path, typer.Argument(help="A job or a profiler's trace.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="Another.", show_default=False)],
    system: Annotated[str, typer.Option("--system", help="Take both as simulated on this system.")] = "",
    system_a: Annotated[str, typer.Option("--system-a", help="Take A as simulated on this system.")] = "",
    system_b: Annotated[str, typer.Option("--system-b", help="Take B as simulated on this system.")] = "",
    timing_a: Annotated[Path | None, typer.Option("--timing-a", help="Times of A's nodes from a file.")] = None,
    timing_b: Annotated[Path | None, typer.Option("--timing-b", help="Times of B's nodes from a file.")] = None,
    operators: Annotated[
        bool, typer.Option("--operators", help="By the operators that launched, which other devices have, too.")
    ] = False,
    top: Annotated[int, typer.Option("--top", min=0, help="So many causes; 0 is all.")] = 30,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Two runs side by side: where the difference comes from, operation by operation, and how alike they are

    etude compare before.json.gz after.json.gz
    etude compare run/ run/ --system-b dgx-h200
    etude compare small/ large/ --system dgx-h100
    etude compare h100.json.gz mi300.json.gz --operators
    """
    from etude.analyse import compare as analyse

    first = open_run(a, None, workers, system_a or ("" if timing_a else system), timing_a)
    second = open_run(b, None, workers, system_b or ("" if timing_b else system), timing_b)
    found = analyse.compare(first, second, operators=operators)
    alike, parts = analyse.similarity(found), analyse.breakdowns(first, second)
    causes = found.slice(0, top) if top else found
    if json:
        record = {"similarity": alike, "breakdown": parts.to_pylist(), "causes": causes.to_pylist()}
        emit(record, json=True)
        return
    if not csv and not md:
        show(parts)
        print()
    show(causes, csv=csv, md=md)
    say(", ".join(f"{name} {100 * value:.1f}%" for name, value in alike.items()) + " alike")
