"""Stragglers: the ranks that delay the others."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from etude.tell.report import words
from etude.tell.report.subject import SUSPECTS, Subject
from etude.tell.view.charts import Heading, table
from etude.tell.view.page import PageSection, Told
from etude.tell.view.sentences import Sentence, sentence, series

SECTION = "stragglers"

SAID = {
    "slow_rank": "slow device", "slow_link": "slow link", "late_host": "late host",
    "missing_participant": "missing participant", "desync": "ranks disagree", "stalled_collective": "collective hangs",
}  # fmt: skip
MATTERS = 0.01
"""Share of a rank's time from which a slow device is a problem."""


PART = "(1 - 1 / (1 + {here}.slowdown_pct / 100))"
MINE = "breakdown[breakdown.rank == {here}.rank][0]"
OF_TIME = f"{PART} * {MINE}.compute_ns / {MINE}.span_ns"


def told(subject: Subject) -> list[Told]:
    found = []
    rows = subject.stragglers.to_pylist()
    causes = _causes(rows)
    for at in causes[:SUSPECTS]:
        row, here = rows[at], f"stragglers[{at}]"
        evidence = sentence(
            "{evidence} (confidence {sure}).",
            evidence=subject.value("capital", f"{here}.evidence"),
            sure=subject.percent(f"{here}.confidence"),
        )
        costs = _costs(subject, row)
        tone = "bad" if costs is None or costs >= MATTERS else "info"
        if tone != "bad":
            little = sentence("That is {share} of its time.", share=subject.percent(OF_TIME.format(here=here)))
            evidence = sentence("{evidence} {little}", evidence=evidence, little=little)
        gain = _gain(subject, row, costs)
        asked = "" if gain is None else _asked(subject, at, row)
        found.append(Told(tone, _headline(subject, at, row), evidence, SECTION, gain, asked=asked))
    if len(causes) > SUSPECTS:
        more = subject.plural("more straggler", f"count(stragglers) - {causes[SUSPECTS]}")
        found.append(Told("warn", sentence("{more} found.", more=more), "", SECTION))
    return found


def _causes(rows: list[dict[str, Any]]) -> list[int]:
    """The first row of each finding, before those whose cause was named: a group has a row for each of its ranks."""
    first: dict[tuple[Any, ...], int] = {}
    for at, row in enumerate(rows):
        first.setdefault((row["kind"], row["evidence"], tuple(row["ranks"] or ())), at)
    return list(first.values())


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
    if row["cost_ns"] is not None:
        return int(row["cost_ns"])
    part = 1 - 1 / (1 + row["slowdown_pct"] / 100)
    gain = subject.gain(KINDS[row["kind"]], part=part, rank=row["rank"] if row["rank"] >= 0 else None)
    return round((costs or 0.0) * subject.span_ns) if gain is None else gain


def _asked(subject: Subject, at: int, row: dict[str, Any]) -> str:
    """The expression of `_gain`."""
    here = f"stragglers[{at}]"
    if row["cost_ns"] is not None:
        return f"{here}.cost_ns"
    if subject.retimed is None:
        return f"{OF_TIME.format(here=here)} * run[0].span_ns"
    of = f", rank={here}.rank" if row["rank"] >= 0 else ""
    return f'gain("{KINDS[row["kind"]]}", part={PART.format(here=here)}{of})'


def _headline(subject: Subject, at: int, row: dict[str, Any]) -> Sentence:
    here = f"stragglers[{at}]"
    if row["ranks"]:
        many = [subject.value("label", f"item({here}.ranks, {i})") for i in range(len(row["ranks"]))]
    else:
        many = [subject.value("label", f"{here}.rank")] if row["rank"] >= 0 else []
    left = subject.number(f"count({here}.ranks) - 4") if len(many) > 4 else None
    who = (
        sentence("rank {rank}", rank=many[0])
        if len(many) == 1
        else sentence("ranks {many}", many=series(many[:4], left))
    )
    who = (who if many else sentence("all ranks")).capital()
    if row["kind"] == "missing_participant":
        return sentence("{who} did not reach a collective.", who=who)
    if row["kind"] == "desync":
        do = "do" if len(many) > 1 else "does"
        return sentence("{who} {do} not make the same calls as the others.", who=who, do=do)
    if row["kind"] == "stalled_collective":
        return sentence("{who} are in a collective that does not complete.", who=who)
    return _slow(subject, here, row, who, many=len(many) > 1)


def _slow(subject: Subject, here: str, row: dict[str, Any], who: Sentence, *, many: bool) -> Sentence:
    """Of a rank, a link or a host; a host has no time of its own to be compared, `evidence` says what is."""
    small = Sentence.of(f"{who.parts[0]}".lower(), *who.parts[1:])
    when = {"acute": ", during part of the run", "chronic": ", during the whole run"}.get(row["pattern"], "")
    if row["kind"] == "late_host":
        whose = "The hosts of {who} are late{when}." if many else "The host of {who} is late{when}."
        return sentence(whose, who=small, when=when)
    if row["finding"] == "intermittent":
        return sentence("{who} {be} slow now and then.", who=who, be="are" if many else "is")
    if row["finding"] == "drift":
        return sentence("{who} {become} slower and slower.", who=who, become="become" if many else "becomes")
    link = row["kind"] == "slow_link"
    long = (row["slowdown_pct"] or 0) >= 100
    slower = f"most({here}.slowdown_pct, 0)" if row["slowdown_pct"] is not None else "0"
    return sentence(
        "{whose} {take} {much} {than} {their} peers{when}.",
        whose=sentence("The link of {who}", who=small) if link else who,
        take="take" if many and not link else "takes",
        much=subject.value("multiple" if long else "whole_percentage", slower),
        than="as long as" if long else "longer than",
        their="their" if many and not link else "its",
        when=when,
    )


def _said(kind: str) -> str:
    return SAID.get(kind, kind)


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
        Heading("rank", "rank"), Heading("kind", "what", _said, number=False),
        Heading("slowdown_pct", "slower by", words.one_digit), Heading("pattern", "when", number=False),
        Heading("since", "since", words.number), Heading("confidence", "confidence", words.percent, meter=1.0),
        Heading("evidence", "evidence", number=False),
    ]  # fmt: skip
    lead = "Kernels are compared with the same kernels of other ranks, so a rank that waits is not reported as slow."
    return PageSection(SECTION, "Stragglers", lead, table("t-stragglers", rows, columns, query="stragglers"))
