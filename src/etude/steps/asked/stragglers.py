"""What is asked of stragglers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure, switch
from etude.base.talk import say
from etude.steps.asked.runs import Analysed, Analysis, RunSource

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Stragglers(Analysis):
    """Stragglers: slow ranks and links, late hosts, ranks that are missing or disagree; with confidence

    etude stragglers run/
    etude stragglers run/ --least 0.1 --json
    etude stragglers run/ --clocks
    etude stragglers nccl_dumps/
    """

    least: float = figure("number", "slowdown from which a rank is reported", 0.04, zero=True)
    ranks_per_node: int = figure("count", "ranks per node", 8)
    clocks: bool = switch("show how the ranks' clocks differ instead")


@dataclass(frozen=True, slots=True)
class StragglerInputs:
    source: RunSource
    least: float
    ranks_per_node: int

    def run(self) -> dict[str, "pa.Table"]:
        from etude.analyse.stragglers import missing_only, stragglers
        from etude.base.errors import DeadlockError

        source = self.source
        try:
            job, run = source.find()
        except DeadlockError as problem:
            say(f"note: its simulation does not complete: {problem.problem}")
            job, run = source.job(), None
        if run is None:
            say("note: without times only missing participants can be found; --system dgx-h100 simulates")
            found = missing_only(job)
        else:
            found = stragglers(run, least=self.least, ranks_per_node=self.ranks_per_node)
        say(f"{len(found)} findings" if len(found) else "no straggler found")
        return {"findings": found}


def inputs(asked: Stragglers) -> Analysed | StragglerInputs:
    from etude.analyse.clocks import alignment

    source = RunSource.of(asked)
    if asked.clocks:
        return Analysed(source, alignment)
    return StragglerInputs(source, asked.least, asked.ranks_per_node)


def record(found: Any) -> Any:
    return {"findings": found["findings"].to_pylist()} if isinstance(found, dict) else found


def table(found: Any) -> Any:
    return found["findings"] if isinstance(found, dict) else found


def reads(found: Any) -> Any:
    """The table; nothing where there is no finding."""
    return table(found) if not isinstance(found, dict) or len(found["findings"]) else None
