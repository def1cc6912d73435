"""What is wrong in a run: what `etude diagnose` asks for."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure
from etude.base.talk import say
from etude.steps.asked.runs import Analysis, RunSource

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.analyse.findings import Verdict

SHOWN = 3
NOTHING = "no fault was found, and nothing that is worth doing"
NOT_SEEN = "no call was found that these ranks disagree in, or never complete; nothing else was looked for"


@dataclass(frozen=True, kw_only=True)
class Diagnose(Analysis):
    """What is wrong in a run, and what to do next: faults of ranks, hosts, links and the job, with their cost

    etude diagnose run/
    etude diagnose run/ --json
    etude diagnose run/ --top 10 --least 0.05
    """

    least: float = figure("number", "smallest slowdown, or smallest share of a step, that is looked for", 0.03)
    ranks_per_node: int = figure("count", "ranks per node", 8)
    top: int | None = figure("count", "number of findings; 0: all. By default 3, all with --json", None, zero=True)


@dataclass(frozen=True, slots=True)
class DiagnoseInputs:
    source: RunSource
    least: float
    ranks_per_node: int
    top: int | None

    def run(self) -> "Diagnosed":
        from etude.analyse.diagnose import diagnose, not_looked_for
        from etude.base.errors import DeadlockError
        from etude.model.run import Run
        from etude.model.timing import no_times

        try:
            job, run = self.source.find()
        except DeadlockError as problem:
            say(f"note: its simulation does not complete: {problem.problem}")
            job, run = self.source.job(), None
        if run is None:
            say("note: without times only ranks that are missing or disagree can be found; --system dgx-h100 simulates")
            run = Run(job, no_times([len(job.traces[t]) for t in job.trace_of.tolist()]))
            return self._shown(diagnose(run, least=self.least, ranks_per_node=self.ranks_per_node), NOT_SEEN)
        found = diagnose(run, least=self.least, ranks_per_node=self.ranks_per_node)
        span = run.timing.span()
        found = [*recorded_leaks(self.source, span[1] - span[0] if span else 0), *found]
        for limit in not_looked_for(job):
            say(f"note: {limit}")
        return self._shown(found, NOTHING)

    def _shown(self, found: "list[Verdict]", nothing: str) -> "Diagnosed":
        shown = found[: self.top] if self.top else found
        if not found:
            say(nothing)
        return Diagnosed(tuple(shown), SHOWN if self.top is None else len(shown), self.source)


def recorded_leaks(source: RunSource, run_ns: int) -> "list[Verdict]":
    """Ranks whose recorded allocations grow from step to step."""
    import numpy as np

    from etude.analyse.allocations import step_ends
    from etude.analyse.drifting import leaks_of
    from etude.capture.ingest import allocations, reading, runs
    from etude.capture.opening import is_profile, is_run

    path = Path(source.path)
    if source.system or source.timing is not None or not (is_profile(path) or is_run(path)):
        return []
    found = []
    ranks = [(None, path)] if is_profile(path) else [(one.rank, one.device) for one in runs.find_run(path)[1]]
    for at, (rank, file) in enumerate(ranks):
        trace = reading.load_device_with(file, b"[memory]")
        if trace is None:
            continue
        _, steps, held = step_ends(allocations.owned_allocations(trace))
        number = np.full(len(held), at if rank is None else rank)
        found += list(leaks_of(number, steps, held, run_ns))
    return found


@dataclass(frozen=True, slots=True)
class Diagnosed:
    findings: tuple["Verdict", ...]
    shown: int
    """Findings that a reader is shown."""
    source: RunSource

    def command(self, one: "Verdict") -> str:
        """The command that shows more of a finding of this run."""
        from etude.analyse.next_steps import command

        where = [str(self.source.path)]
        where += ["--system", self.source.system] if self.source.system else []
        where += ["--timing", str(self.source.timing)] if self.source.timing is not None else []
        return command(one).replace("RUN", shlex.join(where))


def inputs(asked: Diagnose) -> DiagnoseInputs:
    return DiagnoseInputs(RunSource.of(asked), asked.least, asked.ranks_per_node, asked.top)


def record(found: Diagnosed) -> dict[str, Any]:
    from etude.analyse.next_steps import next_step

    return {
        "findings": [one.record() | {"next": next_step(one), "command": found.command(one)} for one in found.findings]
    }


def table(found: Diagnosed) -> "pa.Table":
    """One row a finding, with what to do next and the command that shows more."""
    import pyarrow as pa

    from etude.analyse.findings import finding_table
    from etude.analyse.next_steps import next_step

    table = finding_table(found.findings)
    table = table.append_column("next", pa.array([next_step(one) for one in found.findings], pa.string()))
    return table.append_column("command", pa.array([found.command(one) for one in found.findings], pa.string()))


def reads(found: Diagnosed) -> str | None:
    """What to do next: each finding as a sentence with its confidence, an action, and the command that shows more."""
    from etude.analyse.next_steps import next_step

    lines = [
        f"{number}. {one.words} (confidence {one.confidence:.0%})\n   {next_step(one)}\n   {found.command(one)}"
        for number, one in enumerate(found.findings[: found.shown], 1)
    ]
    left = len(found.findings) - found.shown
    if left > 0:
        lines.append(f"{left} more; --top 0 shows all")
    return "\n".join(lines) or None
