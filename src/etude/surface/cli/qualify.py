from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import AnswerNo, UsageError
from etude.base.figures import figure, part
from etude.base.outputs import Place, Printed, Written
from etude.base.parameters import is_given, spelled
from etude.base.talk import progress, say
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.run.qualify import Figure, Node, Qualified

SIZES = (4096, 64 << 20)
"""Of the all-reduces between processes: one that latency bounds, one that bandwidth does."""
OF_MEASURING = ("out", "name", "processes", "job", "repetitions", "seconds")
"""Parameters of a measurement."""
MEASURED, COMPARED = "Measurement", "Comparison"


@dataclass(frozen=True, kw_only=True)
class Qualify(Written):
    """Compare this node with others, or with itself earlier: find slow GPUs, links, hosts; exit code 1 if any

    etude qualify -o node9.json
    etude qualify -o today.json --baseline node7.json --against node1.json --against node2.json
    etude qualify --measured node7.json --against node1.json --against node2.json
    """

    against: tuple[str, ...] = figure(
        "several", "figures of other nodes; once for each file", (), like="node3.json", metavar="PATH", panel=COMPARED
    )
    baseline: str | None = figure(
        "path", "figures of this node, measured earlier", None, like="node3.json", panel=COMPARED
    )
    least: float = figure("number", "slowdown from which a part is reported", 0.05, zero=True, panel=COMPARED)
    measured: str | None = figure(
        "path", "take the figures of this file instead of measuring", None, like="node3.json", panel=MEASURED
    )
    name: str = figure("text", "name of the node; by default that of the file", "", like="node5")
    processes: int | None = figure(
        "count", "processes of the collectives; 0: none. By default one per GPU, or 2", None, zero=True, panel=MEASURED
    )
    job: str | None = figure("path", "also replay the communication of this job", None, panel=MEASURED)
    repetitions: int = figure("count", "repetitions of each micro job", 9, least=3, panel=MEASURED)
    seconds: float = figure("number", "minimum duration of a repetition", 0.1, panel=MEASURED)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class Measuring:
    """How this node is measured."""

    name: str
    processes: int | None
    job: Path | None
    repetitions: int
    seconds: float
    place: Place | None


@dataclass(frozen=True, slots=True)
class QualifyInputs:
    node: "Node | Measuring"
    others: "tuple[Node, ...]"
    past: "Node | None"
    least: float


def inputs(asked: Qualify) -> QualifyInputs:
    from etude.run.qualify import read_node

    others = tuple(read_node(Path(path)) for path in asked.against)
    past = read_node(Path(asked.baseline)) if asked.baseline is not None else None
    if asked.measured is not None:
        for name in OF_MEASURING:
            if is_given(asked, name):
                said = f"{spelled(asked, 'measured')} reads existing figures, and {spelled(asked, name)} is not read"
                raise UsageError(said, hint="leave one of them out")
        return QualifyInputs(read_node(Path(asked.measured)), others, past, asked.least)
    place = Place.of(asked)
    name = asked.name or (place.path.stem if place is not None else "here")
    job = None if asked.job is None else Path(asked.job)
    how = Measuring(name, asked.processes, job, asked.repetitions, asked.seconds, place)
    return QualifyInputs(how, others, past, asked.least)


def run(given: QualifyInputs) -> "tuple[Node, Qualified, QualifyInputs]":
    from etude.run.qualify import qualify

    node = _measure(given.node) if isinstance(given.node, Measuring) else given.node
    found = qualify(node, list(given.others), given.past, least=given.least)
    return node, found, given


def _figures(node: "Node") -> list[dict[str, Any]]:
    return [{"figure": f.name, "part": f.part, "device": f.device, "value": f.value, "unit": f.unit,
             "spread": round(f.spread, 4)} for f in node.figures]  # fmt: skip


def record(result: "tuple[Node, Qualified, QualifyInputs]") -> dict[str, Any]:
    node, found, _ = result
    return {"node": node.name, "figures": _figures(node), "ranking": found.ranking, "findings": found.findings,
            "uncertain": found.uncertain}  # fmt: skip


def show(result: "tuple[Node, Qualified, QualifyInputs]") -> None:
    node, found, given = result
    emit(found.ranking if given.others else _figures(node))
    if found.findings:
        emit(found.findings)


def code(result: "tuple[Node, Qualified, QualifyInputs]") -> int:
    """Says what was found. Raises AnswerNo if a part of this node is slow."""
    node, found, given = result
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
    if given.others or given.past is not None:
        say(f"no slow part found in {found.compared} figures of this node")
    return 0


def _measure(how: Measuring) -> "Node":
    from etude.run.qualify import MeasureOptions, Node, measure_node

    with progress("measuring") as advance:
        figures, about = measure_node(MeasureOptions(repetitions=how.repetitions, seconds=how.seconds))
        advance(1)
        gpus = len(about["devices"]) if about["devices"] != ["cpu"] else 0
        count = how.processes if how.processes is not None else gpus if gpus > 1 else 0 if gpus else 2
        if count > 1:
            figures += _links(count, "nccl" if gpus >= count else "gloo", how.repetitions)
        if how.job is not None:
            figures.append(_replayed(how.job, how.repetitions))
    node = Node(how.name, tuple(figures), about | {"processes": count})
    if how.place is not None:
        _write(node, how.place)
    return node


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
    from etude.steps.asked.jobs import open_job

    job = open_job(path)
    programs = plan_communication(job)
    rehearse(programs)
    results = play(programs, PlayOptions(iterations=3 * repetitions, warmup=2, verify=False))
    walls: list[Any] = [max(r.wall_ns[i] for r in results) for i in range(3 * repetitions)]
    return _figure(f"communication of {job.name}", "replay", "steps/s", [1e9 / float(wall) for wall in walls])


def _write(node: "Node", place: Place) -> None:
    from etude.base.files import writing
    from etude.run.qualify import write_node

    with writing(place.path, force=place.force) as path:
        write_node(node, path)
    say(f"wrote {place.path}")


VERBS = (Verb(name="qualify", asks=Qualify, inputs=inputs, run=run, record=record, show=show, code=code),)
