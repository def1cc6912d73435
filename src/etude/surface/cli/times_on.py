"""`--times-on SYSTEM`: times of compute written down while names and shapes still say what it is."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from etude.model.job import Job

TimesOn = Annotated[
    str,
    typer.Option("--times-on", help="System whose times are used for compute without a time: a name, or a YAML file."),
]


def with_times(job: "Job", system: str) -> "Job":
    """The job with the times that its compute takes on a system, where none were recorded."""
    if not system:
        return job
    from etude.machine import open_system
    from etude.make.transform import with_durations

    return with_durations(job, open_system(system).device)
