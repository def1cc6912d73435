"""Steps: how long each took, and how much they vary."""

from __future__ import annotations

import numpy as np

from etude.tell.report import words
from etude.tell.report.breakdown import pieces
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.page import Figure, PageSection, Told
from etude.tell.view.sentences import sentence

SECTION = "steps"

UNSTEADY = 0.1
"""Spread of step times, over their median, from which a report says so."""
BARS = 24


MIDDLE, SLOWEST = "median(step_means.span_ns)", "max(step_means.span_ns)"


def _mean(subject: Subject) -> list[dict[str, float]]:
    """One row per step: means over ranks."""
    found: list[dict[str, float]] = subject.table("step_means").to_pylist()
    return found


def cards(subject: Subject) -> list[Figure]:
    """The time of a step, where several are marked."""
    rows = _mean(subject)
    if len(rows) < 2:
        return []
    of = sentence("the median of {steps}", steps=subject.number("count(step_means)"))
    return [Figure("Step", subject.time(MIDDLE), of)]


def told(subject: Subject) -> list[Told]:
    spans = np.array([row["span_ns"] for row in _mean(subject)])
    if len(spans) < 3 or not np.median(spans):
        return []
    middle, slowest = float(np.median(spans)), int(spans.argmax())
    if spans[slowest] < (1 + UNSTEADY) * middle:
        return []
    longer = f"step_means[step_means.span_ns > {MIDDLE}].span_ns"
    what = sentence(
        "Steps vary: the slowest of {steps} takes {share} longer than the median.",
        steps=subject.number("count(step_means)"),
        share=subject.percent(f"{SLOWEST} / {MIDDLE} - 1"),
    )
    why = sentence("{slowest} compared with {middle}.", slowest=subject.time(SLOWEST), middle=subject.time(MIDDLE))
    cost = round(np.maximum(spans - middle, 0).sum())
    return [Told("info", what, why, SECTION, cost, asked=f"sum({longer} - {MIDDLE})")]


def section(subject: Subject) -> PageSection:
    rows = _mean(subject)
    if not rows:
        return PageSection(SECTION, "Steps", "", empty="No steps are marked in this run (ProfilerStep, or a `step`).")
    parts = pieces(subject)
    drawn = [
        Bar(
            f"step {row['step']:.0f}",
            tuple(BarPiece(s, label, row[key], query=f"step_means[{at}].{key}") for s, label, key in parts),
        )
        for at, row in enumerate(rows[:BARS])
    ]
    used = [(s, label) for s, label, key in parts if any(row[key] for row in rows)]
    columns = [
        Heading("step", "step", words.number), Heading("ranks", "ranks", words.number),
        Heading("span_ns", "time", words.time), Heading("compute_ns", parts[0][1], words.time),
        Heading("exposed_comm_ns", "exposed communication", words.time), Heading("idle_ns", subject.idling, words.time),
    ]  # fmt: skip
    columns = [c for c in columns if c.key != "exposed_comm_ns" or any(row["exposed_comm_ns"] for row in rows)]
    body = legend(used) + bars(drawn, words.time) + table("t-steps", rows[:512], columns, query="step_means")
    work = "device work" if subject.has_device else "operators"
    lead = f"Each step from the first to the last of its {work}, mean over ranks."
    return PageSection(SECTION, "Steps", lead, body)
