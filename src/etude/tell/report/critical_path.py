"""The critical path: what the end of the run waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.critical_path import by_kind, length_ns
from etude.analyse.launches import untied
from etude.tell.report import gains, idle, words
from etude.tell.report.breakdown import spent
from etude.tell.report.subject import BETWEEN, RUNTIME, WAITS, Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading
from etude.tell.view.page import PageSection, Told
from etude.tell.view.plots import StripInterval, strip
from etude.tell.view.slices import Slices

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
HALVED = 20
"""Rows of the table for which the gain of halving is computed."""


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
    top = [row for row in subject.path_by_name.slice(0, 8).to_pylist() if row["kind"] not in UNNAMED and row["name"]]
    top = [row for row in top if row["name"] != BETWEEN and not row["name"].startswith("ProfilerStep")]
    if top and top[0]["share"] >= 0.1:
        found.append(_longest(subject, top[0]))
    return found


def _longest(subject: Subject, row: dict[str, Any]) -> Told:
    """The operation with most of the path, and what the run would gain if it were faster."""
    name = words.short(words.kernel(row["name"]))
    gain = subject.gain(row["kind"], name=row["name"])
    said = f"{words.plural(row['count'], 'time')}, {words.time(row['time_ns'])} in total."
    if gain is not None:
        said += f" Re-timed with all of it twice as fast, the run is {gains.shorter(gain, subject.span_ns)}."
    without = subject.gain(row["kind"], name=row["name"], part=1.0)
    cost = row["time_ns"] if without is None else without
    return Told("info", f"{name} takes {words.percent(row['share'])} of the critical path.", said, SECTION, cost)


def _at_once(subject: Subject) -> tuple[list[Told], float]:
    """One call of the host that takes much of the run, such as one that waits for the device; and its share."""
    loads = {name for name, _, _ in subject.first_use}
    for row in subject.path_by_name.slice(0, 3).to_pylist():
        name = (row["name"] or "").removesuffix(", itself")
        if row["kind"] == "host" and row["count"] <= FEW_CALLS and row["share"] >= MUCH_AT_ONCE and RUNTIME.match(name):
            if name in loads:
                continue
            told = Told("warn", f"{name} takes {words.percent(row['share'])} of the run in one piece.",
                        f"{words.plural(row['count'], 'call')}, {words.time(row['time_ns'])}, in which the host does "
                        "nothing else: it waits for the device, or for something that was not recorded.", SECTION,
                        row["time_ns"])  # fmt: skip
            return [told], row["share"]
    return [], 0.0


def _host(subject: Subject, share: float, whole: int) -> Told:
    """The host is on the path for long: during the whole run, or until the device has its first work."""
    tone, first, ns = "bad" if share >= 2 * LONG else "warn", subject.first_work_ns, round(share * whole)
    pace = gains.pace(subject)
    without = subject.gain("host", part=1.0)
    cost = ns if without is None else without
    said = f" {pace.said()}" if pace else ""
    if not subject.has_device:
        helps = ": larger batches or torch.compile shorten it" if pace and pace.of_host else ""
        return Told(tone, f"{words.percent(share)} of the critical path is between operators.",
                    f"Python, autograd and hooks run there{helps}.{said}", SECTION, cost)  # fmt: skip
    calls = [r for r in subject.path_by_name.to_pylist() if r["kind"] == "host" and WAITS.search(r["name"] or "")]
    waits = sum(r["time_ns"] for r in calls)
    if 2 * waits >= share * whole:
        return Told(tone, f"The host waits for the device {words.percent(waits / whole)} of the run.",
                    f"Mostly in {calls[0]['name']}: copies of pageable memory and synchronisation return when it is "
                    "done. Pin memory, copy with non_blocking=True, synchronise less.", SECTION, waits)  # fmt: skip
    if 2 * first >= share * whole:
        return Told("info", f"The first {words.percent(first / whole)} of the run pass before the device has work.",
                    f"For {words.time(first)} the critical path runs through the host; record from the first kernel "
                    "on, or check what the host does there.", SECTION, first)  # fmt: skip
    if pace and pace.of_host:
        return Told(tone, f"The host is the bottleneck: the critical path runs through it for {words.percent(share)} "
                    "of the run.", f"Larger batches, CUDA graphs or torch.compile reduce host time.{said}", SECTION,
                    cost)  # fmt: skip
    return Told("info" if pace else tone, f"The critical path runs through the host for {words.percent(share)} of the "
                "run.", said.strip(), SECTION, cost)  # fmt: skip


def _loading(subject: Subject, whole: int) -> list[Told]:
    share = subject.loading_ns / whole
    if share < MUCH_ONCE:
        return []
    return [Told("bad" if share >= LONG else "warn", f"The run waits for its data loader {words.percent(share)} of the "
                 "time.", f"{words.time(subject.loading_ns)} of the critical path are the next batch being fetched: "
                 "more workers, prefetching, or less work on each sample help.", SECTION,
                 subject.loading_ns)]  # fmt: skip


def _first_use(subject: Subject, whole: int) -> list[Told]:
    calls = subject.first_use
    ns = sum(t for _, _, t in calls)
    if ns < MUCH_ONCE * whole:
        return []
    said = words.named([f"{name} {words.time(t)}" + (f" in {n} calls" if n > 1 else "") for name, n, t in calls], 3)
    tone = "bad" if ns >= 0.5 * whole else "warn"
    return [Told(tone, f"{words.percent(ns / whole)} of the run is first use of the device, not work.",
                 f"Runtime calls that load libraries and kernels or set up memory: {said}. Warm up before recording; "
                 "otherwise this report describes a cold start.", SECTION, ns)]  # fmt: skip


def _told_as_idle(subject: Subject) -> bool:
    """Whether a finding about idle devices already says that the host sets the pace."""
    s = spent(subject)
    return s.idle >= idle.MUCH and idle.main_cause(subject)[0] in idle.OF_HOST


def section(subject: Subject) -> PageSection:
    path = subject.path
    kinds = by_kind(path)
    whole = length_ns(path)
    assert sum(kinds.values()) == whole, f"the path's parts are {sum(kinds.values())} ns of {whole} ns"
    pieces = tuple(BarPiece(SORT[k], LABEL.get(k, k), v, k == "launch") for k, v in kinds.items())
    body = legend([(SORT[k], LABEL.get(k, k)) for k in kinds]) + bars([Bar("path", pieces)], words.time)
    body += heading("Over time") + _strip(path, whole)
    rows = subject.path_by_name.slice(0, 300).to_pylist()
    _halved(subject, rows)
    columns = [
        Heading("name", "what", words.title, number=False, code=True),
        Heading("kind", "kind", number=False),
        Heading("count", "times", words.number),
        Heading("time_ns", "time on the path", words.time),
        Heading("share", "share", words.percent, meter=1.0),
        Heading("buys", "saved if halved", lambda v: words.percent(v) if v is not None else "–"),
    ]
    body += heading("Operations on the path") + table("t-critical-path", rows, columns)
    took = f"<b>{words.time(whole)}</b>"
    lead = Markup(
        "Traced back from the last event to the first, always to the last thing waited for. It is "
        f"{f'as long as the run, {took}' if whole == subject.span_ns else f'{took} long'}; making anything else "
        f"faster does not shorten the run by itself.{_unknown(subject)}"
    )
    return PageSection(SECTION, "Critical path", lead, body)


def _unknown(subject: Subject) -> str:
    """What re-timing does not cover in this run."""
    fixed = subject.retimed.fixed_ns / max(subject.span_ns, 1) if subject.retimed else 0.0
    loose = untied(subject.run)
    said = ""
    if fixed >= MUCH_UNKNOWN:
        said += (
            f" {words.percent(fixed)} of the run is not changed by re-timing: work that starts then waits for nothing "
        )
        said += "that was recorded."
    if loose >= MUCH_UNKNOWN:
        said += (
            f" No launch was recorded for {words.percent(loose)} of the device's time, so host and device are re-timed "
        )
        said += "separately: a faster host or device may gain more than shown."
    return said


def _halved(subject: Subject, rows: list[dict[str, Any]]) -> None:
    """Gain of the run if these rows took half as long, as a share; for the longest. An operator's own time is not a
    class, so that is left open."""
    for number, row in enumerate(rows):
        known = number < HALVED and row["kind"] not in ("launch", "gap") and row["name"]
        known = known and row["name"] != BETWEEN and not row["name"].endswith(", itself")
        gain = subject.gain(row["kind"], name=row["name"]) if known else None
        row["buys"] = None if gain is None else gain / max(subject.span_ns, 1)


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


def on_path(subject: Subject, slices: Slices) -> NDArray[np.bool_]:
    """Per slice: whether it is on the path."""
    of = np.full(int(subject.run.job.ranks.max()) + 1 if len(subject.run.job) else 1, -1, np.int64)
    of[subject.run.job.ranks] = np.arange(len(subject.run.job))
    keys = of[subject.path["rank"].to_numpy()] << 32 | subject.path["node"].to_numpy()
    mine = slices.at.astype(np.int64) << 32 | slices.node
    kinds = np.array(subject.path["kind"].to_pylist())
    return np.isin(mine, keys[(kinds != "gap") & (kinds != "launch")])
