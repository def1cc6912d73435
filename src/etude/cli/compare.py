from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import Workers
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit, progress, say
from etude.cli.runs import open_run, show

FEW = 10
"""Reasons that are shown above the operations; `--why` has all."""


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
    why: Annotated[bool, typer.Option("--why", help="Only the ranked list of what makes the difference.")] = False,
    top: Annotated[int, typer.Option("--top", min=0, help="So many rows; 0 is all.")] = 30,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Two runs side by side: why one takes longer, operation by operation, and how alike they are

    etude compare before.json.gz after.json.gz
    etude compare before.json.gz after.json.gz --why --md
    etude compare run/ run/ --system-b dgx-h200
    etude compare small/ large/ --system dgx-h100
    etude compare h100.json.gz mi300.json.gz --operators
    """
    from etude.analyse import compare as analyse
    from etude.analyse import reasons as analyse_why

    first = open_run(a, None, workers, system_a or ("" if timing_a else system), timing_a)
    second = open_run(b, None, workers, system_b or ("" if timing_b else system), timing_b)
    with progress("comparing"):
        found = analyse.compare(first, second, operators=operators)
        alike, parts = analyse.similarity(found), analyse.breakdowns(first, second)
        reasons, host = analyse_why.reasons(first, second), analyse_why.host_side(first, second)
    causes, ranked = (table.slice(0, top) if top else table for table in (found, reasons))
    if json:
        record = {"similarity": alike, "breakdown": parts.to_pylist(), "host": host.to_pylist()}
        emit(record | {"reasons": ranked.to_pylist(), "causes": causes.to_pylist()}, json=True)
        return
    if analyse.per_step(first, second) != (1.0, 1.0):
        say("note: the runs have different numbers of steps; times and counts are those of one step")
    if why:
        show(ranked, csv=csv, md=md)
        return
    if not csv and not md:
        for table in (parts, host, ranked.slice(0, FEW)):
            show(table)
            print()
    show(causes, csv=csv, md=md)
    say(", ".join(f"{name} {100 * value:.1f}%" for name, value in alike.items()) + " alike")
