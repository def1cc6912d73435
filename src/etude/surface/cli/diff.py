from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.base.figures import argument, part
from etude.base.outputs import Printed
from etude.steps.asked.jobs import JobInput, JobSource
from etude.surface.cli.output import emit
from etude.surface.verb import Verb


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


def show(found: dict[str, Any]) -> None:
    if found["same"]:
        print("same")
    else:
        emit(found["difference"])


VERBS = (
    Verb(
        name="diff", asks=Diff, inputs=inputs, run=run, show=show, code=lambda found: int(not found["same"]), tool=True
    ),
)
