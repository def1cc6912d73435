"""The content of a job: what `etude info` asks for."""

from dataclasses import dataclass
from typing import Any

from etude.base.figures import part
from etude.base.outputs import Printed
from etude.steps.asked.jobs import JobInput, JobSource


@dataclass(frozen=True, kw_only=True)
class Info(JobInput):
    """The content of a job: ranks, nodes by kind, bytes by collective, groups, span, producer

    etude info job/
    """

    output: Printed = part(Printed)


def run(source: JobSource) -> dict[str, Any]:
    from etude.capture import opening

    with source.options() as options:
        return opening.summary(source.path, **options)


def reads(found: dict[str, Any]) -> dict[str, Any]:
    from etude.model.summary import for_people

    return for_people(found)
