"""Outcome: what came of a scenario, its account, and the folder that holds both.

The account has device time in nanoseconds, energy in millijoules and money in dollars, each by holder and by use. Parts
are whole numbers and add up: the device time of all holders is that of the machine, and what a workload used its
devices for is what it held.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.cost.estimates import without_evidence
from etude.machine.regions import open_region
from etude.world.build import RunningWorld
from etude.world.devices import DOWN, FREE, Holding, held_ns
from etude.world.entities.power import drawn_j
from etude.world.fleet.sharing.supply import DevicePrices
from etude.world.folder import write_outcome
from etude.world.prices import paid, read_prices
from etude.world.scenario import regions_of

ROUNDING: Final = 1.01
"""The energy of a step is booked at its end, so a minute may have one too many."""


WHY: Final = "a world of several workloads: none was measured as a whole"
PREDICTED: Final = ("_s", "_per_h", "_j")
"""How names of figures end that a workload is predicted to have."""


@dataclass(frozen=True, slots=True, eq=False)
class WorldOutcome:
    record: dict[str, Any]
    tables: dict[str, pa.Table]
    notes: tuple[str, ...] = ()

    def write(self, path: str | PathLike[str], *, force: bool = False) -> None:
        write_outcome(self.record, self.tables, path, force=force)


def outcome_of(world: RunningWorld) -> WorldOutcome:
    horizon = world.scenario.horizon_ns
    workloads = {one.name: one.figures(horizon) for one in world.machine.workloads.values()}
    account = account_of(world)
    for name, its in workloads.items():
        its["energy_j"] = _sum_j(account["energy_mj"], name)
        its["cost"] = account["cost"]["parts"].get(name) if account["cost"] else None
        held = account["device_ns"]["parts"][name]
        its["device_s"] = {part: ns / 1e9 for part, ns in held.items()}
        its["useful_share"] = _share(held)
        its |= {} if "basis" in its else _without_evidence(its)
    record = {
        "horizon_s": horizon / 1e9,
        "workloads": workloads,
        "account": account,
        "events": world.machine.log,
        "crossings": world.clock.crossings,
        "loop_returns": sum(one.loop_returns() for one in world.machine.workloads.values()),
    }
    record |= without_evidence({f"account.{name}": WHY for name in ("energy_mj", "carbon_g", "cost") if account[name]})
    if world.governor is not None:
        record["power"] = _power(world)
    return WorldOutcome(record, _tables(world), (*world.notes, *_unknown(world)))


def _without_evidence(its: dict[str, Any]) -> dict[str, Any]:
    """Of a workload of which nothing like it was measured."""
    named = [name for name in its if name.endswith(PREDICTED) and its[name] and name != "device_s"]
    return without_evidence(dict.fromkeys(named, "a workload of this kind: none was measured"))


def _unknown(world: RunningWorld) -> list[str]:
    """Why the account has no energy, or what is assumed of it."""
    if not world.system.device.power_w:
        return [f"the power of `{world.system.name}` is not known, so the account has no energy"]
    names = [one.name for one in world.machine.workloads.values() if one.work_j(world.scenario.horizon_ns) is None]
    watts = f"{world.system.device.power_w:g} W"
    return [f"assumed: a device of {', '.join(names)} that works draws {watts}, all of its power"] if names else []


def account_of(world: RunningWorld) -> dict[str, Any]:
    """Device time, energy and money by holder and use."""
    devices, horizon = world.machine.devices, world.scenario.horizon_ns
    parts: dict[str, Any] = {one.name: one.parts_ns(horizon) for one in world.machine.workloads.values()}
    parts |= {name: {name: devices.device_ns(name, horizon)} for name in (FREE, DOWN)}
    found: dict[str, Any] = {"device_ns": {"total": devices.count * horizon, "parts": parts}}
    found["energy_mj"] = _energy(world)
    found["cost"] = _cost(world)
    found["carbon_g"] = _carbon(world, found["energy_mj"])
    if devices.regional:
        found["device_ns"]["regions"] = {name: _held(its, horizon) for name, its in _places(world)}
        if found["energy_mj"]:
            by_region = _regional_mj(world, found["energy_mj"]["parts"])
            found["energy_mj"]["regions"] = {name: sum(its.values()) for name, its in by_region.items()}
    return found


def _places(world: RunningWorld) -> list[tuple[str, dict[str, list[Holding]]]]:
    """Where the machine is, and who held devices there; a name may be empty."""
    names, devices = list(regions_of(world.scenario.machine, world.scenario.where)), world.machine.devices
    if devices.regional:
        return list(zip(names, devices.regional, strict=True))
    return [(world.scenario.events.carbon or (names[0] if names else ""), devices.history)]


def _held(history: dict[str, list[Holding]], horizon: int) -> dict[str, int]:
    """Device time of each holder."""
    return {who: held_ns(rows, 0, horizon) for who, rows in history.items()}


def _regional_mj(world: RunningWorld, parts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Energy by region and holder: that of each holder in proportion to the device time that it has there."""
    places, horizon = _places(world), world.scenario.horizon_ns
    found: dict[str, dict[str, int]] = {name: {} for name, _ in places}
    for who, its in parts.items():
        whole, left = sum(its.values()), sum(its.values())
        ns = [held_ns(history.get(who, [Holding(0, 0)]), 0, horizon) for _, history in places]
        last = max(range(len(ns)), key=lambda k: (ns[k] > 0, k))
        for k, (name, _) in enumerate(places):
            mine = left if k == last else min(round(whole * ns[k] / max(sum(ns), 1)), left)
            found[name][who], left = mine, left - mine
    return found


def _energy(world: RunningWorld) -> dict[str, Any] | None:
    """Of every holder: idle devices, and work above that. Devices that are down draw nothing."""
    device, devices, horizon = world.system.device, world.machine.devices, world.scenario.horizon_ns
    if not device.power_w:
        return None
    parts: dict[str, dict[str, int]] = {}
    for name in (*world.machine.workloads, FREE):
        idle = round(devices.device_ns(name, horizon) * device.idle_power_w / 1e6)
        parts[name] = {"idle": idle}
    for one in world.machine.workloads.values():
        parts[one.name]["work"] = round(drawn_j(one, horizon, device.power_w - device.idle_power_w) * 1e3)
    return {"total": sum(sum(its.values()) for its in parts.values()), "parts": parts}


def _cost(world: RunningWorld) -> dict[str, Any] | None:
    """What devices cost by the hour: those of the file of prices, or of the system."""
    text, horizon, places = world.scenario.events.prices, world.scenario.horizon_ns, _places(world)
    if text:
        prices = read_prices(text, [name for name, _ in places])
    elif world.system.device.price:
        prices = [DevicePrices(np.zeros(1, np.int64), np.array([world.system.device.price]))] * len(places)
    else:
        return None
    by_region = {
        name: {who: paid(rows, its, horizon) for who, rows in history.items()}
        for (name, history), its in zip(places, prices, strict=True)
    }
    return _sums(world, by_region)


def _sums(world: RunningWorld, by_region: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Totals, by holder and, if there are several, by region."""
    names = world.machine.devices.history
    parts = {who: sum(its[who] for its in by_region.values() if who in its) for who in names}
    parts = {who: value for who, value in parts.items() if any(who in its for its in by_region.values())}
    found: dict[str, Any] = {"total": sum(parts.values()), "parts": parts}
    if len(by_region) > 1:
        found["regions"] = {name: sum(its.values()) for name, its in by_region.items()}
    return found


def _carbon(world: RunningWorld, energy: dict[str, Any] | None) -> dict[str, Any] | None:
    names = [name for name, _ in _places(world)]
    if energy is None or not all(names):
        return None
    by_region: dict[str, dict[str, float]] = {}
    for name, its in _regional_mj(world, energy["parts"]).items():
        region = open_region(name)
        if not region.carbon_g_per_kwh:
            return None
        by_region[name] = {who: region.carbon_g(mj / 1e3) or 0.0 for who, mj in its.items()}
    return {"region": ", ".join(names), **_sums(world, by_region)}


def _power(world: RunningWorld) -> dict[str, Any]:
    governor = world.governor
    assert governor is not None
    rows = governor.readings[1:]
    over = [row for row in rows if row.total_w > governor.cap_w * ROUNDING]
    return {
        "cap_w": governor.cap_w,
        "mean_w": float(np.mean([row.total_w for row in rows])) if rows else None,
        "most_w": max((row.total_w for row in rows), default=None),
        "over_cap": len(over) / len(rows) if rows else 0.0,
        "training_speed": float(np.mean([row.speed for row in rows])) if rows else 1.0,
    }


def _sum_j(energy: dict[str, Any] | None, name: str) -> float | None:
    return None if energy is None else sum(energy["parts"][name].values()) / 1e3


def _share(parts: dict[str, int]) -> float | None:
    """Useful or busy device time, of what was held."""
    whole = sum(parts.values())
    return (parts.get("useful", 0) + parts.get("busy", 0)) / whole if whole else None


def _tables(world: RunningWorld) -> dict[str, pa.Table]:
    rows = [(row.time_ns / 1e9, who, row.devices) for who, its in world.machine.devices.history.items() for row in its]
    time, who, count = zip(*sorted(rows), strict=True)
    found = {"holdings": pa.table({"time_s": list(time), "holder": list(who), "devices": list(count)})}
    for one in world.machine.workloads.values():
        for name, table in one.tables().items():
            found[f"{one.name}_{name}"] = table
    if world.governor is not None:
        names = ("time_s", "base_w", "serving_w", "training_w", "speed")
        columns = list(zip(*((r.time_ns / 1e9, *r[1:]) for r in world.governor.readings), strict=True))
        found["power"] = pa.table(dict(zip(names, columns, strict=True)))
    return found
