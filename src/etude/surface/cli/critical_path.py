from typing import TYPE_CHECKING, Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.surface.cli.runs import OnSystem, TimesFile, open_run, show

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run

DEFAULT = 10
LOOSE = 0.02
"""Share of the device's time without launches from which the command says so."""


@app.command(name="critical-path", rich_help_panel=ANALYSE)
def critical_path(
    path: JobPath,
    each: Annotated[bool, typer.Option("--each", help="List every piece of the path, in order.")] = False,
    buys: Annotated[
        int | None,
        typer.Option(
            "--buys",
            min=0,
            help="Number of the longest operations for which the gain of making them faster is computed; by default "
            "10, none with --json.",
            show_default=False,
        ),
    ] = None,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """The chain of work that set the length of the run, over hosts, kernels, ranks and collectives

    etude critical-path run/
    etude critical-path trace.json.gz --json
    etude critical-path run/ --buys 30

    buys_50_ns: how much shorter the run is if all nodes of that name take 50% less time, in the same order
    """
    from etude.analyse import critical_path as analyse
    from etude.analyse.launches import untied
    from etude.base.units import format_time

    run = open_run(path, groups, workers, system, timing)
    found = analyse.critical_path(run)
    length, kinds = analyse.length_ns(found), analyse.by_kind(found)
    if json:
        record = {"length_ns": length, "by_kind": kinds, "path": found}
        if buys is not None:
            record["what_if"] = _with_buys(run, analyse.by_name(found), buys).slice(0, buys)
        emit(record, json=True)
        return
    names = analyse.by_name(found)
    if not each:
        names = _with_buys(run, names, DEFAULT if buys is None else buys)
    show(found if each else names, csv=csv, md=md)
    parts = ", ".join(f"{kind} {100 * ns / max(length, 1):.1f}%" for kind, ns in kinds.items())
    say(f"{format_time(length)} over {len(found):,} pieces: {parts}")
    if (loose := untied(run)) >= LOOSE:
        share = f"{100 * loose:.0f}% of the device's time"
        say(f"note: no launch was recorded for {share}, so host and device are re-timed separately")


def _with_buys(run: "Run", names: "pa.Table", count: int) -> "pa.Table":
    """Adds columns with the gain from making an operation faster to the table, for the first `count` rows; None in the
    others."""
    import pyarrow as pa

    from etude.analyse.what_if import FASTER, MOST_NODES, what_if

    if run.job.nodes > MOST_NODES:
        say(f"note: above {MOST_NODES:,} nodes, the gain of making operations faster is not computed")
        count = 0
    chosen = names.slice(0, count).select(["kind", "name"]).to_pylist()
    bought = what_if(run, [(row["kind"], row["name"]) for row in chosen]) if count else None
    for part in FASTER:
        column = f"buys_{100 * part:.0f}_ns"
        values = bought[column].to_pylist() if bought is not None else []
        values += [None] * (len(names) - len(values))
        names = names.append_column(column, pa.array(values, pa.int64()))
    return names
