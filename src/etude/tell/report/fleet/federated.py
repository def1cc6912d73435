"""Federated rounds: their durations, their last client, and their participants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.fleet.training import duration
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.page import Figure, PageSection
from etude.tell.view.plots import Axis, Line, fitted, plot

Run = tuple[str, dict[str, Any], dict[str, pa.Table]]
POINTS: Final = 400
LINES: Final = ("compute", "communication", "memory", "host", "other")
ENDED: Final = (("compute", "by the last answer"), ("idle", "by the deadline"))


def federated_verdict(record: dict[str, Any]) -> str:
    each, taken = record["round_s"], record["participation"]
    cut = record["by_deadline"] / record["rounds"]
    ended = f"; the deadline ended {cut:.0%} of them" if cut else ""
    bound = f", {record['of_bound']:.1%} of the max-flow bound" if record.get("of_bound") else ""
    return (
        f"{words.plural(record['rounds'], 'round')} of {duration(each['mean'])} on average{bound}{ended}; a client "
        f"participated in {taken['min']:,} to {taken['max']:,} of them."
    )


def federated_cards(record: dict[str, Any]) -> tuple[Figure, ...]:
    each, taken = record["round_s"], record["participation"]
    found = [
        Figure("A round, mean", duration(each["mean"]), f"p99 {duration(each['p99'])}", "compute"),
        Figure("Answers accepted", f"{record['answered']:,}", f"{record['drawn']:,} clients asked"),
        Figure("Rounds per client", f"{taken['mean']:,.1f}", f"variance {taken['variance']:,.1f}"),
        Figure("Sent", words.size(record["down_bytes"] + record["up_bytes"]), "down and up", "communication"),
    ]
    if record["share"] < 1:
        found.append(Figure("Trained per client", f"{record['share']:.1%}", "of the weights"))
    if record["label_coverage"] is not None:
        found.append(Figure("Labels per round", f"{record['label_coverage']:.1%}"))
    if record["warmup_share"]:
        found.append(Figure("Warm-up", f"{record['warmup_share']:.1%}", "of a round"))
    return tuple(found)


def federated_sections(runs: Sequence[Run]) -> list[PageSection]:
    """The first run in full; rounds of all of them side by side."""
    tables = runs[0][2]
    found = [_rounds(runs), _ended(runs), _clients(runs)]
    last = tables["rounds"].group_by("last").aggregate([("round", "count")])
    rows = [row for row in last.sort_by([("round_count", "descending")]).to_pylist() if row["last"] is not None]
    if rows and len(tables["clients"]) > 1:
        columns = [Heading("last", "client", str, number=False), Heading("round_count", "rounds", words.number)]
        lead = "Clients whose answer was the last one that a round waited for."
        found.append(
            PageSection(
                "last", "Clients that ended the rounds", lead, table("last-table", rows[:50], columns, first=12)
            )
        )
    return found


def _rounds(runs: Sequence[Run]) -> PageSection:
    lines: list[Line] = []
    longest, most = 0.0, 1
    for number, (name, _, tables) in enumerate(runs[: len(LINES)]):
        rounds = tables["rounds"]
        took = rounds["end_s"].to_numpy() - rounds["start_s"].to_numpy()
        at = np.unique(np.linspace(0, len(took) - 1, POINTS).astype(np.int64))
        lines.append(
            (f"trend l-{LINES[number]}", name if len(runs) > 1 else "", [(float(k), float(took[k])) for k in at])
        )
        longest, most = max(longest, float(took.max())), max(most, len(took) - 1)
    x = Axis("round", words.number, False, 0.0, float(most))
    y = fitted("length", duration, [longest], log=False)
    body = plot("length of rounds", x, y, (), lines, size=(1080, 260))
    return PageSection("rounds", "Rounds", "Duration of each round; some are left out if there are very many.", body)


def _ended(runs: Sequence[Run]) -> PageSection:
    rows = []
    for name, record, _ in runs:
        cut = record["by_deadline"]
        pieces = [
            BarPiece(*sort, value) for sort, value in zip(ENDED, (record["rounds"] - cut, cut), strict=True) if value
        ]
        late = record["drawn"] - record["answered"]
        rows.append(Bar(name, tuple(pieces), f"{late:,} answers were late or missing"))
    return PageSection("ended", "What ended them", "", legend(list(ENDED)) + bars(rows, lambda n: f"{n:,.0f} rounds"))


def _clients(runs: Sequence[Run]) -> PageSection:
    part, lines, most = np.linspace(0.0, 1.0, 101), [], 1.0
    for number, (name, _, tables) in enumerate(runs[: len(LINES)]):
        at = np.quantile(tables["clients"]["taken"].to_numpy(), part)
        points = [(float(a), float(b)) for a, b in zip(at, part, strict=True)]
        lines.append((f"trend l-{LINES[number]}", name if len(runs) > 1 else "", points))
        most = max(most, float(at[-1]))
    x = fitted("rounds in which a client participated, at most", words.number, [most], log=False)
    y = Axis("fraction of the clients", words.percent, False, 0.0, 1.0)
    body = plot("rounds per client", x, y, (), lines, size=(1080, 260))
    clients = runs[0][2]["clients"]
    order = np.argsort(clients["taken"].to_numpy(), kind="stable")
    rows = clients.take(pa.array(order[:200])).to_pylist()
    columns = [
        Heading("name", "client", str, number=False), Heading("step_s", "step", duration),
        Heading("down_bytes_per_s", "down", words.rate), Heading("up_bytes_per_s", "up", words.rate),
        Heading("share", "trains", words.percent), Heading("there", "rounds available", words.number),
        Heading("drawn", "asked", words.number), Heading("taken", "taken", words.number),
    ]  # fmt: skip
    lead = "Number of rounds in which each client participated, lowest first."
    return PageSection("clients", "Participation", lead, body + table("client-table", rows, columns, first=12))
