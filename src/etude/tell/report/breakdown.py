"""Where the time goes: the device's time by activity, rank by rank, and the findings from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from etude.analyse.late_hosts import stages
from etude.tell.report import collectives, gains, idle, words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading, paragraph
from etude.tell.view.page import Figure, PageSection, Told

SECTION = "breakdown"

MUCH_COMMUNICATION, SOME_COMMUNICATION, LITTLE_HIDDEN, UNEVEN = 0.15, 0.05, 0.5, 0.1
"""Shares from which a report has a finding: exposed communication, all of it, hidden communication, slowest rank."""
BARS = 32
"""Ranks that get a bar of their own."""

PIECES = (
    ("compute", "compute", "compute_ns"),
    ("communication", "exposed communication", "exposed_comm_ns"),
    ("memory", "exposed memory", "exposed_memory_ns"),
    ("idle", "idle", "idle_ns"),
)
LITTLE_COMPUTE = 0.05
"""Fraction of the exposed communication: with less compute than this there is nothing to overlap with."""
OF_COMMUNICATION = ("comm_ns", "exposed_comm_ns", "overlap_pct")
"""Columns that a run without communication does not need."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Shares of the devices' time over all ranks."""

    compute: float
    exposed_comm: float
    memory: float
    idle: float
    hidden: float | None
    """Share of communication that compute hides; None if there is none."""
    comm: float


def spent(subject: Subject) -> Spent:
    sums = {name: sum(v or 0 for v in subject.breakdown[name].to_pylist()) for name in subject.breakdown.column_names
            if name.endswith("_ns")}  # fmt: skip
    whole = sums["span_ns"] or 1
    parts = sums["compute_ns"] + sums["exposed_comm_ns"] + sums["exposed_memory_ns"] + sums["idle_ns"]
    assert parts == sums["span_ns"], f"the parts are {parts} ns of {sums['span_ns']} ns"
    hidden = 1 - sums["exposed_comm_ns"] / sums["comm_ns"] if sums["comm_ns"] else None
    return Spent(sums["compute_ns"] / whole, sums["exposed_comm_ns"] / whole, sums["exposed_memory_ns"] / whole,
                 sums["idle_ns"] / whole, hidden, sums["comm_ns"] / whole)  # fmt: skip


def pieces(subject: Subject) -> tuple[tuple[str, str, str], ...]:
    """The parts with their colours and names; on a host with names for a host."""
    on_host = {"compute": "in operators", "idle": subject.idling}
    return PIECES if subject.has_device else tuple((s, on_host.get(label, label), key) for s, label, key in PIECES)


def cards(subject: Subject) -> list[Figure]:
    s = spent(subject)
    found = [Figure(subject.computing.capitalize(), words.percent(s.compute), f"of {subject.whose} time", "compute")]
    if s.hidden is not None:
        note = f"{words.percent(s.hidden)} of communication is hidden"
        found.append(Figure("Waiting for communication", words.percent(s.exposed_comm), note, "communication"))
    if s.memory >= 0.001:
        found.append(Figure("Copying memory", words.percent(s.memory), "with nothing else running", "memory"))
    note = "nothing runs on the device" if subject.has_device else "Python, autograd, hooks"
    found.append(Figure(subject.idling.capitalize(), words.percent(s.idle), note, "idle"))
    return found


def told(subject: Subject) -> list[Told]:
    s, found = spent(subject), []
    if s.exposed_comm >= MUCH_COMMUNICATION:
        tone = "bad" if s.exposed_comm >= 2 * MUCH_COMMUNICATION else "warn"
        what = f"{words.percent(s.exposed_comm)} of {subject.whose} time goes to communication that no compute hides."
        found.append(Told(tone, what, _advice(subject, s), SECTION, subject.device_time(s.exposed_comm)))
    elif s.hidden is not None and s.comm >= SOME_COMMUNICATION:
        well = s.hidden >= LITTLE_HIDDEN
        found.append(Told(
            "good" if well else "info",
            f"{_part(s.hidden, well)} of communication is hidden behind compute.",
            f"What is not hidden takes {words.percent(s.exposed_comm)} of the time.", SECTION,
            None if well else subject.device_time(s.exposed_comm),
        ))  # fmt: skip
    found += idle.told(subject, s.idle)
    found += _uneven(subject)
    return found


def _advice(subject: Subject, s: Spent) -> str:
    """What is known about exposed communication, and what faster transfers would gain."""
    gain = gains.of_links(subject)
    said, share = gain or ("", 0.0)
    helps = share >= gains.LITTLE
    less = "send less" if gains.absent(subject) else "send less, or use faster links"
    if (waiting := collectives.waiting(subject)) and waiting.share > 0.5:
        return (
            f"{waiting.what}: {waiting.why} {'' if helps else 'Balance the ranks, then add bandwidth. '}{said}".strip()
        )
    if s.compute < LITTLE_COMPUTE * s.exposed_comm:
        why, do = "There is almost no compute that could hide it", less
    elif (s.hidden or 0) < LITTLE_HIDDEN:
        why, do = f"{_part(s.hidden or 0)} of all communication overlaps compute", f"overlap more, {less}"
    else:
        why, do = f"Already {words.percent(s.hidden or 0)} of it overlaps compute", less
    return f"{why}{f': {do}' if helps else ''}. {said}".strip()


def _part(hidden: float, well: bool = False) -> str:
    if hidden < 0.001:
        return "Hardly any"
    return words.percent(hidden) if well else f"Only {words.percent(hidden)}"


def _uneven(subject: Subject) -> list[Told]:
    rank = subject.breakdown["rank"].to_numpy()
    busy = np.array([v or 0 for v in subject.breakdown["compute_ns"].to_pylist()], float)
    stage = stages(subject.run)
    over = np.full(len(busy), -np.inf)
    for one in np.unique(stage).tolist():  # what stages hold differs by design
        mine = stage == one
        if mine.sum() > 2 and np.median(busy[mine]):  # two ranks have no middle
            over[mine] = busy[mine] / np.median(busy[mine]) - 1
    most = int(over.argmax()) if len(over) else 0
    if not len(over) or over[most] < UNEVEN or int(rank[most]) in subject.suspects:  # stragglers are reported apart
        return []
    middle = float(busy[most] / (1 + over[most]))
    peers = "rank" if not stage.any() else "rank of its stage"
    last, cost = _comes_last(subject, int(rank[most])), round(busy[most] - middle)
    why = f"It computes for {words.time(busy[most])}, the median {peers} for {words.time(middle)}{last}."
    what = f"Rank {rank[most]} computes {words.percent(over[most])} longer than the median {peers}."
    return [Told("warn", what, why, SECTION, cost)]


def _comes_last(subject: Subject, rank: int) -> str:
    """How often others wait for a rank, as recorded."""
    calls = subject.collectives.filter(pc.greater(subject.collectives["ranks_seen"], 1))
    if not len(calls):
        return ""
    times = int((calls["last_rank"].to_numpy(zero_copy_only=False) == rank).sum())
    whole = f"the {words.plural(len(calls), 'collective')} of the run"
    return f"; it arrives last at {times:,} of {whole}" if times else f"; it arrives last at none of {whole}"


def section(subject: Subject) -> PageSection:
    rows = subject.breakdown.to_pylist()
    timed = [row for row in rows if row["span_ns"]]
    if not timed:
        return PageSection(SECTION, "Where the time goes", "", empty="No device activity has a time.")
    shown, left = _chosen(timed)
    parts = pieces(subject)
    drawn = [
        Bar(f"rank {row['rank']}", tuple(BarPiece(s, label, row[key] or 0) for s, label, key in parts)) for row in shown
    ]
    more = paragraph(f"{left:,} ranks between these are only in the table.") if left else ""
    columns = [
        Heading("rank", "rank"), Heading("span_ns", "span", words.time), Heading("compute_ns", parts[0][1], words.time),
        Heading("comm_ns", "communication", words.time), Heading("exposed_comm_ns", "of it exposed", words.time),
        Heading("memory_ns", "memory", words.time), Heading("idle_ns", subject.idling, words.time),
        Heading("overlap_pct", "overlap", lambda v: words.percent(v / 100), meter=100.0),
    ]  # fmt: skip
    columns = [c for c in columns if c.key not in OF_COMMUNICATION or any(row["comm_ns"] for row in rows)]
    used = [(s, label) for s, label, key in parts if any(row[key] for row in rows)]
    body = legend(used) + bars(drawn, words.time) + more
    body += heading("Values") + table("t-breakdown", rows[:2048], columns) + idle.figures(subject)
    lead = Markup(
        "Each bar is one device from its first to its last event. What runs at the same time is counted once: "
        "<b>compute</b> before <b>communication</b> before <b>memory</b>, so the parts add up to the whole."
        if subject.has_device
        else "Each bar is one host from its first to its last operator. Operators that run at the same time are "
        "counted once, so the parts add up to the whole."
    )
    return PageSection(SECTION, "Where the time goes", lead, body)


def _chosen(rows: list[dict[str, int]]) -> tuple[list[dict[str, int]], int]:
    if len(rows) <= BARS:
        return rows, 0
    keep = np.unique(np.linspace(0, len(rows) - 1, BARS).round().astype(int))
    return [rows[i] for i in keep.tolist()], len(rows) - len(keep)
