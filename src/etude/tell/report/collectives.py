"""Communication: collectives by kind and size, their bandwidth, who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from etude.analyse.collectives import summarised
from etude.analyse.operations import messages
from etude.analyse.traffic import traffic_matrix
from etude.model.schema import UNKNOWN
from etude.tell.report import gains, words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading, paragraph
from etude.tell.view.page import PageSection, Told
from etude.tell.view.plots import PlotPoint, fitted, heat, plot

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
    what: str
    why: str


def waiting(subject: Subject) -> Waiting | None:
    """How much of the collectives is waiting, and for whom; None if no wait is visible."""
    whole, wait = subject.waiting
    if not wait:
        return None
    share = wait / whole
    why = f"a rank is in collectives for {words.time(whole)} and waits for {words.time(wait)} of that, on average."
    what = f"{words.percent(share)} of the time in collectives is waiting for late ranks"
    return Waiting(share, what, f"{why}{_last(subject)}")


def _last(subject: Subject) -> str:
    """` Rank 5 arrives last at 92% of them, 3.1 ms after the first.` if one is last much more often than chance."""
    calls = subject.collectives.filter(pc.greater(subject.collectives["ranks_seen"], 1))
    last = calls["last_rank"].to_numpy(zero_copy_only=False)
    skew = calls["skew_ns"].to_numpy(zero_copy_only=False).astype(np.float64)
    if len(last) < FEW_CALLS:
        return Markup()
    ranks, times = np.unique(last, return_counts=True)
    rank, often = int(ranks[times.argmax()]), int(times.max()) / len(last)
    if often < max(MOSTLY, 2.0 / len(subject.run.job)):
        return Markup()
    late = float(np.median(skew[last == rank]))
    return f" Rank {rank} arrives last at {words.percent(often)} of them, {words.time(late)} after the first."


def told(subject: Subject) -> list[Told]:
    found = waiting(subject)
    if found is None or found.share < MUCH_WAITING or subject.exposed_share >= TOLD_AS_EXPOSED:
        return []
    gain = gains.of_links(subject)
    said = f" {gain[0]}" if gain else ""
    return [Told("warn", f"{found.what}.", f"{found.why[:1].upper()}{found.why[1:]}{said}", SECTION, _seen_ns(subject))]


def _seen_ns(subject: Subject) -> int:
    """What waiting costs at most: what work hides of it costs nothing."""
    return min(subject.waiting[1], subject.device_time(subject.exposed_share))


def section(subject: Subject) -> PageSection:
    calls = subject.collectives
    if not len(calls):
        empty = "No collectives and no messages are recorded in this run."
        return PageSection(SECTION, "Communication", "", _matrix(subject) + _messages(subject), empty)
    kinds = summarised(calls).to_pylist()
    body = _split(kinds, [("communication", "transfer"), ("idle", "waiting for the last member")])
    body += Markup(f'<div class="two"><div>{_rates(calls.to_pylist())}</div><div>{_matrix(subject)}</div></div>')
    columns = [
        Heading("collective", "collective", _name, number=False), Heading("group_size", "ranks", words.number),
        Heading("size_bytes", "size", words.size), Heading("calls", "calls", words.number),
        Heading("total_transfer_ns", "total transfer", words.time),
        Heading("median_transfer_ns", "median", words.time), Heading("total_wait_ns", "total waiting", words.time),
        Heading("median_skew_ns", "skew", words.time),
        Heading("busbw_bytes_per_s", "bus bandwidth", lambda v: words.rate(v) if v else "–"),
    ]  # fmt: skip
    alone = not any((v or 0) > 1 for v in calls["ranks_seen"].to_pylist())
    if alone:
        columns = [c for c in columns if c.key not in ("total_wait_ns", "median_skew_ns")]
    body += heading("By kind and size") + table("t-collectives", kinds[:500], columns) + _messages(subject)
    lead = Markup(
        "Only one member of each collective is present, so waiting cannot be separated from the transfer itself."
        if alone
        else "A collective starts when all members have arrived. Its <b>transfer</b> time is that of the last member "
        "to arrive; the additional time of the others is <b>waiting</b>, which a faster link would not shorten."
    )
    return PageSection(SECTION, "Communication", lead, body)


def _name(collective: str) -> str:
    return collective.replace("_", "-")


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
    sent = messages(subject.run.job)
    if not len(sent.src_at):
        return Markup()
    blocks = [subject.run.timing.block(at) for at in range(len(subject.run.job))]
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for a, i, b, j, size in zip(sent.src_at.tolist(), sent.src_row.tolist(), sent.dst_at.tolist(),
                                sent.dst_row.tolist(), sent.size_bytes.tolist(), strict=True):  # fmt: skip
        (start, end), (begin, done) = blocks[a], blocks[b]
        if UNKNOWN not in (start[i], end[i], begin[j], done[j]):
            found.setdefault((a, b), []).append((max(size, 0), int(end[i] - start[i]), int(done[j] - begin[j])))
    ranks = subject.run.job.ranks.tolist()
    rows = []
    for (a, b), all_of in found.items():
        size, send, receive = np.array(all_of, np.int64).T
        rows.append({"from": ranks[a], "to": ranks[b], "count": len(size), "bytes": int(size.sum()),
                     "send_ns": float(np.median(send)), "receive_ns": float(np.median(receive))})  # fmt: skip
    columns = [
        Heading("from", "from rank", words.number), Heading("to", "to rank", words.number),
        Heading("count", "messages", words.number), Heading("bytes", "total bytes", words.size),
        Heading("send_ns", "time per send", words.time), Heading("receive_ns", "time per receive", words.time),
    ]  # fmt: skip
    rows.sort(key=lambda row: (-row["bytes"], row["from"], row["to"]))
    lead = paragraph("Medians, including waiting for the other side.")
    return heading("Messages") + lead + table("t-messages", rows[:500], columns) if rows else Markup()


def _split(kinds: list[dict[str, int]], entries: list[tuple[str, str]]) -> Markup:
    by: dict[str, list[int]] = {}
    for row in kinds:
        entry = by.setdefault(str(row["collective"]), [0, 0])
        entry[0] += row["total_transfer_ns"] or 0
        entry[1] += row["total_wait_ns"] or 0
    drawn = [
        Bar(_name(name), (BarPiece("communication", "transfer", t), BarPiece("idle", "waiting", w)))
        for name, (t, w) in sorted(by.items(), key=lambda item: -sum(item[1]))
    ]
    waits = any(wait for _, wait in by.values())
    return legend(entries if waits else entries[:1]) + bars(drawn, words.time)


def _rates(calls: list[dict[str, float]]) -> Markup:
    known = [c for c in calls if c["busbw_bytes_per_s"] and c["size_bytes"] and c["transfer_ns"]]
    if not known:
        return Markup()
    step = max(1, len(known) // POINTS)
    most = max(c["transfer_ns"] for c in known)
    marks = [
        PlotPoint(c["size_bytes"], c["busbw_bytes_per_s"], "communication",
             f"{_name(str(c['collective']))}, {words.number(c['group_size'])} ranks\n"
             f"{words.size(c['size_bytes'])} in {words.time(c['transfer_ns'])}\n{words.rate(c['busbw_bytes_per_s'])}",
             float(np.clip(c["transfer_ns"] / most, 0.0, 1.0)))
        for c in known[::step]
    ]  # fmt: skip
    x = fitted("bytes per member", words.size, [m.x for m in marks], log=True)
    y = fitted("bus bandwidth", words.rate, [m.y for m in marks], log=True)
    return heading("Bandwidth by size") + plot(
        "Bus bandwidth of collectives against their size", x, y, marks, size=(520, 330)
    )
