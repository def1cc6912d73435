from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import JobPath, open_job
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.surface.cli.runs import RanOn, find_run, show, simulated

if TYPE_CHECKING:
    from pathlib import Path

    from etude.model.run import Run

DEFAULT = "dgx-h100"
"""Where kernels of jobs without times are taken to run."""


@app.command(rich_help_panel=LOOK)
def similarity(
    a: JobPath,
    b: JobPath,
    kernels: Annotated[
        bool,
        typer.Option("--kernels", help="Show one row per kernel of A: the most similar kernel of B, and its distance."),
    ] = False,
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate both there: a name of `etude systems`, or a file.")
    ] = "",
    ran_on: RanOn = "",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """How similar two jobs are: distances of distributions, sums, simulated times; or kernel by kernel

    Figures are those of a mean rank in a mean step, so jobs of other size compare. A distance is 0 where both are the
    same and 1 at most; an error is the second over the first, less one; points are parts of a whole.

    etude similarity run/ job/ --system dgx-h100
    etude similarity run/ proxy/ --kernels
    etude similarity h100.json.gz proxy.json.gz --kernels --ran-on h100

    With --kernels, a kernel is a point: its part of the device's peak FLOP/s and of its memory bandwidth, its
    intensity, its share of time; no name counts. `nearest` is the nearest kernel of B, `assigned` its partner where
    each kernel is taken once and the sum of distances is least. Jobs without times are taken as simulated on dgx-h100.
    """
    from etude.machine import open_system
    from etude.steps import likeness as compare

    if kernels:
        _kernels(a, b, system, ran_on, json=json, csv=csv, md=md)
        return
    if ran_on:
        raise UsageError("--ran-on says what kernels ran on", hint="--kernels --ran-on h100")
    found = compare(open_job(a), open_job(b), open_system(system) if system else None)
    emit(found if json or csv else [_read(row) for row in found], json=json, csv=csv, md=md)


def _kernels(a: "Path", b: "Path", system: str, ran_on: str, *, json: bool, csv: bool, md: bool) -> None:
    from etude.analyse.kernel_match import match_kernels
    from etude.tell.report import device_of

    runs = _runs(a, b, system)
    on = [run.system.device if run.system and not ran_on else device_of(run.job, ran_on) for run in runs]
    if on[0] != on[1]:
        say("note: the runs ran on different devices; rates are relative to the device of the first")
    if on[0] is None:
        say("note: the device is not known (--ran-on); rates are relative to the highest in the two runs")
    found = match_kernels(runs[0], runs[1], on[0])
    show(found, json=json, csv=csv, md=md)
    apart = found["assigned_distance"].to_pylist()
    say(f"distance between the two: {sum(apart) / len(apart):.4f}, the mean over {len(apart)} kernels")


def _runs(a: "Path", b: "Path", system: str) -> "list[Run]":
    """Both runs as recorded; if one has no times, both simulated on the default system."""
    found = [find_run(path, None, 0, system) for path in (a, b)]
    if any(run is None for _, run in found):
        say(f"note: no times were recorded; both are simulated on {DEFAULT}")
        return [simulated(job, DEFAULT) for job, _ in found]
    return [run for _, run in found if run is not None]


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """A row with formatted values."""
    if row["measure"] == "error":
        return row | {"a": f"{row['a']:,}", "b": f"{row['b']:,}", "difference": f"{row['difference']:+.2%}"}
    if row["measure"] == "points":
        return row | {"a": f"{row['a']:.1%}", "b": f"{row['b']:.1%}", "difference": f"{row['difference']:+.1%}"}
    return row | {"difference": f"{row['difference']:.3f}"}
