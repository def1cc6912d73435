"""The causal graph of what PyTorch recorded: what `etude.link` and the command make alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.units import parse_bytes
from etude.capture.ingest import card as cards_of_runs
from etude.capture.ingest import causal, reading, runs
from etude.store import cards

if TYPE_CHECKING:
    from etude.model.card import Card
    from etude.model.job import Job


@dataclass(frozen=True, slots=True)
class Linked:
    """A linked job, and what is to be said of it."""

    job: Job
    report: dict[str, Any]
    """What was matched; of a run `ranks` has a row for each, and `unmatched` is of all."""
    card: Card | None = None


def is_run(path: Path, device: Path | None) -> bool:
    """All ranks of a run, and not the trace of one."""
    return device is None and not path.is_file()


def linked(
    path: Path, device: Path | None = None, *, name: str = "", workers: int = 0, any_window: bool = False,
    max_bytes: int | None = None, advance: Callable[..., None] = lambda amount, note="": None,
) -> Linked:  # fmt: skip
    """A folder of all ranks, a profiler's trace, or host and device traces. `workers`: ranks at a time; 0: as many as
    cores."""
    if is_run(path, device):
        called, ranks = runs.find_run(path)
        done = runs.link_run(
            ranks, workers=workers or os.cpu_count() or 1, any_window=any_window, max_bytes=max_bytes, advance=advance
        )
        job = causal.to_job(name or called, done)
        found = cards.find(path) or cards_of_runs.card_of_run(job, ranks)
        return Linked(job, runs.total_report(called, job, done), found)
    host, timed = (None, path) if device is None else (path, device)
    recorded = reading.load_device(timed, max_bytes)
    one = causal.convert(recorded, reading.load_host(host, max_bytes) if host is not None else None)
    return Linked(causal.to_job(name or reading.stem(timed), [one]), one.report)


def link(
    path: str | os.PathLike[str], device: str | os.PathLike[str] | None = None, *, workers: int = 1,
    any_window: bool = False, max_bytes: str | int | None = None,
) -> Job:  # fmt: skip
    """The causal graph of what PyTorch recorded: a folder of all ranks, a profiler's trace, or host and device traces.
    `any_window` joins ranks that recorded different parts of the run as they are.

    job = etude.link("run/")
    """
    limit = parse_bytes(max_bytes) if max_bytes is not None else None
    second = None if device is None else Path(device)
    return linked(Path(path), second, workers=workers, any_window=any_window, max_bytes=limit).job
