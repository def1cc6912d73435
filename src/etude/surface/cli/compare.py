from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, progress, say
from etude.surface.cli.repetitions import opened_runs, sampled
from etude.surface.cli.runs import RanOn, show

if TYPE_CHECKING:
    from etude.analyse.gate import Limit
    from etude.model.run import Run

FEW = 10
"""Reasons that are shown above the operations; `--why` has all."""
Runs = list[tuple[Path, "Run"]]


@app.command(rich_help_panel=ANALYSE)
def compare(
    a: Annotated[
        Path,
        typer.Argument(
            help="A job, a profiler's trace, a folder of several runs, a served stream, or a fleet.", show_default=False
        ),
    ],
    b: Annotated[Path, typer.Argument(help="Another.", show_default=False)],
    fail_if: Annotated[
        list[str],
        typer.Option("--fail-if", help='Exit with 1 if B is worse, e.g. "step > +3%"; may be given several times.'),
    ] = [],  # noqa: B006 - Typer copies it
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate both there: a name of `etude systems`, or a file.")
    ] = "",
    system_a: Annotated[str, typer.Option("--system-a", help="Simulate A there.")] = "",
    system_b: Annotated[str, typer.Option("--system-b", help="Simulate B there.")] = "",
    timing_a: Annotated[Path | None, typer.Option("--timing-a", help="Times of A's nodes from a file.")] = None,
    timing_b: Annotated[Path | None, typer.Option("--timing-b", help="Times of B's nodes from a file.")] = None,
    ran_on: RanOn = "",
    operators: Annotated[
        bool, typer.Option("--operators", help="Match by launching operators, which recordings of other devices share.")
    ] = False,
    why: Annotated[bool, typer.Option("--why", help="Show only the ranked list of causes of the difference.")] = False,
    top: Annotated[int, typer.Option("--top", min=0, help="Number of rows to show; 0: all.")] = 30,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> int:
    """Two runs side by side: why one takes longer, operation by operation, and whether it became worse

    etude compare before.json.gz after.json.gz
    etude compare before.json.gz after.json.gz --why --md
    etude compare base/ new/ --fail-if "step > +3%" --fail-if "memory > 70 GB"
    etude compare run/ run/ --system-b dgx-h200
    etude compare small/ large/ --system dgx-h100
    etude compare h100.json.gz mi300.json.gz --operators
    etude compare served-a/ served-b/
    etude compare fleet-a/ fleet-b/

    Measures of --fail-if: step, compute, communication, exposed (communication that no compute hides), idle, host
    (time of the hosts), launches, memory (peak), mfu, kernel:NAME. A limit in % is a change; with a unit (ms, GB) it
    is a change if it has a sign, else a value of B. It fails if the change is beyond the limit and beyond the noise of
    steps, or of runs where A and B are folders of several.
    """
    from etude.analyse.gate import parse_limit
    from etude.world.fleet import is_fleet

    if (a / "served.json").is_file() or (b / "served.json").is_file() or is_fleet(a) or is_fleet(b):
        return _records(a, b, fail_if, json=json, csv=csv, md=md)
    limits = [parse_limit(text) for text in fail_if]
    first = opened_runs(a, workers, system_a or ("" if timing_a else system), timing_a)
    second = opened_runs(b, workers, system_b or ("" if timing_b else system), timing_b)
    checks = _checked(first, second, limits, ran_on) if limits else []
    failed = any(check["failed"] for check in checks)
    one, two = (_typical(runs) for runs in (first, second))
    if json:
        emit(_verdict(checks, failed) | _record(one, two, operators, top), json=True)
    elif limits and (csv or md):
        show(_rows(checks), csv=csv, md=md)
    else:
        if limits:
            show(_rows(checks))
            print()
        _show(one, two, operators=operators, why=why, top=top, csv=csv, md=md)
    for check in checks:
        if check["note"]:
            say(f"note: {check['check']}: {check['note']}")
    if limits:
        say("failed: " + ", ".join(c["check"] for c in checks if c["failed"]) if failed else "passed")
    return 1 if failed else 0


def _records(a: Path, b: Path, fail_if: list[str], *, json: bool, csv: bool, md: bool) -> int:
    """Prints the comparison of two served streams, or of two fleets. Returns the exit code."""
    from etude.base.errors import UsageError
    from etude.world.fleet import is_fleet, read_fleet
    from etude.world.serve.stored import compared, read_served

    if fail_if:
        raise UsageError("--fail-if is for runs of traces", hint="--json shows all measures")
    read = read_fleet if is_fleet(a) or is_fleet(b) else read_served
    measures, settings = compared(read(a).record, read(b).record)
    if json:
        emit({"measures": measures.to_pylist(), "settings": settings.to_pylist()}, json=True)
        return 0
    show(measures, csv=csv, md=md)
    for row in settings.to_pylist():
        say(f"{row['setting']}: {row['a']} and {row['b']}")
    return 0


def _checked(first: Runs, second: Runs, limits: "list[Limit]", ran_on: str) -> list[dict[str, Any]]:
    from etude.analyse.gate import gate
    from etude.tell.report import device_of

    memory = any(limit.measure == "memory" for limit in limits)
    sides = [
        [sampled(place, run, device_of(run.job, ran_on), memory=memory) for place, run in runs]
        for runs in (first, second)
    ]
    with progress("checking"):
        return gate(sides[0], sides[1], limits)


def _verdict(checks: list[dict[str, Any]], failed: bool) -> dict[str, Any]:
    """The result of several checks, with the figures of the first that failed, or of the first if none did."""
    if not checks:
        return {}
    named = next((check for check in checks if check["failed"]), checks[0])
    return {"failed": failed, "ratio": named["ratio"], "interval": named["interval"], "checks": checks}


def _rows(checks: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    from etude.analyse.gate import shown

    return pa.table({
        "check": [c["check"] for c in checks],
        "base": [shown(c["base"], c["unit"]) for c in checks],
        "new": [shown(c["new"], c["unit"]) for c in checks],
        "ratio": pa.array([c["ratio"] for c in checks], pa.float64()),
        "low": pa.array([c["interval"][0] if c["interval"] else None for c in checks], pa.float64()),
        "high": pa.array([c["interval"][1] if c["interval"] else None for c in checks], pa.float64()),
        "samples": ["{} and {} {}".format(*c["samples"], c["of"]) for c in checks],
        "verdict": ["failed" if c["failed"] else "passed" for c in checks],
    })  # fmt: skip


def _typical(runs: Runs) -> "Run":
    """The run with the median step time; of an even number, the lower one of the two."""
    if len(runs) == 1:
        return runs[0][1]
    from etude.analyse.gate_samples import Sampled, samples

    times = [float(one.mean()) for one in samples([Sampled(run) for _, run in runs], "step")]
    chosen = sorted(range(len(runs)), key=times.__getitem__)[(len(runs) - 1) // 2]
    say(f"note: {len(runs)} runs: the one with the median step is compared in detail: {runs[chosen][0]}")
    return runs[chosen][1]


def _record(first: "Run", second: "Run", operators: bool, top: int) -> dict[str, Any]:
    """All results of the comparison of two runs, as tables."""
    from etude.analyse import compare as analyse
    from etude.analyse.reasons import host_side, reasons

    with progress("comparing"):
        found = analyse.compare(first, second, operators=operators)
        ranked = reasons(first, second)
        return {
            "similarity": analyse.similarity(found),
            "breakdown": analyse.breakdowns(first, second).to_pylist(),
            "host": host_side(first, second).to_pylist(),
            "reasons": (ranked.slice(0, top) if top else ranked).to_pylist(),
            "causes": (found.slice(0, top) if top else found).to_pylist(),
        }


def _show(first: "Run", second: "Run", *, operators: bool, why: bool, top: int, csv: bool, md: bool) -> None:
    import pyarrow as pa

    from etude.analyse.compare import per_step

    record = _record(first, second, operators, top)
    tables = {name: pa.Table.from_pylist(record[name]) for name in ("breakdown", "host", "reasons", "causes")}
    if per_step(first, second) != (1.0, 1.0):
        say("note: the runs have different numbers of steps; times and counts are per step")
    if why:
        show(tables["reasons"], csv=csv, md=md)
        return
    if not csv and not md:
        for table in (tables["breakdown"], tables["host"], tables["reasons"].slice(0, FEW)):
            show(table)
            print()
    show(tables["causes"], csv=csv, md=md)
    alike = ", ".join(f"{name} {100 * value:.1f}%" for name, value in record["similarity"].items())
    say(f"similarity of the operations on the devices: {alike}")
