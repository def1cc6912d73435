"""Where the time goes: the device's time by activity, rank by rank, and the findings from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.analyse.late_hosts import stages
from etude.tell.report import collectives, gains, idle, words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading, paragraph
from etude.tell.view.page import Figure, PageSection, Told
from etude.tell.view.sentences import Sentence, html_of, sentence

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


SHARE = "sum(breakdown.{column}) / sum(breakdown.span_ns)"
COMPUTE, EXPOSED, MEMORY, IDLE, COMM = (
    SHARE.format(column=f"{name}_ns") for name in ("compute", "exposed_comm", "exposed_memory", "idle", "comm")
)
HIDDEN = "1 - sum(breakdown.exposed_comm_ns) / sum(breakdown.comm_ns)"
MEAN_OF_RANKS = "{share} * mean(breakdown[breakdown.span_ns > 0].span_ns)"
"""A share of the devices' time as ns of the run: for an average rank."""


def pieces(subject: Subject) -> tuple[tuple[str, str, str], ...]:
    """The parts with their colours and names; on a host with names for a host."""
    on_host = {"compute": "in operators", "idle": subject.idling}
    return PIECES if subject.has_device else tuple((s, on_host.get(label, label), key) for s, label, key in PIECES)


def cards(subject: Subject) -> list[Figure]:
    s = spent(subject)
    if not any(subject.breakdown["span_ns"].to_pylist()):
        return []
    found = [Figure(subject.computing.capitalize(), subject.percent(COMPUTE), f"of {subject.whose} time", "compute")]
    if s.hidden is not None:
        hides = sentence("{share} of communication is hidden", share=subject.percent(HIDDEN))
        found.append(Figure("Waiting for communication", subject.percent(EXPOSED), hides, "communication"))
    if s.memory >= 0.001:
        found.append(Figure("Copying memory", subject.percent(MEMORY), "with nothing else running", "memory"))
    note = "nothing runs on the device" if subject.has_device else "Python, autograd, hooks"
    found.append(Figure(subject.idling.capitalize(), subject.percent(IDLE), note, "idle"))
    return found


def told(subject: Subject) -> list[Told]:
    s, found = spent(subject), []
    if s.exposed_comm >= MUCH_COMMUNICATION:
        tone = "bad" if s.exposed_comm >= 2 * MUCH_COMMUNICATION else "warn"
        what = sentence(
            "{share} of {whose} time goes to communication that no compute hides.",
            share=subject.percent(EXPOSED),
            whose=subject.whose,
        )
        cost = subject.device_time(s.exposed_comm)
        found.append(Told(tone, what, _advice(subject, s), SECTION, cost, asked=MEAN_OF_RANKS.format(share=EXPOSED)))
    elif s.hidden is not None and s.comm >= SOME_COMMUNICATION:
        well = s.hidden >= LITTLE_HIDDEN
        found.append(
            Told(
                "good" if well else "info",
                sentence("{part} of communication is hidden behind compute.", part=_part(subject, s.hidden, well)),
                sentence("What is not hidden takes {share} of the time.", share=subject.percent(EXPOSED)),
                SECTION,
                None if well else subject.device_time(s.exposed_comm),
                asked=MEAN_OF_RANKS.format(share=EXPOSED),
            )
        )
    found += idle.told(subject, s.idle)
    found += _uneven(subject)
    found += _left_out(subject)
    return found


def _left_out(subject: Subject) -> list[Told]:
    """Work that is on the timeline and in none of the sums."""
    left = subject.table("not_counted")
    if not len(left):
        return []
    what = sentence(
        "Work of the {noun} that was launched before the recording began is not counted: {time} in {pieces}.",
        noun=subject.noun,
        time=subject.time("sum(not_counted.time_ns)"),
        pieces=subject.plural("piece", "sum(not_counted.count)"),
    )
    why = (
        "It belongs to an earlier step. The timeline and the critical path show it; all other figures are of what was "
        "launched in the recording."
    )
    return [Told("info", what, why, "timeline")]


def _advice(subject: Subject, s: Spent) -> Sentence:
    """What is known about exposed communication, and what faster transfers would gain."""
    gain = gains.of_links(subject)
    helped, share = gain or ("", 0.0)
    helps = share >= gains.LITTLE
    less = "send less" if gains.absent(subject) else "send less, or use faster links"
    if (waiting := collectives.waiting(subject)) and waiting.share > 0.5:
        balance = "" if helps else "Balance the ranks, then add bandwidth. "
        return sentence(
            "{what}: {why} {balance}{helped}", what=waiting.what, why=waiting.why, balance=balance, helped=helped
        )
    if s.compute < LITTLE_COMPUTE * s.exposed_comm:
        why, do = sentence("There is almost no compute that could hide it"), less
    elif (s.hidden or 0) < LITTLE_HIDDEN:
        part = _part(subject, s.hidden or 0)
        why, do = sentence("{part} of all communication overlaps compute", part=part), f"overlap more, {less}"
    else:
        why, do = sentence("Already {share} of it overlaps compute", share=subject.percent(HIDDEN)), less
    return sentence("{why}{do}. {helped}", why=why, do=f": {do}" if helps else "", helped=helped)


def _part(subject: Subject, hidden: float, well: bool = False) -> Sentence:
    if hidden < 0.001:
        return sentence("Hardly any")
    share = subject.percent(HIDDEN)
    return share if well else sentence("Only {share}", share=share)


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
    peers = "rank" if not stage.any() else "rank of its stage"
    his, middle = f"breakdown[{most}].compute_ns", "median(breakdown.compute_ns)"
    if stage.any():
        middle = f"median(stages[stages.stage == {int(stage[most])}].compute_ns)"
    last, cost = _comes_last(subject, int(rank[most])), round(busy[most] - busy[most] / (1 + over[most]))
    why = sentence(
        "It computes for {his}, the median {peers} for {middle}{last}.",
        his=subject.time(his),
        peers=peers,
        middle=subject.time(middle),
        last=last,
    )
    what = sentence(
        "Rank {rank} computes {share} longer than the median {peers}.",
        peers=peers,
        rank=subject.value("label", f"breakdown[{most}].rank"),
        share=subject.percent(f"{his} / {middle} - 1"),
    )
    return [Told("warn", what, why, SECTION, cost, asked=f"{his} - {middle}")]


def _comes_last(subject: Subject, rank: int) -> Sentence:
    """How often others wait for a rank, as recorded."""
    calls = subject.table("met")
    if not len(calls):
        return sentence("")
    times = f"count(met[met.last_rank == {rank}])"
    often = subject.number(times) if subject.ask(times) else sentence("none")
    return sentence(
        "; it arrives last at {times} of the {calls} of the run",
        times=often,
        calls=subject.plural("collective", "count(met)"),
    )


def section(subject: Subject) -> PageSection:
    rows = subject.breakdown.to_pylist()
    timed = [row for row in rows if row["span_ns"]]
    if not timed:
        return PageSection(SECTION, "Where the time goes", "", empty="No device activity has a time.")
    shown, left = _chosen(timed)
    parts = pieces(subject)
    drawn = [
        Bar(f"rank {row['rank']}", tuple(_of_rank(row, s, label, key) for s, label, key in parts)) for row in shown
    ]
    more = Markup()
    if left:
        apart = sentence(
            "{n} ranks between these are only in the table.",
            n=subject.number(f"count(breakdown[breakdown.span_ns > 0]) - {len(shown)}"),
        )
        more = paragraph(html_of(apart))
    columns = [
        Heading("rank", "rank"),
        Heading("span_ns", "span", words.time),
        Heading("compute_ns", parts[0][1], words.time),
        Heading("comm_ns", "communication", words.time),
        Heading("exposed_comm_ns", "of it exposed", words.time),
        Heading("memory_ns", "memory", words.time),
        Heading("idle_ns", subject.idling, words.time),
        Heading("overlap_pct", "overlap", words.percentage, meter=100.0),
    ]
    columns = [c for c in columns if c.key not in OF_COMMUNICATION or any(row["comm_ns"] for row in rows)]
    used = [(s, label) for s, label, key in parts if any(row[key] for row in rows)]
    body = legend(used) + bars(drawn, words.time) + more
    body += heading("Values") + table("t-breakdown", rows[:2048], columns, query="breakdown") + idle.figures(subject)
    lead = Markup(
        "Each bar is one device from its first to its last event. What runs at the same time is counted once: "
        "<b>compute</b> before <b>communication</b> before <b>memory</b>, so the parts add up to the whole."
        if subject.has_device
        else "Each bar is one host from its first to its last operator. Operators that run at the same time are "
        "counted once, so the parts add up to the whole."
    )
    return PageSection(SECTION, "Where the time goes", lead, body)


def _of_rank(row: dict[str, int], sort: str, label: str, key: str) -> BarPiece:
    return BarPiece(sort, label, row[key] or 0, query=f"sum(breakdown[breakdown.rank == {row['rank']}].{key})")


def _chosen(rows: list[dict[str, int]]) -> tuple[list[dict[str, int]], int]:
    if len(rows) <= BARS:
        return rows, 0
    keep = np.unique(np.linspace(0, len(rows) - 1, BARS).round().astype(int))
    return [rows[i] for i in keep.tolist()], len(rows) - len(keep)
