"""GPUs as named in tables: the system that represents one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Final

from etude.base.errors import UsageError
from etude.base.figures import figure, parse, read
from etude.cost.ops import OpClass
from etude.machine import open_system
from etude.machine.system import Device, System

CLOCK: Final = 1 / 3
"""A chip's power grows with the cube of its clock, where the voltage follows the clock: a lower limit of the power
costs matrix products that last, and attention, this power of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of a table, by its differences from that of a system of the catalogue; 0: none."""

    system: str = figure("text", "system of the catalogue")
    memory_bytes: int = figure("bytes", "size of its memory", 0)
    memory_bandwidth_bytes_per_s: float = figure("bandwidth", "bandwidth of its memory", 0.0)
    bandwidth_bytes_per_s: float = figure("bandwidth", "bandwidth of the innermost level, one direction", 0.0)
    power_w: float = figure("power", "power limit", 0.0)

    def machine(self) -> System:
        made = open_system(self.system)
        made = made.replace(device=self._device(made.device))
        if self.bandwidth_bytes_per_s:
            near = replace(made.levels[0], bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
            made = made.replace(levels=(near, *made.levels[1:]))
        return made

    def _device(self, device: Device) -> Device:
        if self.memory_bytes:
            device = replace(device, memory_bytes=self.memory_bytes)
        if self.memory_bandwidth_bytes_per_s:
            device = replace(device, memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s)
        if self.power_w and device.power_w:
            slower = (self.power_w / device.power_w) ** CLOCK
            ops = dict(device.ops)
            if core := ops.get(OpClass.ATTENTION.key):
                ops[OpClass.ATTENTION.key] = replace(core, flop_efficiency=core.flop_efficiency * slower)
            lasting = device.sustained_fraction * slower
            device = replace(device, power_w=self.power_w, sustained_fraction=lasting, ops=ops)
        return device


def words(name: str) -> frozenset[str]:
    return frozenset(w for w in re.split(r"[^a-z0-9]+", name.lower()) if w)


@cache
def _known() -> dict[frozenset[str], Gpu]:
    given = parse(files("etude.steps.measured").joinpath("gpus.yaml").read_text("utf-8"), "gpus.yaml")
    return {words(name): read(Gpu, about, f"gpus.yaml: {name}") for name, about in given.items()}


def gpu_system(name: str) -> System:
    """The system of the catalogue that represents a GPU of a table."""
    said = words(name)
    found = [entry for entry in _known() if entry <= said]
    if not found:
        known = ", ".join(sorted("-".join(sorted(e)) for e in _known() if len(e) == 1))
        raise UsageError(f"there is no system for the GPU `{name}`", hint=f"known: {known}")
    return _known()[max(found, key=len)].machine()
