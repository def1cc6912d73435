"""The critical path: what the end of the run waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.critical_path import by_kind, length_ns
from etude.tell.report import gains, idle, words
from etude.tell.report.breakdown import spent
from etude.tell.report.subject import RUNTIME, WAITS, Subject
from etude.tell.report.tables import BETWEEN
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading
from etude.tell.view.page import PageSection, Told
from etude.tell.view.plots import StripInterval, strip
from etude.tell.view.sentences import Sentence, html_of, sentence, series

SECTION = "critical-path"

SORT = {
    "compute": "compute", "communication": "communication", "memory": "memory", "host": "host", "other": "other",
    "launch": "host", "gap": "idle",
}  # fmt: skip
LABEL = {"host": "host", "launch": "launch", "gap": "unexplained", "other": "other"}
UNNAMED = ("gap", "launch", "host")
"""Kinds without findings about single pieces: the host does many small things."""
LONG, MUCH_ONCE, MUCH_AT_ONCE, FEW_CALLS = 0.3, 0.1, 0.2, 3
STRETCHES = 900
MUCH_UNKNOWN = 0.02
"""Share of the run, or of the device's time, unknown to re-timing, from which the page says so."""
OF_ALL = "{ns} / path_figures[0].whole_ns"
"""Time on the critical path as a share of the run."""


def told(subject: Subject) -> list[Told]:
    path = subject.path
    whole = max(length_ns(path), subject.span_ns, 1)
    kinds = by_kind(path)
    host = kinds.get("host", 0) / whole
    found = _first_use(subject, whole) + _loading(subject, whole)
    waits, at_once = _at_once(subject)
    if host - at_once >= LONG and not found and not _told_as_idle(subject):
        found.append(_host(subject, host, whole))
    found += waits
    top = list(enumerate(subject.path_by_name.slice(0, 8).to_pylist()))
    top = [(at, row) for at, row in top if row["kind"] not in UNNAMED and row["name"] and row["name"] != BETWEEN]
    top = [(at, row) for at, row in top if not row["name"].startswith("ProfilerStep")]
    if top and top[0][1]["share"] >= 0.1:
        found.append(_longest(subject, *top[0]))
    return found


def _longest(subject: Subject, at: int, row: dict[str, Any]) -> Told:
    """The operation with most of the path, and what the run would gain if it were faster."""
    here = f"path_names[{at}]"
    gain, fast = subject.gain(row["kind"], name=row["name"]), sentence("")
    if gain is not None:
        shorter = subject.shorter(f"gain({here}.kind, name={here}.name)")
        fast = sentence("Re-timed with all of it twice as fast, the run is {shorter}.", shorter=shorter)
    why = sentence(
        "{times}, {time} in total. {fast}",
        times=subject.plural("time", f"{here}.count"),
        time=subject.time(f"{here}.time_ns"),
        fast=fast,
    )
    without = subject.gain(row["kind"], name=row["name"], part=1.0)
    cost, asked = row["time_ns"], f"{here}.time_ns"
    if without is not None:
        cost, asked = without, f"gain({here}.kind, name={here}.name, part=1.0)"
    what = sentence(
        "{name} takes {share} of the critical path.",
        name=subject.value("operation", f"{here}.name"),
        share=subject.percent(f"{here}.share"),
    )
    return Told("info", what, why, SECTION, cost, asked=asked)


def _at_once(subject: Subject) -> tuple[list[Told], float]:
    """One call of the host that takes much of the run, such as one that waits for the device; and its share."""
    loads = {name for name, _, _ in subject.first_use}
    for at, row in enumerate(subject.path_by_name.slice(0, 3).to_pylist()):
        name = (row["name"] or "").removesuffix(", itself")
        if row["kind"] == "host" and row["count"] <= FEW_CALLS and row["share"] >= MUCH_AT_ONCE and RUNTIME.match(name):
            if name in loads:
                continue
            here = f"path_names[{at}]"
            what = sentence(
                "{name} takes {share} of the run in one piece.",
                name=subject.value("call", f"{here}.name"),
                share=subject.percent(f"{here}.share"),
            )
            why = sentence(
                "{calls}, {time}, in which the host does nothing else: it waits for the device, or for something "
                "that was not recorded.",
                calls=subject.plural("call", f"{here}.count"),
                time=subject.time(f"{here}.time_ns"),
            )
            told = Told("warn", what, why, SECTION, row["time_ns"], asked=f"{here}.time_ns")
            return [told], row["share"]
    return [], 0.0


def _host(subject: Subject, share: float, whole: int) -> Told:
    """The host is on the path for long: during the whole run, or until the device has its first work."""
    tone, first, ns = "bad" if share >= 2 * LONG else "warn", subject.first_work_ns, round(share * whole)
    pace = gains.pace(subject)
    without = subject.gain("host", part=1.0)
    cost, asked = (ns, "path_figures[0].host_ns") if without is None else (without, 'gain("host", part=1.0)')
    paced = pace.sentence(subject) if pace else sentence("")
    much = subject.percent(OF_ALL.format(ns="path_figures[0].host_ns"))
    if not subject.has_device:
        helps = ": larger batches or torch.compile shorten it" if pace and pace.of_host else ""
        return Told(
            tone,
            sentence("{much} of the critical path is between operators.", much=much),
            sentence("Python, autograd and hooks run there{helps}. {paced}", helps=helps, paced=paced),
            SECTION,
            cost,
            asked=asked,
        )
    calls = [
        (at, r)
        for at, r in enumerate(subject.path_by_name.to_pylist())
        if r["kind"] == "host" and WAITS.search(r["name"] or "")
    ]
    waits = subject.host_waits_ns
    if 2 * waits >= share * whole:
        waited = "host[0].waits_ns"
        return Told(
            tone,
            sentence(
                "The host waits for the device {share} of the run.", share=subject.percent(OF_ALL.format(ns=waited))
            ),
            sentence(
                "Mostly in {name}: copies of pageable memory and synchronisation return when it is done. Pin "
                "memory, copy with non_blocking=True, synchronise less.",
                name=subject.text(f"path_names[{calls[0][0]}].name"),
            ),
            SECTION,
            waits,
            asked=waited,
        )
    if 2 * first >= share * whole:
        begun = "host[0].first_work_ns"
        return Told(
            "info",
            sentence(
                "The first {share} of the run pass before the device has work.",
                share=subject.percent(OF_ALL.format(ns=begun)),
            ),
            sentence(
                "For {time} the critical path runs through the host; record from the first kernel on, or check "
                "what the host does there.",
                time=subject.time(begun),
            ),
            SECTION,
            first,
            asked=begun,
        )
    if pace and pace.of_host:
        return Told(
            tone,
            sentence("The host is the bottleneck: the critical path runs through it for {much} of the run.", much=much),
            sentence("Larger batches, CUDA graphs or torch.compile reduce host time. {paced}", paced=paced),
            SECTION,
            cost,
            asked=asked,
        )
    return Told(
        "info" if pace else tone,
        sentence("The critical path runs through the host for {much} of the run.", much=much),
        paced,
        SECTION,
        cost,
        asked=asked,
    )


def _loading(subject: Subject, whole: int) -> list[Told]:
    share = subject.loading_ns / whole
    if share < MUCH_ONCE:
        return []
    loading = "host[0].loading_ns"
    what = sentence(
        "The run waits for its data loader {share} of the time.", share=subject.percent(OF_ALL.format(ns=loading))
    )
    why = sentence(
        "{time} of the critical path are the next batch being fetched: more workers, prefetching, or less work on "
        "each sample help.",
        time=subject.time(loading),
    )
    return [Told("bad" if share >= LONG else "warn", what, why, SECTION, subject.loading_ns, asked=loading)]


def _first_use(subject: Subject, whole: int) -> list[Told]:
    calls = subject.first_use
    ns = sum(t for _, _, t in calls)
    if ns < MUCH_ONCE * whole:
        return []
    named = [_of_first_use(subject, at, n) for at, (_, n, _) in enumerate(calls[:3])]
    left = subject.number("count(first_use) - 3") if len(calls) > 3 else None
    tone, once = "bad" if ns >= 0.5 * whole else "warn", "sum(first_use.time_ns)"
    what = sentence(
        "{share} of the run is first use of the device, not work.", share=subject.percent(OF_ALL.format(ns=once))
    )
    why = sentence(
        "Runtime calls that load libraries and kernels or set up memory: {calls}. Warm up before recording; "
        "otherwise this report describes a cold start.",
        calls=series(named, left),
    )
    return [Told(tone, what, why, SECTION, ns, asked=once)]


def _of_first_use(subject: Subject, at: int, count: int) -> Sentence:
    here = f"first_use[{at}]"
    calls = sentence(" in {n} calls", n=subject.number(f"{here}.count")) if count > 1 else ""
    return sentence(
        "{name} {time}{gap}{calls}",
        name=subject.text(f"{here}.name"),
        time=subject.time(f"{here}.time_ns"),
        gap=" " if calls else "",
        calls=calls,
    )


def _told_as_idle(subject: Subject) -> bool:
    """Whether a finding about idle devices already says that the host sets the pace."""
    s = spent(subject)
    return s.idle >= idle.MUCH and idle.main_cause(subject)[0] in idle.OF_HOST


def section(subject: Subject) -> PageSection:
    path = subject.path
    kinds = by_kind(path)
    whole = length_ns(path)
    assert sum(kinds.values()) == whole, f"the path's parts are {sum(kinds.values())} ns of {whole} ns"
    pieces = tuple(
        BarPiece(SORT[k], LABEL.get(k, k), v, k == "launch", f"path_figures[0].{k}_ns") for k, v in kinds.items()
    )
    body = legend([(SORT[k], LABEL.get(k, k)) for k in kinds]) + bars([Bar("path", pieces)], words.time)
    body += heading("Over time") + _strip(path, whole)
    rows = subject.table("path_operations").to_pylist()
    columns = [
        Heading("name", "what", words.title, number=False, code=True),
        Heading("kind", "kind", number=False),
        Heading("count", "times on the path", words.number),
        Heading("time_ns", "time on the path", words.time),
        Heading("share", "share of the path", words.percent, meter=1.0),
        Heading("buys", "saved if halved", words.percent),
    ]
    body += heading("Operations on the path") + table("t-critical-path", rows, columns, query="path_operations")
    took = Markup(f"<b>{html_of(subject.time('path_figures[0].length_ns'))}</b>")
    long = Markup(f"as long as the run, {took}" if whole == subject.span_ns else f"{took} long")
    lead = Markup("Traced back from the last event to the first, always to the last thing waited for. It is ") + long
    lead += "; making anything else faster does not shorten the run by itself." + html_of(_unknown(subject))
    return PageSection(SECTION, "Critical path", lead, body)


def _unknown(subject: Subject) -> Sentence:
    """What re-timing does not cover in this run."""
    fixed = subject.retimed.fixed_ns / max(subject.span_ns, 1) if subject.retimed else 0.0
    loose, parts = subject.ask("retiming[0].untied_share"), []
    if fixed >= MUCH_UNKNOWN:
        parts.append(
            sentence(
                "{share} of the run is not changed by re-timing: work that starts then waits for nothing that "
                "was recorded.",
                share=subject.percent("retiming[0].fixed_ns / run[0].span_ns"),
            )
        )
    if loose >= MUCH_UNKNOWN:
        parts.append(
            sentence(
                "No launch was recorded for {share} of the device's time, so host and device are re-timed "
                "separately: a faster host or device may gain more than shown.",
                share=subject.percent("retiming[0].untied_share"),
            )
        )
    return Sentence.of(*(piece for part in parts for piece in (" ", *part.parts)))


def _strip(path: pa.Table, whole: int) -> Markup:
    """Intervals of one kind and rank; those too short to see are merged into the one before."""
    kind = path["kind"].combine_chunks().dictionary_encode()
    code, rank = kind.indices.to_numpy(), path["rank"].to_numpy()
    start, end = path["start_ns"].to_numpy(), path["end_ns"].to_numpy()
    first = np.flatnonzero(np.append(True, (code[1:] != code[:-1]) | (rank[1:] != rank[:-1])))
    last = np.append(first[1:], len(code)) - 1
    merged: list[list[int]] = []
    for i, j in zip(first.tolist(), last.tolist(), strict=True):
        if merged and end[j] - start[i] < whole / STRETCHES:
            merged[-1][1] = int(end[j])
        elif end[j] > start[i]:
            merged.append([int(start[i]), int(end[j]), int(code[i]), int(rank[i])])
    names = kind.dictionary.to_pylist()
    shown = [
        StripInterval(s, e, SORT[names[k]], f"{LABEL.get(names[k], names[k])}, rank {r}\n{words.time(e - s)}")
        for s, e, k, r in merged
    ]
    low = float(start[0])
    return strip("The critical path over time, by kind", shown, low, low + whole, words.time)
