"""Memory: use over time, and the rates of copies."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etude.analyse.memory import levels
from etude.kernels.arrays import I64
from etude.tell.report import words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Heading, legend, table
from etude.tell.view.markup import Markup, heading
from etude.tell.view.page import PageSection
from etude.tell.view.plots import Axis, Line, fitted, plot

SECTION = "memory"


LINES, POINTS = 4, 400
"""Ranks that get a line, and points of each."""


COLOURS = ("compute", "communication", "memory", "host")


def section(subject: Subject) -> PageSection:
    held = levels(subject.run)
    moved = subject.table("copies").to_pylist()
    body = (
        _allocated(subject, subject.allocated) if subject.allocated is not None and len(subject.allocated) else Markup()
    )
    body += _levels(held) if len(held) else Markup()
    if moved:
        columns = [
            Heading("rank", "rank"), Heading("name", "copy", number=False, code=True),
            Heading("count", "times", words.number), Heading("size_bytes", "bytes", words.size),
            Heading("time_ns", "time", words.time), Heading("bytes_per_s", "rate", words.rate),
            Heading("most_rate_bytes_per_s", "peak", words.rate),
        ]  # fmt: skip
        body += heading("Copies and fills") + table("t-copies", moved[:512], columns, query="copies")
    lead = "Allocated memory over time, if the profiler recorded it, and copies between host and device."
    empty = "No allocations (profile_memory=True), copies or memory nodes are recorded in this run."
    return PageSection(SECTION, "Memory", lead, body, empty)


def _allocated(subject: Subject, found: pa.Table) -> Markup:
    columns = [
        Heading("device", "device", number=False), Heading("events", "events", words.number),
        Heading("most_allocated_bytes", "peak allocated", words.size),
        Heading("most_reserved_bytes", "peak reserved", words.size), Heading("largest_bytes", "largest", words.size),
        Heading("first_bytes", "at the beginning", words.size), Heading("last_bytes", "at the end", words.size),
    ]  # fmt: skip
    parts = {d: found.filter(pc.equal(found["device"], d)) for d in pc.unique(found["device"]).to_pylist()}
    series = [
        (device, part["time_ns"].to_numpy(), part["allocated_bytes"].fill_null(0).to_numpy())
        for device, part in parts.items()
    ]
    drawn = _over_time("Bytes allocated over time", series)
    rows = subject.table("allocated").to_pylist()
    return heading("Allocated") + drawn + table("t-memory", rows, columns, query="allocated")


def _levels(held: pa.Table) -> Markup:
    parts = {r: held.filter(pc.equal(held["rank"], r)) for r in pc.unique(held["rank"]).to_pylist()[:64]}
    most = sorted(parts, key=lambda r: -pc.max(parts[r]["held_bytes"]).as_py())[:LINES]
    series = [(f"rank {r}", parts[r]["time_ns"].to_numpy(), parts[r]["held_bytes"].to_numpy()) for r in most]
    return heading("Held by memory nodes") + _over_time("Bytes held over time", series)


def _over_time(label: str, series: list[tuple[str, I64, I64]]) -> Markup:
    """A step line for each of a few series."""
    start = min(int(time.min()) for _, time, _ in series)
    lines: list[Line] = []
    for (name, time, size), colour in zip(series, COLOURS, strict=False):
        steps: list[tuple[float, float]] = []
        for t, v in _highest(time - start, size):
            steps += [(t, steps[-1][1] if steps else v), (t, v)]
        lines.append((f"trend l-{colour}", name, steps))
    end = max(float(time.max() - start) for _, time, _ in series) or 1.0
    x = Axis("time", words.time, False, 0.0, end)
    y = fitted("bytes", words.size, [float(size.max()) for _, _, size in series], log=False)
    entries = [(colour, name) for (name, _, _), colour in zip(series, COLOURS, strict=False)]
    return legend(entries) + plot(label, x, y, (), [(kind, "", points) for kind, _, points in lines], size=(1080, 300))


def _highest(time: I64, size: I64) -> list[tuple[float, float]]:
    """The highest point of each of this many equal parts, so that no peak is lost."""
    if len(time) <= POINTS:
        return [(float(t), float(v)) for t, v in zip(time, size, strict=True)]
    bounds = np.linspace(0, len(time), POINTS + 1).astype(int)
    best = [a + int(size[a:b].argmax()) for a, b in pairwise(bounds.tolist())]
    return [(float(time[i]), float(size[i])) for i in best]
