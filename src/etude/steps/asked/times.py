"""Whose times a recording gets: the parameters of everything that reads one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from etude.base.figures import figure, switch
from etude.base.parameters import is_given
from etude.base.talk import say
from etude.base.units import format_time

if TYPE_CHECKING:
    from etude.capture.ingest import runs
    from etude.model.job import Job

PANEL = "Times of a recording"
TimesWanted: TypeAlias = "runs.WantedTimes | None"
"""Whose times are wanted; None: those of the program, as far as they are known, or as the job has them."""


@dataclass(frozen=True, kw_only=True)
class TimesInput:
    """Parameters of what reads a recording."""

    as_recorded: bool = switch("times under the profiler, not those of the program", panel=PANEL, rare=True)
    anchor: bool = figure(
        "flag", "let a step take as long as those that were timed without a profiler", True, panel=PANEL, rare=True
    )
    unprofiled: int | None = figure(
        "time",
        "time of a step without a profiler, as `41ms`; by default as the manifest has it",
        None,
        panel=PANEL,
        like="41ms",
        rare=True,
    )


def times_wanted(asked: Any) -> TimesWanted:
    """Whose times were asked for; None: those of the program, as far as they are known."""
    told = any(is_given(asked, name) for name in ("as_recorded", "anchor", "unprofiled"))
    if not told and not is_given(asked, "as"):
        return None
    from etude.capture.ingest import runs

    if not told:  # other tools estimate nothing
        return runs.WantedTimes(estimate=False)
    if asked.as_recorded:
        return runs.WantedTimes(as_recorded=True)
    if is_given(asked, "unprofiled"):
        return runs.WantedTimes(unprofiled_ns=asked.unprofiled or 0)
    return runs.WantedTimes(anchor=asked.anchor)


def recorded_times() -> TimesWanted:
    """The times under the profiler."""
    from etude.capture.ingest import runs

    return runs.WantedTimes(as_recorded=True)


def tell_times(job: "Job") -> None:
    """Says whose times a job has, if they are those of the program or an estimate of them."""
    told = job.provenance
    if told.get("timing") == "estimated":
        low, high = (format_time(int(told[f"timing_{side}_ns"])) for side in ("low", "high"))
        say(f"note: times of the program are estimated: a step takes {low} to {high}")
    elif told.get("timing") == "program":
        took = told.get("timing_recorded_step_ns")
        under = f"; a step took {format_time(int(took))} under the profiler" if took else ""
        say(f"note: times are those of the program{under}")
