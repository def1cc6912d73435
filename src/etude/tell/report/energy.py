"""Energy: what the devices of a run draw over time, and for what."""

from __future__ import annotations

from etude.tell.report import words
from etude.tell.report.subject import Subject
from etude.tell.report.tables import energy_of
from etude.tell.view.charts import Heading, table
from etude.tell.view.page import Figure, PageSection
from etude.tell.view.plots import Axis, fitted, plot
from etude.tell.view.sentences import sentence

SECTION = "energy"
POINTS = 400
"""Windows of the plot."""


def cards(subject: Subject) -> list[Figure]:
    """Energy of the run, if the device has power figures."""
    if energy_of(subject) is None:
        return []
    note = sentence("modelled, {mean} per device on average", mean=subject.value("watts", "energy[0].mean_w"))
    return [Figure("Energy", subject.value("joules", "energy[0].energy_j"), note)]


def section(subject: Subject) -> PageSection:
    found = energy_of(subject)
    if found is None:
        empty = "The power of the devices of this run is not known: --ran-on h200, or a device file with `power`."
        return PageSection(SECTION, "Energy", "", empty=empty)
    curve = found.curve.sampled(max(found.curve.span_ns // POINTS, 1))
    points: list[tuple[float, float]] = []
    for begin, end, watts in zip(curve.time_ns[:-1], curve.time_ns[1:], curve.watts, strict=True):
        points += [(float(begin - curve.time_ns[0]), float(watts)), (float(end - curve.time_ns[0]), float(watts))]
    x = Axis("time", words.time, False, 0.0, float(curve.span_ns) or 1.0)
    y = fitted("power of all devices", _watts, [curve.peak_w], log=False)
    body = plot("Power over time", x, y, (), [("trend l-compute", "", points)], size=(1080, 300))
    rows = subject.table("energy_classes").to_pylist()
    columns = [
        Heading("class", "what", number=False),
        Heading("joules", "energy", words.joules),
        Heading("share", "share", words.percent, meter=1.0),
    ]
    lead = "Modelled power: idle power, plus the power of FLOPs, bytes and communication."
    if found.assumed:
        lead += " The constants of this device are derived from its power limit; none were measured."
    return PageSection(SECTION, "Energy", lead, body + table("t-energy", rows, columns, query="energy_classes"))


def _watts(value: float) -> str:
    for size, unit in ((1e6, "MW"), (1e3, "kW")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} W"
