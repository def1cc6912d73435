"""Radio functions and AI services on one set of nodes: who was in time, and what moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.fleet.training import duration
from etude.tell.view.charts import Heading, table
from etude.tell.view.page import Figure, PageSection

Run = tuple[str, dict[str, Any], dict[str, pa.Table]]


def radio_verdict(record: dict[str, Any]) -> str:
    return (
        f"{record['fulfilled']:.1%} on time over all members: {record['radio_fulfilled']:.1%} of the slots and "
        f"{record['ai_fulfilled']:.1%} of the AI requests, with {words.plural(record['moves'], 'move')}."
    )


def radio_cards(record: dict[str, Any]) -> tuple[Figure, ...]:
    return (
        Figure("On time", f"{record['fulfilled']:.1%}", "equal weight per member"),
        Figure("Slots on time", f"{record['radio_fulfilled']:.1%}", f"of {record['slots']:,}"),
        Figure("Requests on time", f"{record['ai_fulfilled']:.1%}", f"of {record['requests']:,}"),
        Figure("Moves", f"{record['moves']:,}", f"of {record['migrate']} each"),
    )


def radio_sections(runs: Sequence[Run]) -> list[PageSection]:
    found, tables = [], runs[0][2]
    if len(runs) > 1:
        rows = [{"run": name, **{key: one[key] for key in PARTS}} for name, one, _ in runs]
        columns = [Heading("run", "run", str, number=False), *(Heading(k, v, _part) for k, v in PARTS.items())]
        found.append(PageSection("beside", "Side by side", "", table("beside-table", rows, columns)))
    columns = [
        Heading("name", "member", str, number=False),
        Heading("kind", "kind", str, number=False),
        Heading("asked", "slots or requests", words.number),
        Heading("fulfilled", "on time", _part),
        Heading("moves", "moves", words.number),
    ]
    found.append(PageSection("members", "Members", "", table("member-table", tables["members"].to_pylist(), columns)))
    columns = [
        Heading("time_s", "at", duration),
        Heading("member", "member", str, number=False),
        Heading("from", "from", str, number=False),
        Heading("to", "to", str, number=False),
    ]
    return [*found, PageSection("moves", "Moves", "", table("move-table", tables["moves"].to_pylist(), columns))]


PARTS = {"fulfilled": "on time", "radio_fulfilled": "slots on time", "ai_fulfilled": "requests on time"}


def _part(value: float) -> str:
    return f"{value:.2%}"
