"""One value of a run: what `etude evaluate` asks for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.figures import argument, part
from etude.base.outputs import Printed
from etude.steps.asked.runs import RanOnInput, RunInput, RunSource


@dataclass(frozen=True, kw_only=True)
class Evaluate(RunInput, RanOnInput):
    """One value of a run, from its tables: what a page says with a number, and any other

    etude evaluate run/ "sum(breakdown.exposed_comm_ns) / sum(breakdown.span_ns)"
    etude evaluate run/ "median(steps[steps.rank == 3].span_ns)"
    etude evaluate run/ "kernels[0].name"
    etude evaluate run/ 'gain("host", part=0.5)'       ns by which a host twice as fast shortens the run
    etude evaluate served/ "record[0].ttft_s_p99"      of a folder that `etude serve -o` wrote

    Each number on a page that `etude report` writes has its expression, in `data-query`.
    """

    expression: str = argument("text", "an expression over tables", like="count(kernels)", plain=True)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class EvaluateInputs:
    source: RunSource
    expression: str
    ran_on: str


@dataclass(frozen=True, slots=True)
class OutcomeValue:
    folder: Path
    expression: str


def inputs(asked: Evaluate) -> EvaluateInputs | OutcomeValue:
    from etude.tell.report.asked.pages import is_folder

    if is_folder([Path(asked.path)]):
        return OutcomeValue(Path(asked.path), asked.expression)
    return EvaluateInputs(RunSource.of(asked), asked.expression, asked.ran_on)


def run(given: EvaluateInputs | OutcomeValue) -> dict[str, Any]:
    """The expression and its value."""
    from etude.tell.report.asked.pages import outcome_subject, subject_of

    if isinstance(given, OutcomeValue):
        return {"expression": given.expression, "value": outcome_subject(given.folder).ask(given.expression)}
    subject = subject_of(given.source.open(), ran_on=given.ran_on, system=given.source.system)
    return {"expression": given.expression, "value": subject.ask(given.expression)}
