"""Memory: what is held over time, and how fast copies go."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etude.analyse.memory import copies, levels
from etude.reporting import words
from etude.reporting.study import Study
from etude.view.charts import Axis, Column, Line, fitted, plot, table
from etude.view.page import Section

LINES, POINTS = 4, 400
"""Ranks that get a line, and points of each."""


def section(study: Study) -> Section:
    held = levels(study.job, study.timing)
    moved = copies(study.job, study.timing).to_pylist()
    body = _levels(study, held) if len(held) else ""
    if moved:
        columns = [
            Column("rank", "rank"), Column("name", "copy", number=False, code=True),
            Column("count", "times", words.number), Column("size_bytes", "bytes", words.size),
            Column("time_ns", "time", words.time), Column("bytes_per_s", "rate", words.rate),
            Column("most_rate_bytes_per_s", "most at a time", words.rate),
        ]  # fmt: skip
        body += "<h3>Copies and fills</h3>" + table("t-copies", moved[:512], columns)
    lead = "Bytes that memory nodes load and store, and copies between host and device."
    return Section("memory", "Memory", lead, body, "No copies and no memory nodes are recorded in this run.")


def _levels(study: Study, held: pa.Table) -> str:
    start = int(pc.min(held["time_ns"]).as_py())
    ranks = pc.unique(held["rank"]).to_pylist()
    most = {r: pc.max(held.filter(pc.equal(held["rank"], r))["held_bytes"]).as_py() for r in ranks[:64]}
    chosen = sorted(most, key=lambda r: -most[r])[:LINES]
    lines: list[Line] = []
    top, end = 0.0, 1.0
    for rank in chosen:
        mine = held.filter(pc.equal(held["rank"], rank))
        time, size = mine["time_ns"].to_numpy() - start, mine["held_bytes"].to_numpy()
        peaks = _peaks(time, size)
        top, end = max(top, float(size.max())), max(end, float(time.max()))
        steps = [(0.0, 0.0)]
        for t, v in peaks:
            steps += [(t, steps[-1][1]), (t, v)]
        lines.append((f"trend l-{('compute', 'communication', 'memory', 'host')[len(lines)]}", f"rank {rank}", steps))
    x = Axis("time", words.time, False, 0.0, end)
    y = fitted("bytes held", words.size, [top], log=False)
    return plot("Bytes held over time", x, y, (), lines)


def _peaks(time: np.ndarray, size: np.ndarray) -> list[tuple[float, float]]:
    """The highest point of each of so many equal parts, so that no peak is lost."""
    if len(time) <= POINTS:
        return [(float(t), float(v)) for t, v in zip(time, size, strict=True)]
    bounds = np.linspace(0, len(time), POINTS + 1).astype(int)
    best = [a + int(size[a:b].argmax()) for a, b in pairwise(bounds.tolist())]
    return [(float(time[i]), float(size[i])) for i in best]
