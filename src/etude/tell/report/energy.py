"""Energy: what the devices of a run draw over time, and for what."""

from __future__ import annotations

from etude.analyse.energy import Energy, energy
from etude.tell.report import words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Heading, table
from etude.tell.view.page import Figure, PageSection
from etude.tell.view.plots import Axis, fitted, plot

SECTION = "energy"
POINTS = 400
"""Windows of the plot."""


def cards(subject: Subject) -> list[Figure]:
    """Energy of the run, if the device has power figures."""
    found = _energy(subject)
    if found is None:
        return []
    mean = found.curve.mean_w / found.ranks
    return [Figure("Energy", _joules(found.curve.energy_j), f"modelled, {mean:.0f} W per device on average")]


def section(subject: Subject) -> PageSection:
    found = _energy(subject)
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
    total = found.curve.energy_j or 1.0
    rows = [
        {"class": name, "joules": joules, "share": joules / total}
        for name, joules in sorted(found.by_class.items(), key=lambda item: -item[1])
    ]
    columns = [
        Heading("class", "what", number=False),
        Heading("joules", "energy", _joules),
        Heading("share", "share", words.percent, meter=1.0),
    ]
    lead = "Modelled power: idle power, plus the power of FLOPs, bytes and communication."
    if found.assumed:
        lead += " The constants of this device are derived from its power limit; none were measured."
    return PageSection(SECTION, "Energy", lead, body + table("t-energy", rows, columns))


def _energy(subject: Subject) -> Energy | None:
    device = subject.device or (subject.run.system.device if subject.run.system is not None else None)
    if device is None or not device.power_w or not subject.has_device or not subject.span_ns:
        return None
    return energy(subject.run, device=device)


def _joules(value: float) -> str:
    for size, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e3:.3g} mJ"


def _watts(value: float) -> str:
    for size, unit in ((1e6, "MW"), (1e3, "kW")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} W"
