"""The page of a world: who held which devices when, what each workload did, and the account."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.words import seconds
from etude.tell.view.charts import Heading, table
from etude.tell.view.markup import heading, joined
from etude.tell.view.page import Figure, Page, PageSection
from etude.tell.view.plots import Axis, fitted, plot
from etude.world.headlines import headline

SORTS: Final = ("compute", "communication", "memory", "host")
"""Colours of workloads, in turn."""


def world_page(record: dict[str, Any], tables: dict[str, pa.Table], *, title: str, made_by: str) -> Page:
    """`record` and tables of `etude world run -o FOLDER`."""
    parts, whole = record["account"]["device_ns"]["parts"], record["account"]["device_ns"]["total"]
    held = {who: sum(its.values()) / whole for who, its in parts.items()}
    most = sorted((who for who in held if who not in ("free", "down")), key=lambda who: -held[who])
    said = ", ".join(f"{who} had {held[who]:.1%}" for who in most)
    devices = round(whole / record["horizon_s"] / 1e9)
    sections = [_devices(record, tables["holdings"]), _uses(parts), _events(record["events"])]
    if "power" in tables:
        sections.insert(1, _power(record, tables["power"]))
    return Page(
        title=title,
        subtitle=f"{words.plural(len(record['workloads']), 'workload')} on {devices:,} devices, simulated for "
        f"{seconds(record['horizon_s'])}",
        verdict=f"Of the device time {said}; {held['free']:.1%} was free and {held['down']:.1%} out of order.",
        cards=tuple(_card(name, its) for name, its in record["workloads"].items()),
        sections=tuple(sections),
        facts=tuple(_facts(record["account"])),
        made_by=made_by,
    )


def _card(name: str, its: dict[str, Any]) -> Figure:
    found = headline(its)
    return Figure(name, found.value, found.about)


def _devices(record: dict[str, Any], holdings: pa.Table) -> PageSection:
    """A line for each holder: its devices over time."""
    end, names = record["horizon_s"], [*record["workloads"], "free", "down"]
    time, holder, count = (holdings[name].to_numpy(zero_copy_only=False) for name in ("time_s", "holder", "devices"))
    body = []
    for number, name in enumerate(names):
        mine = holder == name
        at, has = time[mine], count[mine].astype(np.float64)
        if not has.any():
            continue
        steps = [(float(t), float(n)) for t, n in zip(np.repeat(at, 2)[1:], np.repeat(has, 2)[:-1], strict=True)]
        points = [*steps, (float(at[-1]), float(has[-1])), (end, float(has[-1]))]
        sort = "idle" if name in ("free", "down") else SORTS[number % len(SORTS)]
        y = fitted("devices", lambda v: f"{v:,.0f}", [0.5, float(has.max())], log=False)
        line = [(f"trend l-{sort}", "", points)]
        body.append(heading(name) + plot(name, Axis("time", seconds, False, 0.0, end), y, (), line, size=(1080, 150)))
    return PageSection("devices", "Devices", "Who held how many.", joined(body))


def _power(record: dict[str, Any], power: pa.Table) -> PageSection:
    at, base, serving, training = (power[n].to_numpy() for n in ("time_s", "base_w", "serving_w", "training_w"))
    total, cap = base + serving + training, record["power"]["cap_w"]
    x = Axis("time", seconds, False, 0.0, record["horizon_s"])
    y = fitted("power", lambda v: f"{v / 1e3:,.1f} kW", [1.0, float(max(total.max(), cap))], log=False)
    lines = [
        ("trend l-idle", "cap", [(0.0, cap), (record["horizon_s"], cap)]),
        ("trend l-compute", "drawn", list(zip(at[1:].tolist(), total[1:].tolist(), strict=True))),
    ]
    lead = f"Above the cap in {record['power']['over_cap']:.1%} of the minutes."
    return PageSection("power", "Power", lead, plot("power", x, y, (), lines, size=(1080, 260)))


def _uses(parts: dict[str, dict[str, int]]) -> PageSection:
    """Device time by holder and use."""
    rows = [
        {"holder": who, "use": use, "hours": ns / 3.6e12, "part": ns / max(sum(its.values()), 1)}
        for who, its in parts.items()
        for use, ns in its.items()
        if ns
    ]
    columns = [
        Heading("holder", "holder", str, number=False),
        Heading("use", "use", str, number=False),
        Heading("hours", "device hours", lambda v: f"{v:,.2f}"),
        Heading("part", "of what it held", words.percent),
    ]
    return PageSection("account", "What devices were used for", "", table("uses-table", rows, columns, first=40))


def _events(events: list[dict[str, Any]]) -> PageSection:
    rows = [{"time": one["time_s"], "kind": one["kind"], "what": _happened(one)} for one in events]
    columns = [
        Heading("time", "at", seconds),
        Heading("kind", "kind", str, number=False),
        Heading("what", "what happened", str, number=False),
    ]
    lead = "" if rows else "Nothing happened from outside."
    return PageSection("events", "Events", lead, table("events-table", rows, columns, first=50))


def _happened(event: dict[str, Any]) -> str:
    if event["kind"] == "lend":
        return f"{event['from']} gives {words.plural(event['nodes'], 'node')} to {event['to']}"
    struck = f"nodes {', '.join(map(str, event['nodes']))}" if event["nodes"] else "processes"
    return f"{event['effect']}: {struck}" + (f", felt by {', '.join(event['workloads'])}" if event["workloads"] else "")


def _facts(account: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    if account["energy_mj"]:
        found.append(("energy", f"{account['energy_mj']['total'] / 3.6e9:,.1f} kWh"))
    if account["cost"]:
        found.append(("cost", f"{account['cost']['total']:,.0f} dollars"))
    if account["carbon_g"]:
        found.append(("emissions", f"{account['carbon_g']['total'] / 1e3:,.1f} kg of CO2"))
    return found
