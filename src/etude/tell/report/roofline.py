"""How close operators come to the device's limits: the roofline, and the used fraction of the device's peak."""

from __future__ import annotations

import math
from typing import Any

import pyarrow.compute as pc

from etude.analyse.roofline import not_known, utilisation
from etude.machine.system import Device
from etude.tell.report import words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Heading, legend, table
from etude.tell.view.page import Figure, PageSection, Told
from etude.tell.view.plots import Axis, Line, PlotPoint, fitted, plot

SECTION = "roofline"

ROWS, POINTS = 200, 400
FAR_BELOW, MUCH_TIME, NOT_TINY_NS = 30.0, 0.1, 20_000
"""An operator is reported if it reaches less than this percentage of its roofline in such a share of the compute time;
short ones are bound by what starting them takes."""
NOT_KNOWN = 0.01
"""Share of the compute time with unknown FLOPs and bytes from which the page says so."""
LEAST_INTENSITY = 0.001
"""FLOPs per byte below which an operator only copies; a point so far away would hide the others."""
MOSTLY_KNOWN = 0.5
"""Share of the compute time whose FLOPs must be known before a report says how much of the peak is used."""


def cards(subject: Subject) -> list[Figure]:
    """Fraction of the device's peak that the run uses, if enough of its work is known."""
    if subject.device is None or not subject.has_device or _known_share(subject) < MOSTLY_KNOWN:
        return []
    used = pc.mean(utilisation(subject.run, subject.device)["hfu"]).as_py()
    if not used:
        return []
    least = "" if _known_share(subject) > 0.995 else ", at least"
    return [Figure("Peak used", words.percent(used), f"of the FLOP/s of {subject.device.name}{least}")]


def _known_share(subject: Subject) -> float:
    """Share of the compute time of operators whose FLOPs are known."""
    known = sum(r["time_ns"] for r in subject.roofline.to_pylist() if r["flops"])
    whole = sum(r["total_ns"] for r in subject.kernels.to_pylist() if r["kind"] == "compute")
    return known / whole if whole else 0.0


def told(subject: Subject) -> list[Told]:
    """The operator that loses most by staying below its roof, and those that are above theirs."""
    if subject.device is None or not subject.has_device:
        return []
    whole = sum(r["total_ns"] for r in subject.kernels.to_pylist() if r["kind"] == "compute") or 1
    low = [
        r for r in subject.roofline.to_pylist()
        if r["flops"] and r["roofline_pct"] and r["roofline_pct"] < FAR_BELOW and r["time_ns"] >= MUCH_TIME * whole
        and r["time_ns"] >= NOT_TINY_NS * r["count"]
    ]  # fmt: skip
    found = _above(subject)
    if not low:
        return found
    r = max(low, key=_lost)
    return [*found, Told(
        "info", f"{words.short(r['name'])} takes {words.percent(r['time_ns'] / whole)} of the compute time and reaches "
        f"{words.percent(r['roofline_pct'] / 100)} of what the device allows.",
        f"{words.plural(r['count'], 'call')} with {words.short(r['shapes'], 80)}: {words.flops(r['flop_per_s'] or 0)} "
        f"and {words.rate(r['bytes_per_s'] or 0)}; {r['bound']} is its limit.", SECTION,
        round(_lost(r) / len(subject.run.job)),
    )]  # fmt: skip


def _lost(row: dict[str, Any]) -> float:
    """Time beyond what the roof allows, ns on all ranks."""
    return float(row["time_ns"] * (1 - row["roofline_pct"] / 100))


def _above(subject: Subject) -> list[Told]:
    """Rows that are faster than the device's peak rates allow: an assumption of the roof is wrong."""
    rows = [r for r in subject.roofline.to_pylist() if (r["roofline_pct"] or 0) > 100]
    if not rows or subject.device is None:
        return []
    r = max(rows, key=lambda r: r["roofline_pct"])
    rates = f"{words.flops(r['flop_per_s'] or 0)} and {words.rate(r['bytes_per_s'] or 0)}"
    said = f"{words.short(r['name'])} with {words.short(r['shapes'], 80)} reaches {r['roofline_pct']:.0f}%: {rates} in "
    said += (
        f"{r['dtype'] or 'an unknown type'}. Its FLOPs, its bytes from memory, its data type or the device is wrong."
    )
    if r["bound"] == "memory":
        fits = "fit" if r["size_bytes"] <= subject.device.cache_bytes else "do not fit"
        cache = words.size(subject.device.cache_bytes)
        said += f" The {words.size(r['size_bytes'])} that a call moves at least {fits} in the cache of {cache}."
    many = words.plural(len(rows), "operator")
    what = (
        f"{many} {words.verb(len(rows))} above the roofline: faster than the peak rates of {subject.device.name} allow."
    )
    return [Told("warn", what, said, SECTION)]


def section(subject: Subject) -> PageSection:
    device = subject.device
    found = subject.roofline.to_pylist()
    known = [r for r in found if r["flop_per_s"] and (r["intensity"] or 0) >= LEAST_INTENSITY]
    if not known:
        empty = "No operator has both FLOPs and bytes. Record shapes (record_shapes=True) to get a roofline."
        return PageSection(SECTION, "Roofline", "", empty=f"{empty}{_open(subject)}")
    most = max(r["time_ns"] for r in known)
    marks = [PlotPoint(r["intensity"], r["flop_per_s"], _sort(r), _tip(r), r["time_ns"] / most) for r in known[:POINTS]]
    x = fitted("FLOPs per byte", lambda v: f"{v:g}", [m.x for m in marks], log=True)
    lines, peaks = _lines(known, device, x)
    y = fitted("FLOP/s", words.flops, [m.y for m in marks] + [2 * p for p in peaks], log=True)
    lines = [(kind, name, [(px, max(py, y.low)) for px, py in points]) for kind, name, points in lines]
    columns = [
        Heading("name", "operator", number=False, code=True), Heading("shapes", "shapes", number=False, code=True),
        Heading("dtype", "type", number=False), Heading("count", "calls", words.number),
        Heading("time_ns", "time", words.time), Heading("flop_per_s", "FLOP/s", lambda v: words.flops(v) if v else "–"),
        Heading("bytes_per_s", "bytes/s", words.rate), Heading("intensity", "FLOPs/byte", _intensity),
    ]  # fmt: skip
    if device is not None:
        columns.append(Heading("roofline_pct", "of its roofline", lambda v: words.percent(v / 100), meter=100.0))
    colours = legend([("compute", "limited by compute"), ("memory", "limited by memory")]) if device else ""
    body = colours + plot("Rate of operators against their intensity", x, y, marks, lines, size=(1080, 380))
    body += table("t-roofline", found[:ROWS], columns)
    return PageSection(SECTION, "Roofline", _lead(subject), body)


def _intensity(flops_a_byte: float) -> str:
    return f"{flops_a_byte:,.0f}" if flops_a_byte >= 100 else f"{flops_a_byte:.3g}"


def _lead(subject: Subject) -> str:
    lead = "Each point is an operator with one shape; its size is its time. "
    if subject.device:
        lead += f"The roof is what the peak rates of {subject.device.name} allow at that many FLOPs per byte."
        return f"{lead}{_open(subject)}"
    named = subject.run.job.provenance.get("device", "")
    what = f"No peak rates of {named} are known" if named else "The device is not known"
    return f"{lead}{what}, so there is no roofline; --ran-on h100 draws that of an H100.{_open(subject)}"


def _open(subject: Subject) -> str:
    """Share of the time with unknown FLOPs."""
    said = ""
    unsure = sum(r["at_most"] for r in subject.roofline.to_pylist())
    if unsure:
        said += f" It was not recorded whether {words.plural(unsure, 'row')} of attention are causal; all "
        said += "pairs are counted, so their FLOPs are an upper bound."
    missing = not_known(subject.run).to_pylist() if subject.has_device else []
    whole = sum(r["total_ns"] for r in subject.kernels.to_pylist() if r["kind"] == "compute") or 1
    share = sum(r["time_ns"] for r in missing) / whole
    if share >= NOT_KNOWN:
        names = words.named([words.short(words.title(r["name"]), 40) for r in missing], 3)
        said += f" Neither FLOPs nor bytes are known for {words.percent(min(share, 1.0))} of the compute time: {names}."
    return said


def _sort(row: dict[str, Any]) -> str:
    return "memory" if row.get("bound") == "memory" else "compute"


def _tip(row: dict[str, Any]) -> str:
    roof = f", {words.percent(row['roofline_pct'] / 100)} of its roofline" if row.get("roofline_pct") else ""
    return (
        f"{words.short(row['name'])} {words.short(row['shapes'], 80)}\n{words.flops(row['flop_per_s'])}{roof}\n"
        f"{words.plural(row['count'], 'call')}, {words.time(row['time_ns'])}"
    )


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
