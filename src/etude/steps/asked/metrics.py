"""What is asked of the metrics that benchmarks publish."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etude.base.figures import switch
from etude.base.talk import say
from etude.steps.asked.runs import Analysis, RanOnInput, RunSource, grown, record_of, told_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Metrics(Analysis, RanOnInput):
    """Metrics that benchmarks publish: step time, MFU, communication, overlap, bandwidth, balance, TTFT and TPOT

    etude metrics run/
    etude metrics run/ --ran-on dgx-h100 --json
    etude metrics job/ --system dgx-h100
    etude metrics run/ --traffic --csv
    """

    traffic: bool = switch("show the bytes sent between each pair of ranks instead")


@dataclass(frozen=True, slots=True)
class MetricsInputs:
    source: RunSource
    traffic: bool
    ran_on: str = ""
    exact: bool = False
    """Numbers are printed as they are, not with units for a reader."""


def inputs(asked: Metrics) -> MetricsInputs:
    if asked.traffic:
        return MetricsInputs(RunSource.of(asked, recorded=True), True)
    return MetricsInputs(RunSource.of(asked), False, asked.ran_on, asked.output.csv)


def run(given: MetricsInputs) -> "tuple[pa.Table, bool, dict[str, Any]]":
    """The table, whether it is printed as it is, and figures of the program."""
    if given.traffic:
        from etude.analyse.traffic import traffic

        return traffic(given.source.job()), True, {}
    table, about = _metrics(given)
    return table, given.exact, about


def record(found: "tuple[pa.Table, bool, dict[str, Any]]") -> Any:
    return record_of((found[0], found[2]))


def _metrics(given: MetricsInputs) -> "tuple[pa.Table, dict[str, Any]]":
    from etude.analyse import metrics as analyse
    from etude.analyse.devices import device_of, recognised
    from etude.analyse.engine import of_engine
    from etude.analyse.program_figures import program_figures
    from etude.machine import device_names, open_system

    run, system, ran_on = given.source.open(), given.source.system, given.ran_on
    job, card = run.job, run.card
    if system and job.timing is not None:  # before there was --ran-on, --system meant that here
        say(f"note: recorded times are replaced by a simulation on {system}; what the run ran on is --ran-on")
    machine = "" if ran_on in device_names() else ran_on
    machine = machine or (card.hardware.system if card is not None else "")
    if machine and not system:
        run = replace(run, system=grown(open_system(machine), machine, job.world_size))
    device = device_of(job, ran_on, system) or (recognised(card.hardware.device) if card is not None else None)
    if any(of_engine(trace) for trace in job.traces):
        say("note: an engine's trace does not say when requests arrived, so TTFT is not shown: see `etude requests`")
    if card is None:
        say(f"note: this job has no card, so its model is not known; `etude card {given.source.path} --write`")
    about = program_figures(run)
    for line in told_of(job, about):
        say(f"note: {line}")
    return analyse.metrics(run, device=device), about


def table(found: Any) -> Any:
    from etude.analyse.metrics import shown

    return found[0] if found[1] else shown(found[0])


reads = table
