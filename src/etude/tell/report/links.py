"""Links of a simulated network over time, and the tails of what they carried; from `etude simulate --link-stats`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Heading, table
from etude.tell.view.heat import heat_over_time
from etude.tell.view.markup import Markup, heading, paragraph
from etude.tell.view.page import PageSection
from etude.tell.view.sentences import sentence

SECTION = "links"
ROWS, INTERVALS = 24, 64
"""Links and intervals of a picture."""


def section(subject: Subject) -> PageSection:
    sums, links = subject.table("link_sums"), subject.links["links"]
    queues = "queue_bytes" in links.column_names
    few = sums["link"].to_pylist()[:ROWS]
    lead = sentence(
        "{count} carried something. The pictures have the {few} {which}; darker is more.",
        count=subject.plural("link", "count(link_sums)"),
        few=words.number(len(few)),
        which="with the longest queues" if queues else "that were in use for longest",
    )
    body = _picture("Share of the time in use", links, few, "utilisation", words.percent, 1.0)
    if queues:
        body += _picture("Longest queue", links, few, "most_queue_bytes", words.size)
        if any(sums["paused"].to_pylist()):
            body += _picture("Share of the time paused", links, few, "paused", words.percent, 1.0)
    columns = [Heading("link", "link", number=False, code=True), Heading("utilisation", "in use", words.percent)]
    if queues:
        columns += [
            Heading("most_queue_bytes", "longest queue", words.size),
            Heading("queue_bytes", "mean", words.size),
            Heading("pauses", "pauses", words.number),
            Heading("paused", "paused", words.percent),
            Heading("marks", "marks", words.number),
            Heading("cut", "cut", words.number),
            Heading("dropped", "dropped", words.number),
        ]
    body += heading("By link") + table("t-links", sums.to_pylist()[:500], columns, query="link_sums")
    return PageSection(SECTION, "Links over time", lead, body + _tails(subject))


def _picture(
    label: str, links: pa.Table, few: list[str], column: str, show: Callable[[float], str], most: float = 0.0
) -> Markup:
    names = links["link"].to_numpy(zero_copy_only=False)
    values, begin, end = (links[name].to_numpy() for name in (column, "from_ns", "to_ns"))
    rows, edges = [], np.zeros(1)
    for name in few:
        mine = names == name
        edges = np.append(begin[mine], end[mine][-1:])
        step = -(-len(edges) // INTERVALS)
        rows.append((name, np.maximum.reduceat(values[mine], np.arange(0, mine.sum(), step)).tolist()))
        edges = np.append(edges[:-1][::step], edges[-1])
    return heading(label) + heat_over_time(label, rows, edges.tolist(), words.time, show, most)


def _tails(subject: Subject) -> Markup:
    columns = [
        Heading("of", "of", number=False),
        Heading("what", "what", words.hyphenated_name, number=False),
        Heading("size_bytes", "size", words.size),
        Heading("count", "count", words.number),
        Heading("p50_ns", "median", words.time),
        Heading("p90_ns", "90%", words.time),
        Heading("p99_ns", "99%", words.time),
        Heading("longest_ns", "longest", words.time),
    ]
    lead = paragraph("An operation lasts from when its last member came; transfers are the messages it is made of.")
    rows = subject.table("tails").to_pylist()
    return heading("How long operations and transfers took") + lead + table("t-tails", rows, columns, query="tails")
