"""Steps: how long each took, and how much they vary."""

from __future__ import annotations

import numpy as np

from etude.analyse.steps import steps
from etude.report import words
from etude.report.study import Study
from etude.view.charts import Bar, Column, Piece, bars, legend, table
from etude.view.page import Card, Section, Told

UNSTEADY = 0.1
"""Spread of step times, over their median, from which a report says so."""
BARS = 24
PIECES = (("compute", "compute", "compute_ns"), ("communication", "exposed communication", "exposed_comm_ns"),
          ("memory", "memory", "other_ns"), ("idle", "idle", "idle_ns"))  # fmt: skip


def _mean(study: Study) -> list[dict[str, float]]:
    """A row a step: means over ranks."""
    found: dict[int, list[dict[str, int]]] = {}
    for row in steps(study.job, study.timing).to_pylist():
        row["other_ns"] = row["span_ns"] - row["compute_ns"] - row["exposed_comm_ns"] - row["idle_ns"]
        found.setdefault(row["step"], []).append(row)
    keys = ("span_ns", "compute_ns", "exposed_comm_ns", "other_ns", "idle_ns")
    return [
        {"step": step, "ranks": len(rows)} | {k: sum(r[k] for r in rows) / len(rows) for k in keys}
        for step, rows in sorted(found.items())
    ]


def cards(study: Study) -> list[Card]:
    """The time of a step, where several are marked."""
    rows = _mean(study)
    if len(rows) < 2:
        return []
    spans = [row["span_ns"] for row in rows]
    return [Card("Step", words.time(float(np.median(spans))), f"the middle one of {len(spans)}")]


def told(study: Study) -> list[Told]:
    spans = np.array([row["span_ns"] for row in _mean(study)])
    if len(spans) < 3 or not np.median(spans):
        return []
    middle, slowest = float(np.median(spans)), int(spans.argmax())
    if spans[slowest] < (1 + UNSTEADY) * middle:
        return []
    return [Told(
        "info", f"Steps vary: the slowest of {len(spans)} takes {words.percent(spans[slowest] / middle - 1)} longer "
        "than the middle one.", f"{words.time(spans[slowest])} against {words.time(middle)}.", "steps",
    )]  # fmt: skip


def section(study: Study) -> Section:
    rows = _mean(study)
    if not rows:
        return Section("steps", "Steps", "", empty="No steps are marked in this run (ProfilerStep, or a `step`).")
    pieces: tuple[tuple[str, str, str], ...] = PIECES
    if not study.has_device:
        on_host = {"compute": "in operators", "idle": study.idling}
        pieces = tuple((s, on_host.get(label, label), key) for s, label, key in PIECES)
    drawn = [
        Bar(f"step {row['step']:.0f}", tuple(Piece(s, label, row[key]) for s, label, key in pieces))
        for row in rows[:BARS]
    ]
    used = [(s, label) for s, label, key in pieces if any(row[key] for row in rows)]
    columns = [
        Column("step", "step", words.number), Column("ranks", "ranks", words.number),
        Column("span_ns", "time", words.time), Column("compute_ns", pieces[0][1], words.time),
        Column("exposed_comm_ns", "exposed communication", words.time), Column("idle_ns", study.idling, words.time),
    ]  # fmt: skip
    columns = [c for c in columns if c.key != "exposed_comm_ns" or any(row["exposed_comm_ns"] for row in rows)]
    body = legend(used) + bars(drawn, words.time) + table("t-steps", rows[:512], columns)
    work = "device work" if study.has_device else "operators"
    lead = f"Each step from the first to the last of its {work}, mean over ranks."
    return Section("steps", "Steps", lead, body)
