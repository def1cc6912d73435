"""The causal graph of what PyTorch recorded: what `etude.link` and the command make alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, switch
from etude.base.parameters import PYTHON, ask, refuse_unread
from etude.capture.ingest import card as cards_of_runs
from etude.capture.ingest import causal, official, profiles, reading, runs
from etude.steps.asked.times import TimesInput, times_wanted
from etude.store import cards

if TYPE_CHECKING:
    from etude.model.card import Card
    from etude.model.job import Job
    from etude.store.chakra import Decoded


@dataclass(frozen=True, slots=True)
class LinkedJob:
    """A linked job, and what is to be said of it."""

    job: Job
    report: dict[str, Any]
    """What was matched; of a run `ranks` has a row for each, and `unmatched` is of all."""
    card: Card | None = None
    rank: int | None = None
    """The rank that a trace of one rank names, if any."""


@dataclass(frozen=True, kw_only=True)
class LinkInput(TimesInput):
    """Parameters of what links: the files, and how those of a run are put together."""

    path: str = argument(
        "path",
        "the trace that the profiler (Kineto) wrote; if a second file is given, the host trace of "
        "ExecutionTraceObserver. A folder (or `folder/name`, or a list `a.json,b.json`): all ranks of a run",
        metavar="TRACE",
        like="run/",
    )
    device: str | None = argument("path", "the profiler's trace of the same run", None, metavar="DEVICE")
    workers: int = figure("count", "number of ranks of a run in parallel; 0: one per core", 0, names=("-j",))
    any_window: bool = switch("accept ranks that recorded different parts of the run")
    max_bytes: int | None = figure(
        "bytes", "largest size that a file may have, also when unpacked, as `4GiB`", None, key="max_bytes"
    )


@dataclass(frozen=True, slots=True)
class LinkSource:
    """What is linked: all ranks of a run, or the trace of one rank."""

    path: Path
    device: Path | None
    max_bytes: int | None
    is_run: bool
    workers: int = 0
    any_window: bool = False
    times: runs.WantedTimes | None = None

    @classmethod
    def of(cls, asked: LinkInput, one_rank: bool = False) -> LinkSource:
        """`workers`, `any_window` and whose times it gets are read for a run alone."""
        path, device = Path(asked.path), None if asked.device is None else Path(asked.device)
        _refuse_other_profilers(path)
        if one_rank or device is not None or path.is_file():
            return cls(path, device, asked.max_bytes, False)
        return cls(path, None, asked.max_bytes, True, asked.workers, asked.any_window, times_wanted(asked))

    def linked(self, name: str = "", advance: Callable[..., None] = lambda amount, note="": None) -> LinkedJob:
        """The causal graph, called `name` or as its files are."""
        if self.is_run:
            # Times that are only estimated are written where they are asked for.
            called, ranks = runs.find_run(self.path, self.times or runs.WantedTimes(estimate=False))
            workers = self.workers or os.cpu_count() or 1
            done = runs.link_run(
                ranks, workers=workers, any_window=self.any_window, max_bytes=self.max_bytes, advance=advance
            )
            job = causal.to_job(name or called, done)
            found = cards.find(self.path) or cards_of_runs.card_of_run(job, ranks)
            return LinkedJob(job, runs.total_report(called, job, done), found)
        host, timed = (None, self.path) if self.device is None else (self.path, self.device)
        recorded = reading.load_device(timed, self.max_bytes)
        one = causal.convert(recorded, reading.load_host(host, self.max_bytes) if host is not None else None)
        named = one.part.rank if "rank" in recorded.distributed else None
        return LinkedJob(causal.to_job(name or reading.stem(timed), [one]), one.report, rank=named)

    def official(self) -> tuple[Decoded, dict[str, Any]]:
        """What Chakra's own linker and converter make of a host trace, with a device trace or without."""
        device = reading.load_device(self.device, self.max_bytes) if self.device else None
        return official.convert(reading.load_host(self.path, self.max_bytes), device)


def _refuse_other_profilers(path: Path) -> None:
    """What is not of PyTorch is opened, not linked. PyTorch's own files next to it come first."""
    found = profiles.files_of(path)
    if not found or (path.is_dir() and runs.runs_in(path)):
        return
    hint = f"it opens as it is: `etude report {path}`; `etude convert {path} job/ --to et` writes Chakra traces"
    raise UsageError(
        f"was recorded by {found[0][1].source}, and `link` is for PyTorch's profiler", where=str(path), hint=hint
    )


def link(
    path: str | os.PathLike[str], device: str | os.PathLike[str] | None = None, *, workers: int = 1,
    any_window: bool = False, max_bytes: str | int | None = None, as_recorded: bool = False,
) -> Job:  # fmt: skip
    """The causal graph of what PyTorch recorded: a folder of all ranks, a profiler's trace, or host and device traces.
    `any_window` joins ranks that recorded different parts of the run as they are; `as_recorded` takes the times under
    the profiler.

    job = etude.link("run/")
    """
    given = {
        "path": path,
        "device": device,
        "workers": workers,
        "any_window": any_window,
        "max_bytes": max_bytes,
        "as_recorded": as_recorded,
    }
    usual = {"device": None, "workers": 1, "any_window": False, "max_bytes": None, "as_recorded": False}
    asked = ask(LinkInput, {k: v for k, v in given.items() if k not in usual or v != usual[k]}, PYTHON, verb="link")
    source = LinkSource.of(asked)
    refuse_unread(asked)
    return replace(source, workers=workers).linked().job
