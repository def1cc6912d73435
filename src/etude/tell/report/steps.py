"""Steps: how long each took, and how much they vary."""

from __future__ import annotations

import numpy as np

from etude.analyse.measures import MEASURES
from etude.tell.report import words
from etude.tell.report.breakdown import pieces
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.page import Figure, PageSection, Told

SECTION = "steps"

UNSTEADY = 0.1
"""Spread of step times, over their median, from which a report says so."""
BARS = 24


def _mean(subject: Subject) -> list[dict[str, float]]:
    """One row per step: means over ranks."""
    found: dict[int, list[dict[str, int]]] = {}
    for row in subject.steps.to_pylist():
        found.setdefault(row["step"], []).append(row)
    return [
        {"step": step, "ranks": len(rows)} | {k: sum(r[k] for r in rows) / len(rows) for k in MEASURES}
        for step, rows in sorted(found.items())
    ]


def cards(subject: Subject) -> list[Figure]:
    """The time of a step, where several are marked."""
    rows = _mean(subject)
    if len(rows) < 2:
        return []
    spans = [row["span_ns"] for row in rows]
    return [Figure("Step", words.time(float(np.median(spans))), f"the median of {len(spans)}")]


def told(subject: Subject) -> list[Told]:
    spans = np.array([row["span_ns"] for row in _mean(subject)])
    if len(spans) < 3 or not np.median(spans):
        return []
    middle, slowest = float(np.median(spans)), int(spans.argmax())
    if spans[slowest] < (1 + UNSTEADY) * middle:
        return []
    return [Told(
        "info", f"Steps vary: the slowest of {len(spans)} takes {words.percent(spans[slowest] / middle - 1)} longer "
        "than the median.", f"{words.time(spans[slowest])} compared with {words.time(middle)}.", SECTION,
        round(np.maximum(spans - middle, 0).sum()),
    )]  # fmt: skip


def section(subject: Subject) -> PageSection:
    rows = _mean(subject)
    if not rows:
        return PageSection(SECTION, "Steps", "", empty="No steps are marked in this run (ProfilerStep, or a `step`).")
    parts = pieces(subject)
    drawn = [
        Bar(f"step {row['step']:.0f}", tuple(BarPiece(s, label, row[key]) for s, label, key in parts))
        for row in rows[:BARS]
    ]
    used = [(s, label) for s, label, key in parts if any(row[key] for row in rows)]
    columns = [
        Heading("step", "step", words.number), Heading("ranks", "ranks", words.number),
        Heading("span_ns", "time", words.time), Heading("compute_ns", parts[0][1], words.time),
        Heading("exposed_comm_ns", "exposed communication", words.time), Heading("idle_ns", subject.idling, words.time),
    ]  # fmt: skip
    columns = [c for c in columns if c.key != "exposed_comm_ns" or any(row["exposed_comm_ns"] for row in rows)]
    body = legend(used) + bars(drawn, words.time) + table("t-steps", rows[:512], columns)
    work = "device work" if subject.has_device else "operators"
    lead = f"Each step from the first to the last of its {work}, mean over ranks."
    return PageSection(SECTION, "Steps", lead, body)
