"""Communication: collectives by kind and size, what they reach, who waits for whom."""

from __future__ import annotations

import numpy as np

from etude.analyse.collectives import summarised
from etude.analyse.traffic import traffic_matrix
from etude.reporting import words
from etude.reporting.study import Study
from etude.view.charts import Bar, Column, Mark, Piece, bars, fitted, heat, legend, plot, table
from etude.view.page import Section, Told

MUCH_WAITING = 0.4
"""Share of the time in collectives that is waiting from which a report says so."""
POINTS = 600


def told(study: Study) -> list[Told]:
    transfer, wait = study.collective_times
    if wait < MUCH_WAITING * (wait + transfer) or not wait:
        return []
    return [Told(
        "warn", f"{words.percent(wait / (wait + transfer))} of the time in collectives is waiting for late ranks.",
        f"The transfers take {words.time(transfer)} in all; on average a member waits another {words.time(wait)}. "
        "Faster links would not help with that: look for the rank that comes last.", "communication",
    )]  # fmt: skip


def section(study: Study) -> Section:
    calls = study.collectives
    if not len(calls):
        empty = "No collectives are recorded in this run."
        return Section("communication", "Communication", "", _matrix(study), empty)
    kinds = summarised(calls).to_pylist()
    body = _split(kinds)
    body += f'<div class="two"><div>{_rates(calls.to_pylist())}</div><div>{_matrix(study)}</div></div>'
    columns = [
        Column("collective", "collective", number=False), Column("group_size", "ranks", words.number),
        Column("size_bytes", "size", words.size), Column("calls", "calls", words.number),
        Column("total_transfer_ns", "transfer in all", words.time), Column("median_transfer_ns", "median", words.time),
        Column("total_wait_ns", "waiting in all", words.time), Column("median_skew_ns", "skew", words.time),
        Column("busbw_bytes_per_s", "bus bandwidth", words.rate),
    ]  # fmt: skip
    body += "<h3>By kind and size</h3>" + table("t-collectives", kinds[:500], columns)
    alone = not any((v or 0) > 1 for v in calls["ranks_seen"].to_pylist())
    lead = (
        "Only one member of each collective is here, so waiting for others cannot be told from the transfer itself."
        if alone
        else "A collective ends when all members have come. Its <b>transfer</b> is what the last to come saw; what the "
        "others saw beyond that is <b>waiting</b>, which no faster link would shorten."
    )
    return Section("communication", "Communication", lead, body)


def _matrix(study: Study) -> str:
    if study.job.world_size < 2:
        return ""
    matrix, first = traffic_matrix(study.job)
    if not matrix.any():
        return ""
    last = [*(first[1:] - 1).tolist(), study.job.world_size - 1]
    names = [f"{a}" if a == b else f"{a}–{b}" for a, b in zip(first.tolist(), last, strict=True)]
    lead = '<p class="lead">Row: who sends. Column: who receives. The bytes of a collective are spread evenly.</p>'
    drawn = heat("Bytes between ranks", matrix.tolist(), names, words.size)
    return f"<h3>Who sends to whom</h3>{lead}{drawn}"


def _split(kinds: list[dict[str, int]]) -> str:
    by: dict[str, list[int]] = {}
    for row in kinds:
        entry = by.setdefault(str(row["collective"]), [0, 0])
        entry[0] += row["total_transfer_ns"] or 0
        entry[1] += row["total_wait_ns"] or 0
    drawn = [
        Bar(name.replace("_", "-"), (Piece("communication", "transfer", t), Piece("idle", "waiting", w)))
        for name, (t, w) in sorted(by.items(), key=lambda item: -sum(item[1]))
    ]
    return legend([("communication", "transfer"), ("idle", "waiting for the last member")]) + bars(drawn, words.time)


def _rates(calls: list[dict[str, float]]) -> str:
    known = [c for c in calls if c["busbw_bytes_per_s"] and c["size_bytes"] and c["transfer_ns"]]
    if not known:
        return ""
    step = max(1, len(known) // POINTS)
    most = max(c["transfer_ns"] for c in known)
    marks = [
        Mark(c["size_bytes"], c["busbw_bytes_per_s"], "communication",
             f"{str(c['collective']).replace('_', '-')}, {words.number(c['group_size'])} ranks\n"
             f"{words.size(c['size_bytes'])} in {words.time(c['transfer_ns'])}\n{words.rate(c['busbw_bytes_per_s'])}",
             float(np.clip(c["transfer_ns"] / most, 0.0, 1.0)))
        for c in known[::step]
    ]  # fmt: skip
    x = fitted("bytes of one member", words.size, [m.x for m in marks], log=True)
    y = fitted("bus bandwidth", words.rate, [m.y for m in marks], log=True)
    return "<h3>Bandwidth by size</h3>" + plot(
        "Bus bandwidth of collectives against their size", x, y, marks, size=(520, 330)
    )
