"""The critical path: what the end of the run waited for."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from etude.analyse.critical_path import by_kind, by_name, length_ns
from etude.reporting import words
from etude.reporting.study import Study
from etude.view.charts import Bar, Column, Piece, Stretch, bars, legend, strip, table
from etude.view.page import Section, Told
from etude.view.slices import Slices

SORT = {
    "compute": "compute", "communication": "communication", "memory": "memory", "host": "host", "other": "other",
    "launch": "host", "gap": "idle",
}  # fmt: skip
LABEL = {"host": "host", "launch": "launch", "gap": "unexplained", "other": "other"}
UNNAMED = ("gap", "launch", "host")
"""Kinds of which no single piece is worth a finding: what the host does is many small things."""
LONG = 0.3
STRETCHES = 900


def told(study: Study) -> list[Told]:
    path = study.path
    whole = max(length_ns(path), 1)
    kinds = by_kind(path)
    host = (kinds.get("host", 0) + kinds.get("launch", 0)) / whole
    found = []
    if host >= LONG:
        tone = "bad" if host >= 2 * LONG else "warn"
        found.append(Told(tone, f"The host sets the pace for {words.percent(host)} of the run.",
                          "The critical path runs through host code and kernel launches; larger batches, CUDA graphs "
                          "or torch.compile shorten it, faster devices do not.", "path"))  # fmt: skip
    top = [row for row in by_name(path).slice(0, 8).to_pylist() if row["kind"] not in UNNAMED and row["name"]]
    if top and top[0]["share"] >= 0.1:
        t = top[0]
        found.append(Told("info", f"{words.short(t['name'])} holds {words.percent(t['share'])} of the critical path.",
                          f"{words.plural(t['count'], 'time')}, {words.time(t['time_ns'])} in all; making it twice as "
                          f"fast can shorten the run by at most {words.percent(t['share'] / 2)}.", "path"))  # fmt: skip
    return found


def section(study: Study) -> Section:
    path = study.path
    kinds = by_kind(path)
    whole = length_ns(path)
    assert sum(kinds.values()) == whole, f"the path's parts are {sum(kinds.values())} ns of {whole} ns"
    pieces = tuple(Piece(SORT[k], LABEL.get(k, k), v, k == "launch") for k, v in kinds.items())
    body = legend([(SORT[k], LABEL.get(k, k)) for k in kinds]) + bars([Bar("path", pieces)], words.time)
    body += "<h3>Over time</h3>" + _strip(path.to_pylist(), whole)
    rows = by_name(path).slice(0, 300).to_pylist()
    for row in rows:
        row["buys"] = row["share"] / 2
    columns = [
        Column("name", "what", lambda v: v or "(no name)", number=False, code=True),
        Column("kind", "kind", number=False),
        Column("count", "times", words.number), Column("time_ns", "time on the path", words.time),
        Column("share", "share", words.percent, meter=1.0),
        Column("buys", "twice as fast saves at most", words.percent),
    ]  # fmt: skip
    body += "<h3>What is on it</h3>" + table("t-path", rows, columns)
    lead = (
        "Walked back from the last event to the first, always to what was waited for last. It is as long as the run, "
        f"<b>{words.time(whole)}</b>; what is not on it cannot shorten the run by itself."
    )
    return Section("path", "Critical path", lead, body)


def _strip(rows: list[dict[str, int]], whole: int) -> str:
    """Stretches of one kind and rank, those too short to see joined to the one before."""
    if not rows:
        return ""
    low = rows[0]["start_ns"]
    merged: list[list[int | str]] = []
    for (kind, rank), group in groupby(rows, key=lambda r: (str(r["kind"]), r["rank"])):
        part = list(group)
        start, end = part[0]["start_ns"], part[-1]["end_ns"]
        if merged and end - start < whole / STRETCHES:
            merged[-1][1] = end
        elif end > start:
            merged.append([start, end, kind, rank])
    shown = [
        Stretch(
            float(s), float(e), SORT[str(k)], f"{LABEL.get(str(k), str(k))}, rank {r}\n{words.time(int(e) - int(s))}"
        )
        for s, e, k, r in merged
    ]
    return strip("The critical path over time, by kind", shown, float(low), float(low + whole), words.time)


def on_path(study: Study, slices: Slices) -> NDArray[np.bool_]:
    """Beside each slice: is it on the path?"""
    of = np.full(int(study.job.ranks.max()) + 1 if len(study.job) else 1, -1, np.int64)
    of[study.job.ranks] = np.arange(len(study.job))
    keys = of[study.path["rank"].to_numpy()] << 32 | study.path["node"].to_numpy()
    mine = slices.at.astype(np.int64) << 32 | slices.node
    kinds = np.array(study.path["kind"].to_pylist())
    return np.isin(mine, keys[(kinds != "gap") & (kinds != "launch")])
