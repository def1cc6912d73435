"""A machine on which everything takes a factor longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from etude.cost.compute import cost_of
from etude.cost.ops import OpClass
from etude.machine.system import Device, System


def slower_system(system: System, factor: float) -> System:
    """All times of devices and networks times a factor, all rates divided by it; sizes and efficiencies stay."""
    if factor == 1.0:
        return system
    found: System = _slower(system.with_devices(_with_all_ops), factor)
    return found


def _with_all_ops(device: Device) -> Device:
    """Constants of every class of ops, also of those that the device leaves to defaults."""
    return replace(device, ops={one.key: cost_of(device, one) for one in OpClass if one} | dict(device.ops))


def _slower(value: Any, factor: float) -> Any:
    """A value with its fields scaled as their units say."""
    if isinstance(value, tuple):
        return tuple(_slower(one, factor) for one in value)
    if isinstance(value, Mapping):
        return {name: _slower(one, factor) for name, one in value.items()}
    if not is_dataclass(value):
        return value
    changes = {}
    for one in fields(value):
        is_rate = one.name.endswith("_per_s") or one.name == "units"
        by = factor if one.name.endswith("_ns") else 1 / factor if is_rate else 0.0
        its = getattr(value, one.name)
        changes[one.name] = _times(its, by) if by else _slower(its, factor)
    return replace(value, **changes)  # type: ignore[type-var]


def _times(value: Any, by: float) -> Any:
    if isinstance(value, Mapping):
        return {name: _times(one, by) for name, one in value.items()}
    return value * by
