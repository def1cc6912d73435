"""Requests on a shared device, experts as functions, a serving group of experts: how long, when and for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.fleet.training import duration, hours_section, str_of, unit_of
from etude.tell.report.served import spread_of
from etude.tell.report.words import seconds
from etude.tell.view.charts import Heading, table
from etude.tell.view.markup import Markup, joined
from etude.tell.view.page import Figure, Page, PageSection
from etude.tell.view.plots import Axis, fitted, plot

Run = tuple[str, dict[str, Any], dict[str, pa.Table]]
POINTS: Final = 200
WHAT: Final = {
    "services": "services that share one device in turns",
    "backbone": "tasks on one backbone",
    "functions": "experts as functions",
    "experts": "a serving group of experts",
}


def serving_page(runs: Sequence[Run], *, title: str, facts: tuple[tuple[str, str], ...], made_by: str) -> Page:
    """The first run is shown in full; of several, the hours of all are side by side."""
    _, record, tables = runs[0]
    group = record["kind"] == "experts"
    sections = [hours_section([(name, one) for name, one, _ in runs], trained=False)]
    sections += _group(tables) if group else _requests(tables)
    return Page(
        title=title,
        subtitle=f"{WHAT[record['kind']]}, {duration(record['duration_s'])}, simulated",
        verdict=_group_verdict(record) if group else _verdict(record),
        cards=_group_cards(record) if group else _cards(record),
        sections=tuple(sections),
        facts=facts,
        made_by=made_by,
    )


def _verdict(record: dict[str, Any]) -> str:
    took = record["latency_s"]
    if took is None:
        return "No request arrived."
    told = f"{words.plural(record['requests'], 'request')} took {seconds(took['mean'])} on average"
    if "missed" in record:
        told += f", {record['missed']:.1%} of them too late"
    if "of_full" in record:
        return f"{told}; {record['of_full']:.1%} of the memory of a full model was used."
    return f"{told}; the device was in use for {record['utilisation']:.1%} of the time."


def _cards(record: dict[str, Any]) -> tuple[Figure, ...]:
    found = [Figure("Useful", f"{record['useful_fraction']:.1%}", "of the time", "compute")]
    if took := record["latency_s"]:
        found.append(Figure("Arrival to end, mean", seconds(took["mean"]), f"p99 {seconds(took['p99'])}"))
    if wait := record.get("wait_s"):
        found.append(Figure("Waiting, mean", seconds(wait["mean"]), f"p99 {seconds(wait['p99'])}", "idle"))
    if "missed" in record:
        found.append(Figure("Too late", f"{record['missed']:.1%}", "of the requests"))
    if "hosted" in record:
        found.append(Figure("Tasks that fit", f"{record['hosted']:,}", "by memory"))
    if "cold" in record:
        found.append(Figure("Cold starts", f"{record['cold']:,}", f"of {record['invocations']:,} calls"))
    return tuple(found)


def _requests(tables: dict[str, pa.Table]) -> list[PageSection]:
    requests, jobs = tables["requests"], tables["jobs"]
    spreads = joined(
        spread_of(label, requests[key].to_numpy(), "fraction of the requests")
        for key, label in (("wait_s", "Waiting"), ("latency_s", "Arrival to end"))
        if key in requests.column_names
    )
    known = [
        Heading("name", "", str, number=False),
        Heading("requests", "requests", words.number),
        Heading("missed", "too late", words.percent),
        Heading("latency_s", "mean", seconds),
        Heading("latency_p95_s", "p95", seconds),
    ]
    columns = [heading for heading in known if heading.key in jobs.column_names]
    return [
        _in_flight(requests),
        PageSection("spread", "How long", "The fraction of the requests that took no longer; zero times are left out.",
                spreads, "No request waited."),
        PageSection("jobs", "Per service", "", table("job-table", jobs.to_pylist(), columns, first=32)),
    ]  # fmt: skip


def _in_flight(requests: pa.Table) -> PageSection:
    """Number of requests that had arrived and were not answered."""
    lead = "Requests that had arrived and were not answered yet."
    if not len(requests):
        return PageSection("time", "Over time", lead, empty="No request arrived.")
    came, ended = (np.sort(requests[key].to_numpy()) for key in ("arrival_s", "end_s"))
    at = np.linspace(0.0, float(ended[-1]), POINTS + 1)
    there = (np.searchsorted(came, at, "right") - np.searchsorted(ended, at, "right")).astype(np.float64)
    return PageSection("time", "Over time", lead, _line("requests", at, there, "compute"))


def _line(label: str, at: Any, values: Any, sort: str) -> Markup:
    name, unit = unit_of(float(at[-1]))
    x = Axis("time", str_of(name), False, 0.0, float(at[-1]) / unit)
    y = fitted(label, lambda v: f"{v:,.0f}", [1.0, float(values.max(initial=1.0))], log=False)
    points = list(zip((at / unit).tolist(), values.tolist(), strict=True))
    return plot(label, x, y, (), [(f"trend l-{sort}", "", points)], size=(1080, 260))


def _group_verdict(record: dict[str, Any]) -> str:
    return (
        f"{record['tokens_per_s']:,.0f} tokens per second of {record['planned_tokens_per_s']:,.0f} with all "
        f"{record['ranks']:,} ranks; {words.plural(record['interruptions'], 'failure')}, and "
        f"{duration(record['down_s'])} without tokens."
    )


def _group_cards(record: dict[str, Any]) -> tuple[Figure, ...]:
    return (
        Figure("Useful", f"{record['useful_fraction']:.1%}", "of the time", "compute"),
        Figure("Tokens", f"{record['tokens_per_s']:,.0f} /s", f"{record['planned_tokens_per_s']:,.0f} with all ranks"),
        Figure("Failures", f"{record['interruptions']:,}", f"{duration(record['down_s'])} without tokens"),
    )


def _group(tables: dict[str, pa.Table]) -> list[PageSection]:
    states, events = tables["states"], tables["events"]
    start, end, rate = (states[key].to_numpy() for key in ("start_s", "end_s", "tokens_per_s"))
    at = np.stack([start, end], axis=1).ravel()
    found = [
        PageSection(
            "rate",
            "Tokens per second",
            "One value per interval.",
            _line("tokens per second", at, np.repeat(rate, 2), "compute"),
        ),
    ]
    columns = [
        Heading("at_s", "at", duration),
        Heading("why", "why", str, number=False),
        Heading("pause_s", "time without tokens", duration),
        Heading("experts", "experts lost", words.number),
        Heading("again_s", "back at 95% after", duration),
    ]
    if len(events):
        found.append(PageSection("pauses", "Pauses", "", table("pause-table", events.to_pylist(), columns)))
    return found
