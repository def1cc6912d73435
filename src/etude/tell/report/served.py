"""The page of a served stream: how long requests waited and for what, and what the replicas did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import F64
from etude.tell.report import words
from etude.tell.report.images import images_page
from etude.tell.report.outcome import OutcomeSubject
from etude.tell.report.words import seconds
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading, joined
from etude.tell.view.page import Figure, Page, PageSection
from etude.tell.view.plots import Axis, fitted, plot
from etude.tell.view.sentences import Sentence, sentence

POINTS: Final = 200
TIMES: Final = (("ttft_s", "First token"), ("tpot_s", "Each further token"), ("latency_s", "Whole response"))
MOMENTS: Final = ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
LATENCY: Final = "requests.finish_s - requests.arrival_s"
PARTS: Final = (("idle", "in the queue"), ("memory", "prefill"), ("compute", "decode"))


def served_page(record: dict[str, Any], tables: dict[str, pa.Table], *, title: str, made_by: str = "Etude") -> Page:
    """`record` and tables of `etude serve -o FOLDER`."""
    if "tasks" in tables:
        spreads = spread_of("Whole response", tables["requests"]["latency_s"].to_numpy(), "fraction of the requests")
        return images_page(record, tables, title=title, spreads=spreads, made_by=made_by)
    subject = OutcomeSubject(record, tables)
    requests, passes, replicas = (tables[name] for name in ("requests", "passes", "replicas"))
    return Page(
        title=title,
        subtitle=sentence(
            "{model} on {replicas}, simulated",
            model=subject.figure("text", "asked_model") if record.get("asked", {}).get("model") else "a model",
            replicas=subject.value("plural:replica", "count(replicas)"),
        ),
        verdict=_verdict(subject),
        cards=_cards(subject),
        sections=(*_curve(subject), _spread(requests), _waits(subject), *_runs(passes, replicas)),
        facts=subject.facts(),
        made_by=made_by,
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(subject: OutcomeSubject) -> Sentence:
    return sentence(
        "{requests} answered in {time}: first tokens after {middle} at p50 and {late} at p99.",
        requests=subject.figure("plural:request", "finished"),
        time=subject.figure("seconds", "duration_s"),
        middle=subject.figure("seconds", "ttft_s_p50"),
        late=subject.figure("seconds", "ttft_s_p99"),
    )


def _cards(subject: OutcomeSubject) -> tuple[Figure, ...]:
    record, figure = subject.record, subject.figure
    found = [Figure("Within the limits", figure("percent", "within_limits"), figure("each_second", "goodput_rps"))]
    for key, label in TIMES:
        if record[key]:
            late = sentence("p99 {late}", late=figure("seconds", f"{key}_p99"))
            found.append(Figure(f"{label}, p50", figure("seconds", f"{key}_p50"), late))
    found.append(Figure("Tokens out", figure("number_each_second", "output_tokens_per_s")))
    if record["cache_hit_tokens"]:
        share = subject.value("percent", "record[0].cache_hit_tokens / record[0].prompt_tokens")
        found.append(Figure("Prefix-cache hits", share, "of prompt tokens"))
    if record["energy_j"]:
        idle = subject.value("percent", "record[0].idle_energy_j / record[0].energy_j")
        found.append(Figure("Energy", figure("energy", "energy_j"), sentence("{idle} of it while idle", idle=idle)))
    return tuple(found)


def _times(requests: pa.Table) -> dict[str, F64]:
    arrival, first, finish, output = (
        requests[name].to_numpy().astype(np.float64) for name in ("arrival_s", "first_token_s", "finish_s", "output")
    )
    tpot = (finish - first)[output > 1] / (output[output > 1] - 1)
    if "tpot_s" in requests.column_names:  # of answers with branches from pass to pass
        tpot = requests["tpot_s"].to_numpy()
        tpot = tpot[~np.isnan(tpot)]
    return {"ttft_s": first - arrival, "tpot_s": tpot, "latency_s": finish - arrival}


def spread_of(label: str, values: F64, of: str) -> Markup:
    """A heading, and the cumulative distribution of the values; empty if all are 0."""
    values = values[values > 0]
    if not len(values):
        return Markup()
    part = np.linspace(0.0, 1.0, POINTS + 1)
    at = np.quantile(values, part)
    x = fitted(label.lower(), seconds, [float(at[0]), float(at[-1])], log=True)
    y = Axis(of, words.percent, False, 0.0, 1.0)
    points = [(float(a), float(b)) for a, b in zip(at, part, strict=True)]
    drawn = plot(f"{label}: {of}", x, y, (), [("trend l-compute", "", points)], size=(1080, 260))
    return heading(label) + drawn


def _curve(subject: OutcomeSubject) -> tuple[PageSection, ...]:
    """Curve of a stream served at several rates."""
    record = subject.record
    rates = record.get("rates")
    if not rates:
        return ()
    at = [float(one["rate_rps"]) for one in rates]
    good = [float(one["goodput_rps"]) for one in rates]
    x = fitted("requests per second", _count, [min(at), max(at)], log=False)
    y = fitted("within the limits, per second", _count, [0.0, max(max(good), max(at))], log=False)
    lines = [("trend l-idle", "all", [(a, a) for a in at]), ("trend l-compute", "", list(zip(at, good, strict=True)))]
    body = heading("Goodput") + plot("Goodput against rate", x, y, (), lines, size=(1080, 260))
    for key, label in TIMES[:2]:
        late = [(float(one["rate_rps"]), one[key]) for one in rates if one.get(key)]
        if late:
            highest = max(times["p99"] for _, times in late)
            drawn = [
                (f"trend l-{sort}", name, [(rate, float(times[name])) for rate, times in late])
                for name, sort in (("p50", "compute"), ("p99", "communication"))
            ]
            axis = fitted(label.lower(), seconds, [0.0, float(highest)], log=False)
            body += heading(f"{label}, median and 99th percentile")
            body += plot(f"{label} against rate", x, axis, (), drawn, size=(1080, 220))
    held = record.get("holds_rps")
    holds = sentence("No rate meets the limits")
    if held:
        most = subject.figure("three_digits", "holds_rps")
        holds = sentence("The limits are met up to {most} per second", most=most)
    lead = sentence(
        "Each point is the whole stream at another rate. {holds}; the rest of the page shows {which}.",
        holds=holds,
        which="that rate" if held else "the lowest",
    )
    return (PageSection("rates", "Goodput against rate", lead, body),)


def _spread(requests: pa.Table) -> PageSection:
    times = _times(requests)
    body = joined(spread_of(label, times[key], "fraction of the requests") for key, label in TIMES)
    return PageSection("times", "Times", "The fraction of the requests that waited no longer, from arrival.", body)


def _waits(subject: OutcomeSubject) -> PageSection:
    slowest = f"requests[{LATENCY} >= quantile({LATENCY}, 0.99)]"
    rows = []
    for name, of in (("all requests", "requests"), ("the slowest 1%", slowest)):
        queries = [f"mean({of}.{until} - {of}.{since})" for since, until in pairwise(MOMENTS)]
        pieces = [BarPiece(s, t, subject.ask(q), query=q) for (s, t), q in zip(PARTS, queries, strict=True)]
        rows.append(Bar(name, tuple(pieces)))
    lead = "Mean times until the first pass, until the first token, and until the last token."
    return PageSection("waits", "What requests waited for", lead, legend(PARTS) + bars(rows, seconds))


def _runs(passes: pa.Table, replicas: pa.Table) -> tuple[PageSection, ...]:
    return _over_time(passes, replicas), _replicas(replicas)


def _over_time(passes: pa.Table, replicas: pa.Table) -> PageSection:
    start, end = (passes[name].to_numpy() for name in ("start_ns", "end_ns"))
    edges = np.linspace(0, float(end.max()), POINTS + 1)
    bin_of = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, POINTS - 1)
    room = max(float(replicas["blocks"].to_numpy()[0]), 1.0)
    shown = (
        ("Decoding sequences per pass", passes["decode"].to_numpy(), _count, "compute"),
        ("Prompt tokens per pass", passes["prompt_tokens"].to_numpy(), _count, "memory"),
        ("Blocks in use", passes["blocks"].to_numpy() / room, words.percent, "communication"),
        ("Requests waiting at a replica", passes["waiting"].to_numpy(), _count, "idle"),
    )
    weight = (end - start).astype(np.float64)
    total = np.bincount(bin_of, weight, POINTS)
    body = Markup()
    for label, values, show, sort in shown:
        mean = np.bincount(bin_of, weight * values, POINTS) / np.maximum(total, 1.0)
        if not mean.max():
            body += heading(label) + Markup("<p>None at any time.</p>")
            continue
        points = _steps(edges, mean)
        y = fitted("mean", show, [float(mean.max())], log=False)
        x = Axis("time", words.time, False, 0.0, float(edges[-1]))
        body += heading(label) + plot(label, x, y, (), [(f"trend l-{sort}", "", points)], size=(1080, 200))
    return PageSection(
        "time", "Over time", "Means over the passes that start in each part of the run, by their time.", body
    )


def _steps(edges: F64, mean: F64) -> Sequence[tuple[float, float]]:
    return [(float(e), float(m)) for a, b, m in zip(edges[:-1], edges[1:], mean, strict=True) for e in (a, b)]


def _replicas(replicas: pa.Table) -> PageSection:
    columns = [
        Heading("replica", "replica"), Heading("requests", "requests", words.number),
        Heading("passes", "passes", words.number), Heading("busy_s", "busy", seconds),
        Heading("tokens_out", "tokens out", words.number), Heading("peak_blocks", "peak blocks", words.number),
        Heading("preemptions", "preemptions", words.number),
        Heading("cache_hit_tokens", "tokens found", words.number),
    ]  # fmt: skip
    return PageSection(
        "replicas", "Replicas", "", table("replica-table", replicas.to_pylist(), columns, first=16, query="replicas")
    )
