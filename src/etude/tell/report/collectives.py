"""Communication: collectives by kind and size, their bandwidth, who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.analyse.traffic import traffic_matrix
from etude.tell.report import gains, words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.heat import heat
from etude.tell.view.markup import Markup, heading, paragraph
from etude.tell.view.page import PageSection, Told
from etude.tell.view.plots import PlotPoint, fitted, plot
from etude.tell.view.sentences import Sentence, sentence

SECTION = "collectives"

MUCH_WAITING = 0.4
"""Share of the time in collectives that is waiting from which a report says so."""
POINTS = 600
FEW_CALLS, MOSTLY = 5, 0.5
"""A rank is reported as last if it is so at this share of at least this many collectives."""
TOLD_AS_EXPOSED = 0.15
"""From this share of exposed communication on, another finding covers it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    share: float
    """Share of the time in collectives that is waiting for late members."""
    what: Sentence
    why: Sentence


def waiting(subject: Subject) -> Waiting | None:
    """How much of the collectives is waiting, and for whom; None if no wait is visible."""
    whole, wait = subject.waiting
    if not wait:
        return None
    inside, waited = "waiting[0].in_collectives_ns", "waiting[0].wait_ns"
    why = sentence(
        "a rank is in collectives for {whole} and waits for {wait} of that, on average. {last}",
        whole=subject.time(inside),
        wait=subject.time(waited),
        last=_last(subject),
    )
    share = subject.percent(f"{waited} / {inside}")
    return Waiting(
        wait / whole, sentence("{share} of the time in collectives is waiting for late ranks", share=share), why
    )


def _last(subject: Subject) -> Sentence:
    """` Rank 5 arrives last at 92% of them, 3.1 ms after the first.` if one is last much more often than chance."""
    last = subject.table("met")["last_rank"].to_numpy(zero_copy_only=False)
    if len(last) < FEW_CALLS:
        return sentence("")
    ranks, times = np.unique(last, return_counts=True)
    rank, often = int(ranks[times.argmax()]), int(times.max()) / len(last)
    if often < max(MOSTLY, 2.0 / len(subject.run.job)):
        return sentence("")
    his = f"met[met.last_rank == {rank}]"
    return sentence(
        "Rank {rank} arrives last at {often} of them, {late} after the first.",
        rank=subject.value("label", f"{his}[0].last_rank"),
        often=subject.percent(f"count({his}) / count(met)"),
        late=subject.time(f"median({his}.skew_ns)"),
    )


def told(subject: Subject) -> list[Told]:
    found = waiting(subject)
    if found is None or found.share < MUCH_WAITING or subject.exposed_share >= TOLD_AS_EXPOSED:
        return []
    gain = gains.of_links(subject)
    why = sentence("{why} {gain}", why=found.why.capital(), gain=gain[0] if gain else "")
    return [Told("warn", sentence("{what}.", what=found.what), why, SECTION, _seen_ns(subject), asked=SEEN)]


SEEN = (
    "least(waiting[0].wait_ns, sum(breakdown.exposed_comm_ns) / sum(breakdown.span_ns) * "
    "mean(breakdown[breakdown.span_ns > 0].span_ns))"
)


def _seen_ns(subject: Subject) -> int:
    """What waiting costs at most: what work hides of it costs nothing."""
    return min(subject.waiting[1], subject.device_time(subject.exposed_share))


def section(subject: Subject) -> PageSection:
    calls = subject.collectives
    if not len(calls):
        empty = "No collectives and no messages are recorded in this run."
        return PageSection(SECTION, "Communication", "", _matrix(subject) + _messages(subject), empty)
    kinds = subject.table("collective_kinds").to_pylist()
    body = _split(subject, [("communication", "transfer"), ("idle", "waiting for the last member")])
    body += Markup(f'<div class="two"><div>{_rates(calls.to_pylist())}</div><div>{_matrix(subject)}</div></div>')
    columns = [
        Heading("collective", "collective", words.hyphenated_name, number=False),
        Heading("group_size", "ranks", words.number),
        Heading("size_bytes", "size", words.size),
        Heading("calls", "calls", words.number),
        Heading("total_transfer_ns", "total transfer", words.time),
        Heading("median_transfer_ns", "median", words.time),
        Heading("total_wait_ns", "total waiting", words.time),
        Heading("median_skew_ns", "skew", words.time),
        Heading("busbw_bytes_per_s", "bus bandwidth", words.rate_or_none),
    ]
    alone = not any((v or 0) > 1 for v in calls["ranks_seen"].to_pylist())
    if alone:
        columns = [c for c in columns if c.key not in ("total_wait_ns", "median_skew_ns")]
    body += (
        heading("By kind and size")
        + table("t-collectives", kinds[:500], columns, query="collective_kinds")
        + _messages(subject)
    )
    lead = Markup(
        "Only one member of each collective is present, so waiting cannot be separated from the transfer itself."
        if alone
        else "A collective starts when all members have arrived. Its <b>transfer</b> time is that of the last member "
        "to arrive; the additional time of the others is <b>waiting</b>, which a faster link would not shorten."
    )
    return PageSection(SECTION, "Communication", lead, body)


def _matrix(subject: Subject) -> Markup:
    if subject.run.job.world_size < 2:
        return Markup()
    matrix, first = traffic_matrix(subject.run.job)
    if not matrix.any():
        return Markup()
    last = [*(first[1:] - 1).tolist(), subject.run.job.world_size - 1]
    names = [f"{a}" if a == b else f"{a}–{b}" for a, b in zip(first.tolist(), last, strict=True)]
    lead = paragraph("Rows send, columns receive. The bytes of a collective are spread evenly.")
    drawn = heat("Bytes between ranks", matrix.tolist(), names, words.size)
    return heading("Bytes sent between ranks") + lead + drawn


def _messages(subject: Subject) -> Markup:
    """Sends and receives by pair of ranks, the most bytes first."""
    rows = subject.table("messages").to_pylist()
    columns = [
        Heading("from", "from rank", words.number), Heading("to", "to rank", words.number),
        Heading("count", "messages", words.number), Heading("bytes", "total bytes", words.size),
        Heading("send_ns", "time per send", words.time), Heading("receive_ns", "time per receive", words.time),
    ]  # fmt: skip
    lead = paragraph("Medians, including waiting for the other side.")
    shown = table("t-messages", rows[:500], columns, query="messages")
    return heading("Messages") + lead + shown if rows else Markup()


def _split(subject: Subject, entries: list[tuple[str, str]]) -> Markup:
    rows = subject.table("collective_sums").to_pylist()
    drawn = [
        Bar(
            words.hyphenated_name(row["collective"]),
            tuple(
                BarPiece(sort, label, row[key], query=f"collective_sums[{number}].{key}")
                for sort, label, key in (("communication", "transfer", "transfer_ns"), ("idle", "waiting", "wait_ns"))
            ),
        )
        for number, row in enumerate(rows)
    ]
    waits = any(row["wait_ns"] for row in rows)
    return legend(entries if waits else entries[:1]) + bars(drawn, words.time)


def _rates(calls: list[dict[str, float]]) -> Markup:
    known = [c for c in calls if c["busbw_bytes_per_s"] and c["size_bytes"] and c["transfer_ns"]]
    if not known:
        return Markup()
    step = max(1, len(known) // POINTS)
    most = max(c["transfer_ns"] for c in known)
    marks = [
        PlotPoint(c["size_bytes"], c["busbw_bytes_per_s"], "communication",
             f"{words.hyphenated_name(str(c['collective']))}, {words.number(c['group_size'])} ranks\n"
             f"{words.size(c['size_bytes'])} in {words.time(c['transfer_ns'])}\n{words.rate(c['busbw_bytes_per_s'])}",
             float(np.clip(c["transfer_ns"] / most, 0.0, 1.0)))
        for c in known[::step]
    ]  # fmt: skip
    x = fitted("bytes per member", words.size, [m.x for m in marks], log=True)
    y = fitted("bus bandwidth", words.rate, [m.y for m in marks], log=True)
    return heading("Bandwidth by size") + plot(
        "Bus bandwidth of collectives against their size", x, y, marks, size=(520, 330)
    )
