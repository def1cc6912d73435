"""Problems of a job: what `etude check` asks for."""

from dataclasses import dataclass
from typing import Any

from etude.base.figures import part, switch
from etude.base.outputs import Printed
from etude.base.talk import say
from etude.base.units import counted
from etude.steps.asked.jobs import JobInput, JobSource


@dataclass(frozen=True, kw_only=True)
class Check(JobInput):
    """All errors and warnings found in a job; exit code 1 if there are errors

    etude check job/
    """

    complete: bool = switch("missing ranks are an error")
    output: Printed = part(Printed)


def inputs(asked: Check) -> tuple[JobSource, bool]:
    return JobSource.of(asked), asked.complete


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


def reads(found: dict[str, Any]) -> list[dict[str, Any]] | None:
    return [{k: v for k, v in row.items() if k != "rank"} for row in found["findings"]] or None


def code(found: dict[str, Any]) -> int:
    return 1 if found["errors"] else 0
