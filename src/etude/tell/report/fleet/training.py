"""The days of a training job: where the hours went, what happened when, and what broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etude.kernels.arrays import F64
from etude.tell.report import words
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.page import PageSection
from etude.tell.view.plots import Axis, StripInterval, fitted, plot, strip

POINTS: Final = 240
STRIPS: Final = 600
"""Most intervals of the band of states: shorter ones are merged into the state that is longest there."""
SORTS: Final = {
    "useful": ("compute", "useful steps"), "degraded": ("memory", "slower than planned"),
    "redo": ("communication", "lost work"), "checkpoint": ("copy", "saves"), "detect": ("host", "detection"),
    "restart": ("other", "restart and load"), "idle": ("idle", "waiting for nodes"),
}  # fmt: skip
SHOWN: Final = 0.9
STATES: Final = ("train", "redo", "checkpoint", "detect", "restart", "idle")


def duration(seconds: float) -> str:
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.3g} {unit}" if seconds < 1000 * length else f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.3g} s"


def unit_of(seconds: float) -> tuple[str, float]:
    """Time unit for an axis of this length."""
    units = (("days", 86_400.0), ("h", 3600.0), ("min", 60.0))
    return next(((name, length) for name, length in units if seconds >= 2 * length), ("s", 1.0))


def str_of(unit: str) -> Callable[[float], str]:
    return lambda value: f"{value:,.4g} {unit}"


def training_verdict(record: dict[str, Any]) -> str:
    lost = sorted(record["lost_s"].items(), key=lambda part: -part[1])
    whole = record["duration_s"]
    worst = [f"{SORTS[part][1]} {seconds / whole:.1%}" for part, seconds in lost[:2] if seconds > 0]
    told = f"; most of the rest: {', '.join(worst)}" if worst else ""
    return (
        f"{record['useful_fraction']:.1%} of {duration(whole)} were useful with "
        f"{words.plural(record['interruptions'], 'interruption')}{told}."
    )


def hours_section(records: Sequence[tuple[str, dict[str, Any]]], *, trained: bool = True) -> PageSection:
    """Hours of a job, or of the devices of a cluster that jobs share."""
    sorts = SORTS if trained else SORTS | {"useful": ("compute", "in use"), "idle": ("idle", "not in use")}
    rows = []
    for name, record in records:
        values = {"useful": record["useful_s"]} | record["lost_s"]
        pieces = tuple(BarPiece(*sorts[part], values[part]) for part in sorts if values.get(part, 0) > 0)
        rows.append(Bar(name, pieces, f"{record['useful_fraction']:.1%} useful"))
    labels = {piece.label for row in rows for piece in row.pieces}
    shown = [sort for sort in sorts.values() if sort[1] in labels]
    lead = "The whole time, by what it was spent on." if len(rows) == 1 else "Side by side, by part."
    return PageSection("hours", "Where the time went", lead, legend(shown) + bars(rows, duration))


def training_sections(record: dict[str, Any], tables: dict[str, pa.Table]) -> list[PageSection]:
    found = [_band(tables["states"], record["duration_s"]), _rate(tables["states"], record)]
    if len(tables["events"]):
        found.append(_faults(tables["events"]))
    if "interval" in record:
        found.append(_interval(record["interval"]))
    return found


def _columns(states: pa.Table) -> tuple[F64, F64, NDArray[np.int64]]:
    start, end = (states[name].to_numpy() for name in ("start_s", "end_s"))
    number = np.array([STATES.index(state) for state in states["state"].to_pylist()], np.int64)
    return start, end, number


def _by_bin(start: F64, end: F64, weight: F64, whole: float, bins: int) -> F64:
    """Integral of a rate over equal bins; the rate is weight / (end - start) in each interval."""
    edges = np.linspace(0.0, whole, bins + 1)
    rate = np.divide(weight, end - start, out=np.zeros(len(start)), where=end > start)
    before = np.concatenate([[0.0], np.cumsum(weight)])
    k = np.clip(np.searchsorted(start, edges, side="right") - 1, 0, None)
    total = before[k] + rate[k] * np.clip(edges - start[k], 0.0, (end - start)[k])
    return np.diff(total)


def _band(states: pa.Table, whole: float) -> PageSection:
    start, end, number = _columns(states)
    spent = np.stack(
        [_by_bin(start, end, np.where(number == k, end - start, 0.0), whole, STRIPS) for k in range(len(STATES))]
    )
    longest = spent[1:].argmax(axis=0) + 1
    state = np.where(spent[0] >= SHOWN * spent.sum(axis=0), 0, longest)
    cut = np.flatnonzero(np.diff(state)) + 1
    width, sorts = whole / STRIPS, ("useful", *STATES[1:])
    name, unit = unit_of(whole)
    stretches = []
    for a, b in zip([0, *cut.tolist()], [*cut.tolist(), STRIPS], strict=True):
        sort, label = SORTS[sorts[int(state[a])]]
        stretches.append(
            StripInterval(a * width / unit, b * width / unit, sort, f"{label}\nfrom {duration(a * width)}")
        )
    seen = [SORTS[sorts[k]] for k in range(len(STATES)) if (state == k).any()]
    body = legend(seen) + strip("states over time", stretches, 0.0, whole / unit, str_of(name))
    lead = (
        f"Each interval of {duration(width)} has the colour of its largest part other than kept steps, if these fill "
        f"less than {words.percent(SHOWN)}."
    )
    return PageSection("states", "Timeline", lead, body)


def _rate(states: pa.Table, record: dict[str, Any]) -> PageSection:
    start, end, number = _columns(states)
    tokens = np.where(number == 0, states["tokens"].to_numpy(), 0).astype(np.float64)
    whole = record["duration_s"]
    mean = _by_bin(start, end, tokens, whole, POINTS) / (whole / POINTS)
    name, unit = unit_of(whole)
    edges = np.linspace(0.0, whole / unit, POINTS + 1)
    points = [(float(e), float(m)) for a, b, m in zip(edges, edges[1:], mean, strict=False) for e in (a, b)]
    planned = record["planned_tokens_per_s"]
    x = Axis("time", str_of(name), False, 0.0, whole / unit)
    y = fitted("tokens per second", lambda v: f"{v:,.0f}", [planned, float(mean.max(initial=0.0))], log=False)
    lines = [("trend l-compute", "", points), ("trend l-host", "as planned", [(0.0, planned), (whole / unit, planned)])]
    return PageSection(
        "rate",
        "Kept tokens",
        "Means over equal parts of the time; the flat line is the plan.",
        plot("tokens per second", x, y, (), lines, size=(1080, 260)),
    )


def _faults(events: pa.Table) -> PageSection:
    by = events.group_by("name").aggregate([("time_s", "count"), ("hit", "sum"), ("scope", "min"), ("effect", "min")])
    rows = by.sort_by([("time_s_count", "descending")]).to_pylist()
    columns = [
        Heading("name", "fault", str, number=False),
        Heading("effect_min", "effect", str, number=False),
        Heading("scope_min", "scope", str, number=False),
        Heading("time_s_count", "events", words.number),
        Heading("hit_sum", "affecting the job", words.number),
    ]
    felt = pc.sum(events["hit"]).as_py() or 0
    lead = f"{words.plural(len(events), 'event')}, {felt:,} of which affected the job."
    return PageSection("faults", "Failures", lead, table("fault-table", rows, columns, first=20))


def _interval(it: dict[str, Any]) -> PageSection:
    points = [(one["every_s"], one["useful_fraction"]) for one in it["tried"]]
    x = fitted("between saves", duration, [p[0] for p in points], log=True)
    low = min(p[1] for p in points)
    y = Axis("useful fraction", words.percent, False, max(low - 0.02, 0.0), 1.0)
    drawn = plot("useful fraction by interval", x, y, (), [("trend l-compute", "", points)], size=(1080, 240))
    lead = (
        f"Saves to {it['tier']} of {duration(it['save_s'])}: best interval {duration(it['best_s'])}; "
        f"Young {duration(it['young_s'])}, Daly {duration(it['daly_s'])}."
    )
    return PageSection("interval", "How often to save", lead, drawn)
