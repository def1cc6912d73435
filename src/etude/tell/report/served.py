"""The page of a served stream: how long requests waited and for what, and what the replicas did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import F64
from etude.tell.report import words
from etude.tell.report.images import images_page
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading, joined
from etude.tell.view.page import Figure, Page, PageSection
from etude.tell.view.plots import Axis, fitted, plot

POINTS: Final = 200
TIMES: Final = (("ttft_s", "First token"), ("tpot_s", "Each further token"), ("latency_s", "Whole response"))
PARTS: Final = (("idle", "in the queue"), ("memory", "prefill"), ("compute", "decode"))


def served_page(record: dict[str, Any], tables: dict[str, pa.Table], *, title: str, made_by: str = "Etude") -> Page:
    """`record` and tables of `etude serve -o FOLDER`."""
    if "tasks" in tables:
        spreads = spread_of("Whole response", tables["requests"]["latency_s"].to_numpy(), "fraction of the requests")
        return images_page(record, tables, title=title, spreads=spreads, made_by=made_by)
    requests, passes, replicas = (tables[name] for name in ("requests", "passes", "replicas"))
    asked = record.get("asked", {})
    return Page(
        title=title,
        subtitle=f"{asked.get('model', 'a model')} on {words.plural(len(replicas), 'replica')}, simulated",
        verdict=_verdict(record),
        cards=_cards(record),
        sections=(*_curve(record), _spread(requests), _waits(requests), *_runs(passes, replicas)),
        facts=tuple((str(name), str(value)) for name, value in asked.items() if value != ""),
        made_by=made_by,
    )


def seconds(value: float) -> str:
    return words.time(value * 1e9)


def _energy(joules: float) -> str:
    return f"{joules / 3.6e6:.3g} kWh" if joules >= 3.6e5 else f"{joules / 1e3:.3g} kJ"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(record: dict[str, Any]) -> str:
    first = record["ttft_s"]
    return (
        f"{words.plural(record['finished'], 'request')} answered in {seconds(record['duration_s'])}: first tokens "
        f"after {seconds(first['p50'])} at the median and {seconds(first['p99'])} at the 99th percentile."
    )


def _cards(record: dict[str, Any]) -> tuple[Figure, ...]:
    found = [
        Figure("Within the limits", words.percent(record["within_limits"]), f"{record['goodput_rps']:.2f} per second")
    ]
    for key, label in TIMES:
        if record[key]:
            found.append(Figure(f"{label}, p50", seconds(record[key]["p50"]), f"p99 {seconds(record[key]['p99'])}"))
    found.append(Figure("Tokens out", f"{words.number(record['output_tokens_per_s'])} /s"))
    if record["cache_hit_tokens"]:
        share = record["cache_hit_tokens"] / record["prompt_tokens"]
        found.append(Figure("Prefix-cache hits", words.percent(share), "of prompt tokens"))
    if record["energy_j"]:
        idle = words.percent(record["idle_energy_j"] / record["energy_j"])
        found.append(Figure("Energy", _energy(record["energy_j"]), f"{idle} of it while idle"))
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


def _curve(record: dict[str, Any]) -> tuple[PageSection, ...]:
    """Curve of a stream served at several rates."""
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
    holds = f"The limits are met up to {held:.3g} per second" if held else "No rate meets the limits"
    lead = f"Each point is the whole stream at another rate. {holds}; the rest of the page shows "
    lead += "that rate." if held else "the lowest."
    return (PageSection("rates", "Goodput against rate", lead, body),)


def _spread(requests: pa.Table) -> PageSection:
    times = _times(requests)
    body = joined(spread_of(label, times[key], "fraction of the requests") for key, label in TIMES)
    return PageSection("times", "Times", "The fraction of the requests that waited no longer, from arrival.", body)


def _waits(requests: pa.Table) -> PageSection:
    arrival, scheduled, first, finish = (
        requests[name].to_numpy() for name in ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
    )
    parts = np.stack([scheduled - arrival, first - scheduled, finish - first])
    latency = finish - arrival
    slow = latency >= np.quantile(latency, 0.99)
    rows = []
    for name, chosen in (("all requests", np.ones(len(latency), bool)), ("the slowest 1%", slow)):
        means = parts[:, chosen].mean(axis=1)
        pieces = tuple(BarPiece(s, t, float(m)) for (s, t), m in zip(PARTS, means, strict=True))
        rows.append(Bar(name, pieces))
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
    return PageSection("replicas", "Replicas", "", table("replica-table", replicas.to_pylist(), columns, first=16))
