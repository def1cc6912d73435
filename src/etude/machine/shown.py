"""How a system is shown in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.base.notebook import card, note, records
from etude.base.units import format_bandwidth, format_bytes, format_count, format_time

if TYPE_CHECKING:
    from etude.machine.system import Device, System


def system_html(system: System) -> str:
    levels = [
        {
            "level": level.name,
            "kind": str(level.kind.value),
            "size": level.size,
            "bandwidth": format_bandwidth(round(level.bandwidth_bytes_per_s)),
            "latency": format_time(round(level.latency_ns)),
        }
        for level in system.levels
    ]
    facts: list[tuple[str, Any]] = [("devices", len(system)), ("kinds", len(system.all_kinds))]
    for device in system.all_kinds:
        facts += _device(device)
    return card("system", system.name, facts, records(levels), note(system.doc) if system.doc else "")


def _device(device: Device) -> list[tuple[str, str]]:
    dense = device.peak("bf16")
    known = [
        (bool(dense), "peak, bf16", f"{format_count(round(dense))}FLOP/s"),
        (bool(device.memory_bytes), "memory", format_bytes(device.memory_bytes)),
        (
            bool(device.memory_bandwidth_bytes_per_s),
            "memory bandwidth",
            format_bandwidth(round(device.memory_bandwidth_bytes_per_s)),
        ),
        (bool(device.power_w), "power", f"{device.power_w:g} W"),
    ]
    return [("device", device.name)] + [(name, said) for there, name, said in known if there]
