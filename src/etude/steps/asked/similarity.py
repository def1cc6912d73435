"""What is asked of the similarity of two jobs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, part, switch, text
from etude.base.outputs import Tabled
from etude.base.talk import say
from etude.steps.asked.jobs import JOB_HELP, open_job
from etude.steps.asked.runs import RunSource, simulated
from etude.steps.asked.times import TimesInput, TimesWanted, times_wanted

if TYPE_CHECKING:
    from etude.model.run import Run

DEFAULT = "dgx-h100"
"""Where kernels of jobs without times are taken to run."""


@dataclass(frozen=True, kw_only=True)
class Similarity(TimesInput):
    """How similar two jobs are: distances of distributions, sums, simulated times; or kernel by kernel

    Figures are those of a mean rank in a mean step, so jobs of other size compare. A distance is 0 where both are the
    same and 1 at most; an error is the second over the first, less one; points are parts of a whole.

    etude similarity run/ job/ --system dgx-h100
    etude similarity run/ proxy/ --kernels
    etude similarity h100.json.gz proxy.json.gz --kernels --ran-on h100

    With --kernels, a kernel is a point: its part of the device's peak FLOP/s and of its memory bandwidth, its
    intensity, its share of time; no name counts. `nearest` is the nearest kernel of B, `assigned` its partner where
    each kernel is taken once and the sum of distances is least. Jobs without times are taken as simulated on dgx-h100.
    """

    a: str = argument("path", JOB_HELP, like="other/")
    b: str = argument("path", JOB_HELP, like="other/")
    kernels: bool = switch("show one row per kernel of A: the most similar kernel of B, and its distance")
    system: str = text(
        "simulate both there: a name of `etude systems`, or a file", names=("-s",), metavar="NAME", like="dgx-a100"
    )
    ran_on: str = text(
        "the hardware of the run: a device (`h100`) or a system (`dgx-h100`); by default as recorded in it",
        needs="kernels",
        names=("--device",),
        metavar="NAME",
        like="a100",
    )
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class SimilarityInputs:
    a: Path
    b: Path
    system: str
    kernels: bool
    ran_on: str
    times: TimesWanted = None


def similarity_inputs(asked: Similarity) -> SimilarityInputs:
    paths, wanted = (Path(asked.a), Path(asked.b)), times_wanted(asked)
    return SimilarityInputs(*paths, asked.system, asked.kernels, asked.ran_on, wanted)


def similarity_of(given: SimilarityInputs) -> Any:
    from etude.machine import open_system
    from etude.steps.similarity import likeness

    if given.kernels:
        return _kernels(given)
    a, b = (open_job(path, times=given.times) for path in (given.a, given.b))
    return likeness(a, b, open_system(given.system) if given.system else None)


def _kernels(given: SimilarityInputs) -> Any:
    from etude.analyse.devices import device_of
    from etude.analyse.kernel_match import match_kernels

    runs = _runs(given)
    on = [run.system.device if run.system and not given.ran_on else device_of(run.job, given.ran_on) for run in runs]
    if on[0] != on[1]:
        say("note: the runs ran on different devices; rates are relative to the device of the first")
    if on[0] is None:
        say("note: the device is not known (--ran-on); rates are relative to the highest in the two runs")
    found = match_kernels(runs[0], runs[1], on[0])
    apart = found["assigned_distance"].to_pylist()
    say(f"distance between the two: {sum(apart) / len(apart):.4f}, the mean over {len(apart)} kernels")
    return found


def _runs(given: SimilarityInputs) -> "list[Run]":
    """Both runs as recorded; if one has no times, both simulated on the default system."""
    found = [RunSource(path, given.system, times=given.times).find() for path in (given.a, given.b)]
    if any(run is None for _, run in found):
        say(f"note: no times were recorded; both are simulated on {DEFAULT}")
        return [simulated(job, DEFAULT) for job, _ in found]
    return [run for _, run in found if run is not None]


def figure_shown(row: dict[str, Any]) -> dict[str, Any]:
    if row["measure"] == "error":
        return row | {"a": f"{row['a']:,}", "b": f"{row['b']:,}", "difference": f"{row['difference']:+.2%}"}
    if row["measure"] == "points":
        return row | {"a": f"{row['a']:.1%}", "b": f"{row['b']:.1%}", "difference": f"{row['difference']:+.1%}"}
    return row | {"difference": f"{row['difference']:.3f}"}
