"""The first difference of two jobs: what `etude diff` asks for."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.base.figures import argument, part
from etude.base.outputs import Printed
from etude.steps.asked.jobs import JobInput, JobSource


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The first rank, node and column in which two jobs differ, or `same`; exit code 1 if they differ

    etude diff job/ copy/
    """

    a: str = argument("path", "a job", like="job/")
    b: str = argument("path", "another, in any format", like="other/")
    reading: JobInput = part(JobInput, only=("workers", "max_bytes"))
    output: Printed = part(Printed)


def inputs(asked: Diff) -> tuple[JobSource, JobSource]:
    workers, limit = asked.reading.workers, asked.reading.max_bytes
    first, second = (JobSource(Path(path), workers=workers, max_bytes=limit) for path in (asked.a, asked.b))
    return first, second


def run(jobs: tuple[JobSource, JobSource]) -> dict[str, Any]:
    from etude.model.diff import diff

    found = diff(jobs[0].open(), jobs[1].open())
    return {"same": found is None, "difference": asdict(found) if found else None}


def reads(found: dict[str, Any]) -> dict[str, Any] | str:
    return "same" if found["same"] else found["difference"]


def code(found: dict[str, Any]) -> int:
    return int(not found["same"])
