"""Pairs of recordings of one program: the graph of the one, with the device times and the host's speed of the other,
must give the time of the other. It is what `etude simulate FIRST --device-times-of SECOND` does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.capture.ingest import causal, runs
from etude.decide.score.kind import Item, PredictedRow, ScoreKind, ScoreRequest
from etude.decide.score.source import ScoreFile
from etude.machine import open_system
from etude.make.transform import with_device_times
from etude.model.job import Job
from etude.run.simulate import simulate

SYSTEM: Final = "dgx-h100"
"""Any does: all times are recorded ones."""
RANKS: Final = 16


@dataclass(frozen=True, slots=True)
class ScoredRecording:
    name: str
    ranks: tuple[runs.RankFiles, ...]


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    first, second = item.value
    graph, other = linked(first), linked(second)
    found = with_device_times(graph, other)
    assumed = [
        f"host times of {first.name} times {found.host_factor:.3f}, from {found.shared:.0%} of them",
        f"{found.placed:.1%} of the device times belong to operators that both recordings have, the rest is spread",
        "collectives take their recorded times",
    ]
    return PredictedRow(
        measured={"time_s": recorded_span_ns(other) / 1e9},
        predicted={"time_s": simulated_span_ns(found.job) / 1e9},
        assumed=assumed,
    )


@lru_cache(4)
def linked(recording: ScoredRecording) -> Job:
    as_measured = runs.WantedTimes(estimate=False)
    return causal.to_job("run", [runs.link_rank(replace(files, times=as_measured)) for files in recording.ranks])


def simulated_span_ns(job: Job) -> int:
    system = open_system(SYSTEM).resized(max(job.world_size, RANKS))
    return simulate(job.replace(timing=None), system, collective_times="recorded", fold=False).makespan_ns


def recorded_span_ns(job: Job) -> int:
    """That of the longest rank."""
    if job.timing is None:
        raise UsageError("a recording without times")
    return max(int(end.max() - start.min()) for start, end in zip(job.timing.start_ns, job.timing.end_ns, strict=True))


def recordings_in(folder: Path) -> list[ScoredRecording]:
    """Recordings in a folder, or one in each of its folders."""
    found = [ScoredRecording(name or folder.name, tuple(ranks)) for name, ranks in runs.runs_in(folder).items()]
    if not found:
        for place in sorted(one for one in folder.iterdir() if one.is_dir()):
            found += [ScoredRecording(place.name, tuple(ranks)) for ranks in runs.runs_in(place).values()]
    return [one for one in found if one.ranks]


def _holds(source: ScoreFile) -> bool:
    if not source.folder:
        return False
    try:
        return len(recordings_in(source.path)) > 1
    except UsageError:
        return False


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    found = recordings_in(path) if path.is_dir() else []
    if len(found) < 2:
        raise UsageError("needs two recordings of one program", where=str(path))
    return [Item(f"{a.name} -> {b.name}", (a, b)) for a, b in permutations(found, 2)]


KIND: Final = ScoreKind(
    name="recordings",
    doc="folder of two or more recordings of one program by PyTorch's profiler, of different sizes",
    holds=_holds,
    rows=_rows,
    predict=predict,
)
