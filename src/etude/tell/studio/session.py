"""What a studio has open: one run or two, each with its index, and what was computed of it so far."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.talk import progress
from etude.model.job import Job
from etude.model.run import Run
from etude.steps.asked.runs import RunSource
from etude.steps.asked.times import recorded_times
from etude.tell.studio.folders import StudioFolder, kind_of
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
        found = cls(source, index_of(source.path, asked, lambda folder, about: _build(source.open(), folder, about)))
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
    def as_recorded(self) -> bool:
        """Whether its times are those under the profiler."""
        return self.source.times is not None and self.source.times == recorded_times()

    @property
    def words(self) -> str:
        """The input as a command names it."""
        given = [str(self.source.path)]
        for flag, value in (("--system", self.source.system), ("--timing", self.source.timing)):
            given += [flag, str(value)] if value else []
        if self.as_recorded:
            given.append("--as-recorded")
        return shlex.join(given)

    @property
    def python(self) -> str:
        """The line of Python that opens it."""
        if self.source.system:
            return f"run = etude.simulate(etude.open({str(self.source.path)!r}), {self.source.system!r})"
        more = ", as_recorded=True" if self.as_recorded else ""
        return f"run = etude.open_run({str(self.source.path)!r}{more})"


def _build(run: Run, folder: Path, about: dict[str, Any]) -> None:
    from etude.analyse.clocks import offsets
    from etude.tell.studio.building import build
    from etude.tell.studio.sets import sets_of

    with progress("building the index", len(run.job.ranks)) as advance:
        build(run, folder, offsets(run), about | about_run(run) | {"sets": sets_of(run.job)}, advance)


def about_run(run: Run) -> dict[str, Any]:
    """What an index says of its run."""
    return {
        "name": run.job.name,
        "timing": run.timing.origin.name.lower(),
        "system": run.system.name if run.system else "",
        "nodes": run.job.nodes,
        "program": run.job.provenance.get("timing") in ("program", "estimated"),
    }


def open_input(source: RunSource) -> StudioRun | StudioFolder:
    """What is at a path: a run, or a folder that another verb wrote."""
    kind = kind_of(source.path)
    return StudioFolder.of(source.path, kind) if kind else StudioRun.of(source)


MOST_COMPUTED: Final = 4
"""Runs that were computed and can still be shown."""
KEPT: Final = 50


@dataclass
class StudioSession:
    """The runs of a studio, and the folder that what-ifs are written to, if there is one."""

    runs: tuple[StudioRun | StudioFolder, ...]
    out: Path | None = None
    computed: dict[int, StudioRun] = field(default_factory=dict)
    kept: list[StudioRun] = field(default_factory=list)
    """The same runs with other times, by number from `KEPT` on."""
    _folder: Any = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def scratch(self) -> str:
        """A folder that goes with the session."""
        with self._turn:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="etude-studio-", ignore_cleanup_errors=True)
            return str(self._folder.name)

    def add(self, run: StudioRun, *, keep: bool = False) -> int:
        """The number of a run that was computed; the oldest of many are forgotten, unless they are to be kept."""
        with self._turn:
            if keep:
                self.kept.append(run)
                return KEPT - 1 + len(self.kept)
            number = max(self.computed, default=99) + 1
            self.computed[number] = run
            while len(self.computed) > MOST_COMPUTED:
                shutil.rmtree(self.computed.pop(min(self.computed)).index.folder, ignore_errors=True)
            return number

    def recorded(self, given: dict[str, Any]) -> int:
        """The number of the same run with the times under the profiler."""
        one = self.run(given)
        source = replace(one.source, times=recorded_times())

        def made() -> int:
            return self.add(StudioRun.of(source), keep=True)

        number: int = one.once("recorded", made)
        return number

    def run(self, given: dict[str, Any], key: str = "run") -> StudioRun:
        """The run that a request is about: the first, unless it says `run: 1`."""
        found = self.shown(given, key)
        if isinstance(found, StudioFolder):
            raise UsageError(f"a {found.kind} has no trace", hint="its tables can be asked")
        return found

    def shown(self, given: dict[str, Any], key: str = "run") -> StudioRun | StudioFolder:
        """The same, or a folder that is no run."""
        number = given.get(key, 0)
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"`{key}` is not the number of a run")
        if number in self.computed:
            return self.computed[number]
        if 0 <= number - KEPT < len(self.kept):
            return self.kept[number - KEPT]
        if number not in range(len(self.runs)):
            raise UsageError(f"there is no run {number}", hint="a what-if is computed again when it is asked for")
        return self.runs[number]
