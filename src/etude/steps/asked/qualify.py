"""What is asked of the speed of a node, compared with others or with itself earlier."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import AnswerNo, UsageError
from etude.base.figures import figure, part, text
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.parameters import is_given, spelled
from etude.base.talk import say

if TYPE_CHECKING:
    from etude.run.qualify import Qualified, QualifiedNode
    from etude.steps.node import Measuring

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
    name: str = text("name of the node; by default that of the file", like="node5")
    processes: int | None = figure(
        "count", "processes of the collectives; 0: none. By default one per GPU, or 2", None, zero=True, panel=MEASURED
    )
    job: str | None = figure("path", "also replay the communication of this job", None, panel=MEASURED)
    repetitions: int = figure("count", "repetitions of each micro job", 9, least=3, panel=MEASURED)
    seconds: float = figure("number", "minimum duration of a repetition", 0.1, panel=MEASURED)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class QualifyInputs:
    node: "QualifiedNode | Measuring"
    others: "tuple[QualifiedNode, ...]"
    past: "QualifiedNode | None"
    least: float


def qualify_inputs(asked: Qualify) -> QualifyInputs:
    from etude.run.qualify import read_node
    from etude.steps.node import Measuring

    others = tuple(read_node(Path(path)) for path in asked.against)
    past = read_node(Path(asked.baseline)) if asked.baseline is not None else None
    if asked.measured is not None:
        for name in OF_MEASURING:
            if is_given(asked, name):
                said = f"{spelled(asked, 'measured')} reads existing figures, and {spelled(asked, name)} is not read"
                raise UsageError(said, hint="leave one of them out")
        return QualifyInputs(read_node(Path(asked.measured)), others, past, asked.least)
    place = OutputPlace.of(asked)
    name = asked.name or (place.path.stem if place is not None else "here")
    job = None if asked.job is None else Path(asked.job)
    how = Measuring(name, asked.processes, job, asked.repetitions, asked.seconds, place)
    return QualifyInputs(how, others, past, asked.least)


def qualified(given: QualifyInputs) -> "tuple[QualifiedNode, Qualified, QualifyInputs]":
    from etude.run.qualify import qualify
    from etude.steps.node import Measuring

    node = given.node.measured() if isinstance(given.node, Measuring) else given.node
    found = qualify(node, list(given.others), given.past, least=given.least)
    return node, found, given


def figures_of(node: "QualifiedNode") -> list[dict[str, Any]]:
    return [
        {
            "figure": f.name,
            "part": f.part,
            "device": f.device,
            "value": f.value,
            "unit": f.unit,
            "spread": round(f.spread, 4),
        }
        for f in node.figures
    ]


def qualify_record(result: "tuple[QualifiedNode, Qualified, QualifyInputs]") -> dict[str, Any]:
    node, found, _ = result
    return {
        "node": node.name,
        "figures": figures_of(node),
        "ranking": found.ranking,
        "findings": found.findings,
        "uncertain": found.uncertain,
    }


def qualify_code(result: "tuple[QualifiedNode, Qualified, QualifyInputs]") -> int:
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
