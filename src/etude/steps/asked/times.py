"""Whose times a recording gets: the parameters of everything that reads one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure
from etude.base.parameters import is_given

if TYPE_CHECKING:
    from etude.capture.ingest import runs

PANEL = "Times of a recording"


@dataclass(frozen=True, kw_only=True)
class TimesInput:
    """Parameters of what reads a recording."""

    as_recorded: bool = figure(
        "switch", "times under the profiler, not those of the program", False, panel=PANEL, rare=True
    )
    anchor: bool = figure(
        "flag", "let a step take as long as those that were timed without a profiler", True, panel=PANEL, rare=True
    )
    unprofiled: int | None = figure(
        "time", "time of a step without a profiler, as `41ms`; by default as the manifest has it", None, panel=PANEL,
        like="41ms", rare=True,
    )  # fmt: skip


def times_wanted(asked: Any) -> "runs.Times | None":
    """Whose times were asked for; None: those of the program, as far as they are known."""
    told = any(is_given(asked, name) for name in ("as_recorded", "anchor", "unprofiled"))
    if not told and not is_given(asked, "as"):
        return None
    from etude.capture.ingest import runs

    if not told:  # other tools estimate nothing
        return runs.Times(estimate=False)
    if asked.as_recorded:
        return runs.Times(as_recorded=True)
    if asked.unprofiled:
        return runs.Times(unprofiled_ns=asked.unprofiled)
    return runs.Times(anchor=asked.anchor)
