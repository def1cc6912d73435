from dataclasses import dataclass
from typing import Any

from etude.base.figures import figure, part
from etude.base.outputs import Printed
from etude.base.talk import say
from etude.base.units import counted
from etude.steps.asked.jobs import JobInput, JobSource
from etude.surface.cli.output import emit
from etude.surface.verb import Verb


@dataclass(frozen=True, kw_only=True)
class Check(JobInput):
    """All errors and warnings found in a job; exit code 1 if there are errors

    etude check job/
    """

    complete: bool = figure("switch", "missing ranks are an error", False)
    output: Printed = part(Printed)


def run(given: tuple[JobSource, bool]) -> dict[str, Any]:
    from etude.capture import opening

    source, complete = given
    with source.options() as options:
        findings = opening.check(source.path, complete=complete, **options)
    rows = [
        {"severity": f.severity, "rank": f.rank, "ranks": f.ranks, "node": f.node, "what": f.what, "hint": f.hint}
        for f in findings
    ]
    errors = sum(f.severity == "error" for f in findings)
    say(f"{counted(errors, 'error')}, {counted(len(rows) - errors, 'warning')}" if rows else "no problems found")
    return {"findings": rows, "errors": errors, "warnings": len(rows) - errors}


def show(found: dict[str, Any]) -> None:
    if found["findings"]:
        emit([{k: v for k, v in row.items() if k != "rank"} for row in found["findings"]])


VERBS = (
    Verb(
        name="check", asks=Check, inputs=lambda asked: (JobSource.of(asked), asked.complete), run=run, show=show,
        code=lambda found: 1 if found["errors"] else 0, tool=True,
    ),
)  # fmt: skip
