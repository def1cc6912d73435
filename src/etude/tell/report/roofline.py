"""How close operators come to the device's limits: the roofline, and the used fraction of the device's peak."""

from __future__ import annotations

import math
from typing import Any

from etude.machine.system import Device
from etude.tell.report import words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Heading, legend, table
from etude.tell.view.page import Figure, PageSection, Told
from etude.tell.view.plots import Axis, Line, PlotPoint, fitted, plot
from etude.tell.view.sentences import Sentence, sentence, series

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


USED = "mean(utilisation.hfu)"
WHOLE = 'sum(kernels[kernels.kind == "compute"].total_ns)'


def cards(subject: Subject) -> list[Figure]:
    """Fraction of the device's peak that the run uses, if enough of its work is known."""
    if subject.device is None or not subject.has_device or _known_share(subject) < MOSTLY_KNOWN:
        return []
    if not subject.ask(USED):
        return []
    least = "" if _known_share(subject) > 0.995 else ", at least"
    note = sentence("of the FLOP/s of {device}{least}", device=subject.text("device[0].name"), least=least)
    return [Figure("Peak used", subject.percent(USED), note)]


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
        (r, at) for at, r in enumerate(subject.roofline.to_pylist())
        if r["flops"] and r["roofline_pct"] and r["roofline_pct"] < FAR_BELOW and r["time_ns"] >= MUCH_TIME * whole
        and r["time_ns"] >= NOT_TINY_NS * r["count"]
    ]  # fmt: skip
    found = _above(subject)
    if not low:
        return found
    r, at = max(low, key=lambda one: _lost(one[0]))
    here = f"roofline[{at}]"
    what = sentence(
        "{name} takes {share} of the compute time and reaches {part} of what the device allows.",
        name=subject.value("short_name", f"{here}.name"),
        share=subject.percent(f"{here}.time_ns / {WHOLE}"),
        part=subject.value("percentage", f"{here}.roofline_pct"),
    )
    why = sentence(
        "{calls} with {shapes}: {rates}; {bound} is its limit.",
        calls=subject.plural("call", f"{here}.count"),
        shapes=subject.value("shapes", f"{here}.shapes"),
        rates=_rates(subject, here, r),
        bound=r["bound"],
    )
    lost = f"{here}.time_ns * (1 - {here}.roofline_pct / 100) / run[0].ranks"
    return [*found, Told("info", what, why, SECTION, round(_lost(r) / len(subject.run.job)), asked=lost)]


def _rates(subject: Subject, here: str, row: dict[str, Any]) -> Sentence:
    done = subject.value("flops", f"{here}.flop_per_s" if row["flop_per_s"] is not None else "0")
    moved = subject.value("rate", f"{here}.bytes_per_s" if row["bytes_per_s"] is not None else "0")
    return sentence("{done} and {moved}", done=done, moved=moved)


def _lost(row: dict[str, Any]) -> float:
    """Time beyond what the roof allows, ns on all ranks."""
    return float(row["time_ns"] * (1 - row["roofline_pct"] / 100))


def _above(subject: Subject) -> list[Told]:
    """Rows that are faster than the device's peak rates allow: an assumption of the roof is wrong."""
    rows = [(r, at) for at, r in enumerate(subject.roofline.to_pylist()) if (r["roofline_pct"] or 0) > 100]
    if not rows or subject.device is None:
        return []
    r, at = max(rows, key=lambda one: one[0]["roofline_pct"])
    here, cached = f"roofline[{at}]", sentence("")
    if r["bound"] == "memory":
        cached = sentence(
            "The {size} that a call moves at least {fits} in the cache of {cache}.",
            size=subject.value("size", f"{here}.size_bytes"),
            fits="fit" if r["size_bytes"] <= subject.device.cache_bytes else "do not fit",
            cache=subject.value("size", "device[0].cache_bytes"),
        )
    why = sentence(
        "{name} with {shapes} reaches {part}: {rates} in {dtype}. Its FLOPs, its bytes from memory, its data type or "
        "the device is wrong. {cached}",
        name=subject.value("short_name", f"{here}.name"),
        shapes=subject.value("shapes", f"{here}.shapes"),
        part=subject.value("whole_percentage", f"{here}.roofline_pct"),
        rates=_rates(subject, here, r),
        dtype=r["dtype"] or "an unknown type",
        cached=cached,
    )
    what = sentence(
        "{many} {are} above the roofline: faster than the peak rates of {device} allow.",
        many=subject.plural("operator", "count(roofline[roofline.roofline_pct > 100])"),
        are=words.verb(len(rows)),
        device=subject.text("device[0].name"),
    )
    return [Told("warn", what, why, SECTION)]


def section(subject: Subject) -> PageSection:
    device = subject.device
    found = subject.roofline.to_pylist()
    known = [r for r in found if r["flop_per_s"] and (r["intensity"] or 0) >= LEAST_INTENSITY]
    if not known:
        empty = "No operator has both FLOPs and bytes. Record shapes (record_shapes=True) to get a roofline."
        return PageSection(SECTION, "Roofline", "", empty=sentence("{empty} {open}", empty=empty, open=_open(subject)))
    most = max(r["time_ns"] for r in known)
    marks = [PlotPoint(r["intensity"], r["flop_per_s"], _sort(r), _tip(r), r["time_ns"] / most) for r in known[:POINTS]]
    x = fitted("FLOPs per byte", lambda v: f"{v:g}", [m.x for m in marks], log=True)
    lines, peaks = _lines(known, device, x)
    y = fitted("FLOP/s", words.flops, [m.y for m in marks] + [2 * p for p in peaks], log=True)
    lines = [(kind, name, [(px, max(py, y.low)) for px, py in points]) for kind, name, points in lines]
    columns = [
        Heading("name", "operator", number=False, code=True), Heading("shapes", "shapes", number=False, code=True),
        Heading("dtype", "type", number=False), Heading("count", "calls with known work", words.number),
        Heading("time_ns", "their time", words.time), Heading("flop_per_s", "FLOP/s", words.flops_or_none),
        Heading("bytes_per_s", "bytes/s", words.rate), Heading("intensity", "FLOPs/byte", words.intensity),
    ]  # fmt: skip
    if device is not None:
        columns.append(Heading("roofline_pct", "of its roofline", words.percentage, meter=100.0))
    colours = legend([("compute", "limited by compute"), ("memory", "limited by memory")]) if device else ""
    body = colours + plot("Rate of operators against their intensity", x, y, marks, lines, size=(1080, 380))
    body += table("t-roofline", found[:ROWS], columns, query="roofline")
    return PageSection(SECTION, "Roofline", _lead(subject), body)


def _lead(subject: Subject) -> Sentence:
    if subject.device:
        known = sentence(
            "The roof is what the peak rates of {device} allow at that many FLOPs per byte.",
            device=subject.text("device[0].name"),
        )
    else:
        named = subject.run.job.provenance.get("device", "")
        at = list(subject.run.job.provenance).index("device") if named else 0
        what = (
            sentence("No peak rates of {device} are known", device=subject.text(f"facts[{at}].value"))
            if named
            else None
        )
        known = sentence(
            "{what}, so there is no roofline; --ran-on h100 draws that of an H100.",
            what=what or sentence("The device is not known"),
        )
    lead = "Each point is an operator with one shape; its size is its time. {known} {open}"
    return sentence(lead, known=known, open=_open(subject))


def _open(subject: Subject) -> Sentence:
    """Share of the time with unknown FLOPs."""
    unsure, unknown = sentence(""), sentence("")
    if sum(r["at_most"] for r in subject.roofline.to_pylist()):
        unsure = sentence(
            "It was not recorded whether {rows} of attention are causal; all pairs are counted, so their FLOPs are an "
            "upper bound.",
            rows=subject.plural("row", "sum(roofline.at_most)"),
        )
    missing = subject.table("not_known") if subject.has_device else None
    share = subject.ask(f"sum(not_known.time_ns) / most({WHOLE}, 1)") if missing is not None else 0.0
    if missing is not None and share >= NOT_KNOWN:
        names = [subject.value("operator", f"not_known[{at}].name") for at in range(min(len(missing), 3))]
        unknown = sentence(
            "Neither FLOPs nor bytes are known for {share} of the compute time: {names}.",
            share=subject.percent(f"least(sum(not_known.time_ns) / {WHOLE}, 1)"),
            names=series(names, subject.number("count(not_known) - 3") if len(missing) > 3 else None),
        )
    return sentence("{unsure} {unknown}", unsure=unsure, unknown=unknown)


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
