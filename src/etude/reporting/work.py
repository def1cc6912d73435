"""What runs: kernels and operators by time, and how close they come to what the device can do."""

from __future__ import annotations

import math
from typing import Any

from etude.analyse.operators import kernels, operators
from etude.analyse.roofline import roofline
from etude.model.system import Device
from etude.reporting import words
from etude.reporting.study import Study, with_own_time
from etude.view.charts import Axis, Bar, Column, Line, Mark, Piece, bars, fitted, legend, plot, table
from etude.view.page import Section, Told

KINDS = {"compute": "compute", "communication": "communication", "memory": "memory", "host": "host"}
ROWS, OPERATORS = 200, 100
"""Rows of the tables of kernels and of operators."""
POINTS = 400
TINY_NS, MANY_TINY = 5_000, 0.5
"""Kernels shorter than this are dominated by their launches; a report says so where so many are."""
FAR_BELOW = 0.3


def told(study: Study) -> list[Told]:
    rows = study.kernels.to_pylist()
    compute = [r for r in rows if r["kind"] == "compute"]
    count = sum(r["count"] for r in compute)
    tiny = sum(r["count"] for r in compute if r["mean_ns"] < TINY_NS)
    found = []
    if count >= 100 and tiny >= MANY_TINY * count and study.has_device:
        found.append(Told(
            "info", f"{words.percent(tiny / count)} of the {words.number(count)} kernels are shorter than "
            f"{words.time(TINY_NS)}.", "Each costs about as much to launch as to run. Fusing them (torch.compile) or "
            "replaying them from a CUDA graph saves launches.", "work",
        ))  # fmt: skip
    return found


def section(study: Study) -> Section:
    rows = study.kernels.slice(0, ROWS).to_pylist()
    if not rows:
        return Section("work", "What runs", "", empty="Nothing that runs on a device has a time.")
    what = "kernels" if study.has_device else "operators"
    most = max(r["share"] for r in rows)
    columns = [
        Column("name", "name", lambda v: v or "(no name)", number=False, code=True),
        Column("kind", "kind", number=False), Column("count", "calls", words.number),
        Column("total_ns", "total", words.time), Column("share", "share", words.percent, meter=most),
        Column("mean_ns", "mean", words.time), Column("max_ns", "longest", words.time),
    ]  # fmt: skip
    body = _by_kind(study) + _by_text(study, "phase") + _by_text(study, "module")
    body += f"<h3>The longest {what}</h3>" + table("t-kernels", rows, columns)
    host = operators(study.job, study.timing).slice(0, OPERATORS).to_pylist() if study.has_device else []
    host = [r for r in host if r["device_total_ns"] or r["self_ns"]]
    if host:
        columns = [
            Column("name", "operator", lambda v: v or "(no name)", number=False, code=True),
            Column("count", "calls", words.number), Column("self_ns", "host, itself", words.time),
            Column("total_ns", "host, in all", words.time), Column("device_self_ns", "device, itself", words.time),
            Column("device_total_ns", "device, in all", words.time),
        ]  # fmt: skip
        body += "<h3>The operators that launch them</h3>" + table("t-operators", host, columns)
    lead = f"All {what} of all ranks by name. Times of {what} that overlap are added, so they may exceed the run."
    return Section("work", "What runs", lead, body)


def _by_kind(study: Study) -> str:
    total: dict[str, int] = {}
    for row in study.kernels.to_pylist():
        total[row["kind"]] = total.get(row["kind"], 0) + row["total_ns"]
    pieces = tuple(Piece(KINDS.get(k, "other"), k, v) for k, v in sorted(total.items(), key=lambda i: -i[1]))
    return legend([(p.sort, p.label) for p in pieces]) + bars([Bar("all", pieces)], words.time)


def _by_text(study: Study, by: str) -> str:
    """Bars by phase or module, where the job says them."""
    found = kernels(study.job, study.timing, (by,)).to_pylist()
    known = [r for r in found if r[by]]
    if not known:
        return ""
    rows = [Bar(words.short(r[by] or "(none)", 40), (Piece("compute", by, r["total_ns"]),)) for r in found[:12]]
    return f"<h3>By {by}</h3>" + bars(rows, words.time, thin=True)


# -- roofline ----------------------------------------------------------------------------------------------------------


def roofs(study: Study) -> Section:
    device = study.device
    found = with_own_time(roofline(study.job, study.timing, device)).to_pylist()
    known = [r for r in found if r["flop_per_s"] and r["intensity"]]
    if not known:
        empty = "No operator has both FLOPs and bytes. Record shapes (record_shapes=True) to get a roofline."
        return Section("roofline", "Roofline", "", empty=empty)
    most = max(r["time_ns"] for r in known)
    marks = [Mark(r["intensity"], r["flop_per_s"], _sort(r), _tip(r), r["time_ns"] / most) for r in known[:POINTS]]
    x = fitted("FLOPs a byte", lambda v: f"{v:g}", [m.x for m in marks], log=True)
    lines, peaks = _lines(known, device, x)
    y = fitted("FLOP/s", words.flops, [m.y for m in marks] + peaks, log=True)
    lines = [(kind, name, [(px, max(py, y.low)) for px, py in points]) for kind, name, points in lines]
    columns = [
        Column("name", "operator", number=False, code=True), Column("shapes", "shapes", number=False, code=True),
        Column("dtype", "type", number=False), Column("count", "calls", words.number),
        Column("time_ns", "time", words.time), Column("flop_per_s", "FLOP/s", words.flops),
        Column("bytes_per_s", "bytes/s", words.rate), Column("intensity", "FLOPs a byte", lambda v: f"{v:.3g}"),
    ]  # fmt: skip
    if device is not None:
        columns.append(Column("roofline_pct", "of its roof", lambda v: words.percent(v / 100), meter=100.0))
    colours = legend([("compute", "limited by compute"), ("memory", "limited by memory")]) if device else ""
    body = colours + plot("Rate of operators against their intensity", x, y, marks, lines)
    body += table("t-roofline", found[:ROWS], columns)
    lead = "Each point is an operator with one shape; its size is its time. "
    if device:
        lead += f"The roof is what the peak rates of {device.name} allow at that many FLOPs a byte."
    else:
        lead += "Nothing says which device this is, so there is no roof; --device h100 draws that of an H100."
    return Section("roofline", "Roofline", lead, body)


def _sort(row: dict[str, Any]) -> str:
    return "memory" if row.get("bound") == "memory" else "compute"


def _tip(row: dict[str, Any]) -> str:
    roof = f", {words.percent(row['roofline_pct'] / 100)} of its roof" if row.get("roofline_pct") else ""
    return (f"{words.short(row['name'])} {words.short(row['shapes'], 80)}\n{words.flops(row['flop_per_s'])}{roof}\n"
            f"{words.plural(row['count'], 'call')}, {words.time(row['time_ns'])}")  # fmt: skip


def _lines(known: list[dict[str, Any]], device: Device | None, x: Axis) -> tuple[list[Line], list[float]]:
    """The roof of each data type in use: up with the memory's bandwidth, then flat at the peak."""
    if device is None or not device.memory_bandwidth_bytes_per_s:
        return [], []
    lines: list[Line] = []
    peaks: list[float] = []
    bandwidth = device.memory_bandwidth_bytes_per_s
    for dtype in dict.fromkeys(r["dtype"] or "bf16" for r in known):
        peak = device.peak(dtype)
        if not peak or peak in peaks:
            continue
        bend = min(max(peak / bandwidth, x.low), x.high)
        points = [
            (x.low, min(peak, x.low * bandwidth)),
            (bend, min(peak, bend * bandwidth)),
            (x.high, min(peak, x.high * bandwidth)),
        ]
        lines.append(("roof", f"{dtype} {words.flops(peak)}", points))
        peaks.append(peak)
    return lines, [p for p in peaks if math.isfinite(p)]
