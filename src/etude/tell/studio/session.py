"""What a studio has open: one run or two, each with its index, and what was computed of it so far."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.model.job import Job
from etude.model.run import Run
from etude.steps.asked.runs import RunSource
from etude.tell.studio.index import TimelineIndex, index_of


@dataclass
class StudioRun:
    """A run as it was asked for. Its index is read at once, the run itself when something needs it."""

    source: RunSource
    index: TimelineIndex
    _kept: dict[str, Any] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, source: RunSource) -> StudioRun:
        asked = repr((source.system, source.timing and source.timing.stat().st_mtime_ns, source.times, source.groups))
        return cls(source, index_of(source.path, asked, source.open, _about))

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What is computed when it is first asked for."""
        with self._turn:
            if name not in self._kept:
                self._kept[name] = make()
            return self._kept[name]

    def run(self) -> Run:
        found: Run = self.once("run", self.source.open)
        return found

    def job(self) -> Job:
        found: Job = self.once("job", lambda: self.run().job if "run" in self._kept else self.source.job())
        return found

    @property
    def words(self) -> str:
        """The input as a command names it."""
        given = [str(self.source.path)]
        for flag, value in (("--system", self.source.system), ("--timing", self.source.timing)):
            given += [flag, str(value)] if value else []
        return shlex.join(given)

    @property
    def python(self) -> str:
        """The line of Python that opens it."""
        if self.source.system:
            return f"run = etude.simulate(etude.open({str(self.source.path)!r}), {self.source.system!r})"
        return f"run = etude.open_run({str(self.source.path)!r})"


def _about(run: Run) -> dict[str, Any]:
    return {
        "timing": run.timing.origin.name.lower(),
        "system": run.system.name if run.system else "",
        "nodes": run.job.nodes,
    }


@dataclass
class StudioSession:
    """The runs of a studio, and the folder that what-ifs are written to, if there is one."""

    runs: tuple[StudioRun, ...]
    out: Path | None = None

    def run(self, given: dict[str, Any]) -> StudioRun:
        """The run that a request is about: the first, unless it says `run: 1`."""
        number = given.get("run", 0)
        if number not in range(len(self.runs)):
            raise UsageError(f"there is no run {number}", hint=f"{len(self.runs)} open")
        return self.runs[number]
