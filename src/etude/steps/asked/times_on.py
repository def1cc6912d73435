"""`--times-on SYSTEM`: times of compute written down while names and shapes still say what it is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.base.figures import figure

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.model.job import Job


@dataclass(frozen=True, kw_only=True)
class TimesOnInput:
    """The parameter of what may fill in times."""

    times_on: str = figure(
        "noun",
        "system whose times are used for compute without a time: a name, or a YAML file",
        "",
        of=str,
        panel="Machine",
        like="dgx-h100",
    )


def times_system(asked: TimesOnInput) -> "System | None":
    from etude.machine import open_system

    return open_system(asked.times_on) if asked.times_on else None


def with_times(job: "Job", system: "System | None") -> "Job":
    """The job with the times that its compute takes on a system, where none were recorded."""
    if system is None:
        return job
    from etude.make.transform import with_durations

    return with_durations(job, system.device)
