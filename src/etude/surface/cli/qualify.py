from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import AnswerNo, UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, progress, say

if TYPE_CHECKING:
    from etude.run.qualify import Figure, Node

NodeFile = Annotated[Path | None, typer.Option(show_default=False)]
SIZES = (4096, 64 << 20)
"""Of the all-reduces between processes: one that latency bounds, one that bandwidth does."""


@app.command(rich_help_panel=RUN)
def qualify(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the figures of this node here, as JSON.")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="Figures of other nodes; once for each file.")
    ] = None,
    baseline: Annotated[Path | None, typer.Option("--baseline", help="Figures of this node, measured earlier.")] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Take the figures of this file instead of measuring.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the node; by default that of the file.")] = "",
    processes: Annotated[
        int | None, typer.Option(min=0, help="Processes of the collectives; 0: none. By default one per GPU, or 2.")
    ] = None,
    job: Annotated[Path | None, typer.Option("--job", help="Also replay the communication of this job.")] = None,
    repetitions: Annotated[int, typer.Option(min=3, help="Repetitions of each micro job.")] = 9,
    seconds: Annotated[float, typer.Option(help="Minimum duration of a repetition.")] = 0.1,
    least: Annotated[float, typer.Option("--least", min=0, help="Slowdown from which a part is reported.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
    json: AsJson = False,
) -> None:
    """Compare this node with others, or with itself earlier: find slow GPUs, links, hosts; exit code 1 if any

    etude qualify -o node7.json
    etude qualify -o today.json --baseline node7.json --against node1.json --against node2.json
    etude qualify --measured node7.json --against node1.json --against node2.json
    """
    from etude.run.qualify import qualify as judge
    from etude.run.qualify import read_node

    others = [read_node(path) for path in against or []]
    past = read_node(baseline) if baseline is not None else None
    if measured is not None:
        if out is not None or job is not None:
            raise UsageError("--measured reads existing figures", hint="leave out --out and --job")
        node = read_node(measured)
    else:
        _check_out(out, force)
        node = _measure(name or (out.stem if out is not None else "here"), processes, job, repetitions, seconds)
        if out is not None:
            _write(node, out, force)
    found = judge(node, others, past, least=least)
    figures = [{"figure": f.name, "part": f.part, "device": f.device, "value": f.value, "unit": f.unit,
                "spread": round(f.spread, 4)} for f in node.figures]  # fmt: skip
    if json:
        emit({"node": node.name, "figures": figures, "ranking": found.ranking, "findings": found.findings,
              "uncertain": found.uncertain}, json=True)  # fmt: skip
    else:
        emit(found.ranking if others else figures)
        if found.findings:
            emit(found.findings)
    if found.uncertain:
        say(f"uncertain, slower by no more than the variation: {', '.join(found.uncertain)}")
    mine = [finding for finding in found.findings if finding["node"] == node.name]
    if mine:
        first = mine[0]
        what = f"{first['part']} {first['device']}".strip()
        more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
        than = f"than its {first['against']}"
        if first["against"] == "idle":
            than = f"than without the other work on its CPUs ({first['figures']})"
        raise AnswerNo(f"{first['node']}: {what} is {first['slow_down']:.1%} slower {than}{more}")
    if others or past is not None:
        say(f"no slow part found in {found.compared} figures of this node")


def _check_out(out: Path | None, force: bool) -> None:
    if out is not None and out.exists() and not force:
        raise UsageError("exists already", where=str(out), hint="give another name, or --force to replace it")


def _measure(name: str, processes: int | None, job: Path | None, repetitions: int, seconds: float) -> "Node":
    from etude.run.qualify import MeasureOptions, Node, measure_node

    with progress("measuring") as advance:
        figures, about = measure_node(MeasureOptions(repetitions=repetitions, seconds=seconds))
        advance(1)
        gpus = len(about["devices"]) if about["devices"] != ["cpu"] else 0
        count = processes if processes is not None else gpus if gpus > 1 else 0 if gpus else 2
        if count > 1:
            figures += _links(count, "nccl" if gpus >= count else "gloo", repetitions)
        if job is not None:
            figures.append(_replayed(job, repetitions))
    return Node(name, tuple(figures), about | {"processes": count})


def _figure(name: str, part: str, unit: str, rates: list[float]) -> "Figure":
    from statistics import median

    from etude.run.qualify import Figure

    value = median(rates)
    return Figure(name, part, unit, value, median(abs(rate - value) for rate in rates) / value)


def _links(processes: int, backend: str, repetitions: int) -> "list[Figure]":
    from etude.base.units import format_bytes
    from etude.run.replay.communication import PlayOptions, probe_links

    options = PlayOptions(backend=backend, iterations=3 * repetitions, warmup=3, verify=False)
    seconds = probe_links(processes, SIZES, options)
    found = []
    for size, times in zip(SIZES, seconds, strict=True):
        label = f"all_reduce {format_bytes(size)}, {processes} processes, {backend}"
        small = size == min(SIZES)
        # A small one waits for the host and the wire, a large one for the wire alone.
        rates = [1 / t if small else size / t for t in times]
        found.append(_figure(label, "link", "calls/s" if small else "B/s", rates))
    return found


def _replayed(path: Path, repetitions: int) -> "Figure":
    from etude.run.replay.communication import PlayOptions, plan_communication, play, rehearse
    from etude.surface.cli.inputs import open_job

    job = open_job(path)
    programs = plan_communication(job)
    rehearse(programs)
    results = play(programs, PlayOptions(iterations=3 * repetitions, warmup=2, verify=False))
    walls: list[Any] = [max(r.wall_ns[i] for r in results) for i in range(3 * repetitions)]
    return _figure(f"communication of {job.name}", "replay", "steps/s", [1e9 / float(wall) for wall in walls])


def _write(node: "Node", out: Path, force: bool) -> None:
    from etude.base.files import writing
    from etude.run.qualify import write_node

    with writing(out, force=force) as place:
        write_node(node, place)
    say(f"wrote {out}")
