"""Stragglers: the ranks that delay the others."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from etude.tell.report import words
from etude.tell.report.subject import SUSPECTS, Subject
from etude.tell.view.charts import Heading, table
from etude.tell.view.page import PageSection, Told

SECTION = "stragglers"

SAID = {
    "slow_rank": "slow device", "slow_link": "slow link", "late_host": "late host",
    "missing_participant": "missing participant", "desync": "ranks disagree", "stalled_collective": "collective hangs",
}  # fmt: skip
MATTERS = 0.01
"""Share of a rank's time from which a slow device is a problem."""


def told(subject: Subject) -> list[Told]:
    found = []
    rows = subject.stragglers.to_pylist()
    for row in rows[:SUSPECTS]:
        sure = f"confidence {words.percent(row['confidence'])}"
        evidence = f"{row['evidence'][:1].upper()}{row['evidence'][1:]} ({sure})."
        costs = _costs(subject, row)
        tone = "bad" if costs is None or costs >= MATTERS else "info"
        little = "" if tone == "bad" else f" That is {words.percent(costs or 0)} of its time."
        found.append(Told(tone, _headline(row), evidence + little, SECTION, _gain(subject, row, costs)))
    if len(rows) > SUSPECTS:
        found.append(Told("warn", f"{words.plural(len(rows) - SUSPECTS, 'more straggler')} found.", "", SECTION))
    return found


def _costs(subject: Subject, row: dict[str, Any]) -> float | None:
    """Share of the rank's time lost to a slow device; None if that is not its cost."""
    if row["kind"] != "slow_rank" or row["slowdown_pct"] is None:
        return None
    mine = subject.breakdown.filter(pc.equal(subject.breakdown["rank"], row["rank"])).to_pylist()
    if not mine or not mine[0]["span_ns"]:
        return None
    return float((1 - 1 / (1 + row["slowdown_pct"] / 100)) * mine[0]["compute_ns"] / mine[0]["span_ns"])


KINDS = {"slow_rank": "compute", "late_host": "host", "slow_link": "communication"}
"""What is slow, in the terms of the critical path."""


def _gain(subject: Subject, row: dict[str, Any], costs: float | None) -> int | None:
    """How much shorter the run is, in ns, if the slow rank were as fast as its peers; None if none is slow."""
    if row["kind"] not in KINDS or not row["slowdown_pct"]:
        return None
    part = 1 - 1 / (1 + row["slowdown_pct"] / 100)
    gain = subject.gain(KINDS[row["kind"]], part=part, rank=row["rank"] if row["rank"] >= 0 else None)
    return round((costs or 0.0) * subject.span_ns) if gain is None else gain


def _headline(row: dict[str, Any]) -> str:
    many = row["ranks"] or ([row["rank"]] if row["rank"] >= 0 else [])
    ranks = (
        "all ranks"
        if not many
        else f"rank {many[0]}"
        if len(many) == 1
        else f"ranks {words.named([str(r) for r in many], 4)}"
    )
    if row["kind"] == "missing_participant":
        return f"{ranks.capitalize()} did not reach a collective."
    if row["kind"] == "desync":
        return f"{ranks.capitalize()} {'do' if len(many) > 1 else 'does'} not make the same calls as the others."
    if row["kind"] == "stalled_collective":
        return f"{ranks.capitalize()} are in a collective that does not complete."
    who = {"slow_rank": ranks.capitalize(), "slow_link": f"The link of {ranks}", "late_host": f"The host of {ranks}"}
    slower = row["slowdown_pct"] or 0
    much = f"{words.times(1 + slower / 100)} as long as" if slower >= 100 else f"{slower:.0f}% longer than"
    when = {"acute": ", during part of the run", "chronic": ", during the whole run"}.get(row["pattern"], "")
    return f"{who.get(row['kind'], ranks.capitalize())} takes {much} its peers{when}."


def section(subject: Subject) -> PageSection:
    if len(subject.run.job) < 2:
        return PageSection(
            SECTION,
            "Stragglers",
            "",
            empty="A single rank waits for no other. Give the traces of all ranks to see which one delays the others.",
        )
    rows = subject.stragglers.to_pylist()
    if not rows:
        return PageSection(
            SECTION, "Stragglers", "", empty="No rank, link or host delays the others, and no rank is missing."
        )
    columns = [
        Heading("rank", "rank"), Heading("kind", "what", lambda k: SAID.get(k, k), number=False),
        Heading("slowdown_pct", "slower by", lambda v: f"{v:.1f}%"), Heading("pattern", "when", number=False),
        Heading("since", "since", words.number), Heading("confidence", "confidence", words.percent, meter=1.0),
        Heading("evidence", "evidence", number=False),
    ]  # fmt: skip
    lead = "Kernels are compared with the same kernels of other ranks, so a rank that waits is not reported as slow."
    return PageSection(SECTION, "Stragglers", lead, table("t-stragglers", rows, columns))
