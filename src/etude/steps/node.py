"""The figures of this node: micro jobs, all-reduces between its processes, the communication of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from etude.base.files import writing
from etude.base.outputs import OutputPlace
from etude.base.talk import progress, say
from etude.base.units import format_bytes
from etude.capture import opening
from etude.run.qualify import MeasureOptions, NodeFigure, QualifiedNode, measure_node, write_node
from etude.run.replay.communication import PlayOptions, plan_communication, play, probe_links, rehearse

SIZES: Final = (4096, 64 << 20)
"""Of the all-reduces between processes: one that latency bounds, one that bandwidth does."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """How this node is measured."""

    name: str
    processes: int | None
    job: Path | None
    repetitions: int
    seconds: float
    place: OutputPlace | None

    def measured(self) -> QualifiedNode:
        """The node; its figures are written if a place is given."""
        with progress("measuring") as advance:
            figures, about = measure_node(MeasureOptions(repetitions=self.repetitions, seconds=self.seconds))
            advance(1)
            gpus = len(about["devices"]) if about["devices"] != ["cpu"] else 0
            count = self.processes if self.processes is not None else gpus if gpus > 1 else 0 if gpus else 2
            if count > 1:
                figures += _links(count, "nccl" if gpus >= count else "gloo", self.repetitions)
            if self.job is not None:
                figures.append(_replayed(self.job, self.repetitions))
        node = QualifiedNode(self.name, tuple(figures), about | {"processes": count})
        if self.place is not None:
            with writing(self.place.path, force=self.place.force) as path:
                write_node(node, path)
            say(f"wrote {self.place.path}")
        return node


def _figure(name: str, part: str, unit: str, rates: list[float]) -> NodeFigure:
    value = median(rates)
    return NodeFigure(name, part, unit, value, median(abs(rate - value) for rate in rates) / value)


def _links(processes: int, backend: str, repetitions: int) -> list[NodeFigure]:
    options = PlayOptions(backend=backend, iterations=3 * repetitions, warmup=3, verify=False)
    seconds = probe_links(processes, SIZES, options)
    found = []
    for size, times in zip(SIZES, seconds, strict=True):
        label = f"all_reduce {format_bytes(size)}, {processes} processes, {backend}"
        small = size == min(SIZES)
        # A small one waits for the host and the wire, a large one for the wire alone.
        rates = [1 / t if small else size / t for t in times]
        found.append(_figure(label, "link", "calls/s" if small else "B/s", rates))
    return found


def _replayed(path: Path, repetitions: int) -> NodeFigure:
    job = opening.open(path, workers=1)
    programs = plan_communication(job)
    rehearse(programs)
    results = play(programs, PlayOptions(iterations=3 * repetitions, warmup=2, verify=False))
    walls: list[Any] = [max(r.wall_ns[i] for r in results) for i in range(3 * repetitions)]
    return _figure(f"communication of {job.name}", "replay", "steps/s", [1e9 / float(wall) for wall in walls])
