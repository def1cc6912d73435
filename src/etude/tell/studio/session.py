"""What a studio has open: one run or two, each with its index, and what was computed of it so far."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.model.job import Job
from etude.model.run import Run
from etude.steps.asked.runs import RunSource
from etude.tell.studio.index import TimelineIndex, index_of
from etude.tell.studio.windows import warm


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
        found = cls(source, index_of(source.path, asked, source.open, _about))
        warm(found.index)
        return found

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


MOST_COMPUTED: Final = 4
"""Runs that were computed and can still be shown."""


@dataclass
class StudioSession:
    """The runs of a studio, and the folder that what-ifs are written to, if there is one."""

    runs: tuple[StudioRun, ...]
    out: Path | None = None
    computed: dict[int, StudioRun] = field(default_factory=dict)
    _folder: Any = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def scratch(self) -> str:
        """A folder that goes with the session."""
        with self._turn:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="etude-studio-", ignore_cleanup_errors=True)
            return str(self._folder.name)

    def add(self, run: StudioRun) -> int:
        """The number of a run that was computed; the oldest of many are forgotten."""
        with self._turn:
            number = max(self.computed, default=99) + 1
            self.computed[number] = run
            while len(self.computed) > MOST_COMPUTED:
                shutil.rmtree(self.computed.pop(min(self.computed)).index.folder, ignore_errors=True)
            return number

    def run(self, given: dict[str, Any], key: str = "run") -> StudioRun:
        """The run that a request is about: the first, unless it says `run: 1`."""
        number = given.get(key, 0)
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"`{key}` is not the number of a run")
        if number in self.computed:
            return self.computed[number]
        if number not in range(len(self.runs)):
            raise UsageError(f"there is no run {number}", hint="a what-if is computed again when it is asked for")
        return self.runs[number]
