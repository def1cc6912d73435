"""Power of a device: what it draws when idle and at work, and how that depends on the clock.

    power = idle + active * c(clock) + FLOP/s * energy of a FLOP * v(clock)^2 + bytes/s * energy of a byte

v is the voltage over that at the nominal clock and c = clock / nominal * v^2; where nothing says how the voltage
follows the clock, c = (clock / nominal)^exponent. Energies are in pJ (1e-12 J), which is what a watt at 1e12 FLOP/s or
byte/s is. `active` is what running kernels draw whatever they compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from etude.base.errors import ClusterError
from etude.base.figures import figure

EXPONENT: Final = 2.5
"""Exponent of the clock in the power of the cores, unless measured: between a linear one (constant voltage) and a cubic
one (voltage follows the clock)."""
LEAST_CLOCK: Final = 0.3
"""Lowest clock over the nominal one, if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCosts:
    """Costs of work above the idle power, at the nominal clock."""

    active_w: float = figure("power", "power of running kernels, independent of their work", 0.0)
    flop_pj: Mapping[str, float] = figure("map of number", "pJ of a FLOP by data type of the matrix units", {})
    vector_pj: float = figure("number", "pJ of a FLOP of the vector units", 0.0)
    byte_pj: float = figure("number", "pJ of a byte read from or written to the memory", 0.0)
    link_byte_pj: float = figure("number", "pJ of a byte sent over a link", 0.0)
    quantised_w: float = figure("power", "additional power of experts whose weights are scaled in blocks", 0.0)
    packed_w: float = figure("power", "additional power of experts whose weights are unpacked from 4 bits", 0.0)
    communication_w: float = figure("power", "power of a running collective or message", 0.0)
    clock_mhz: float = figure("number", "nominal clock in MHz; 0 unknown", 0.0)
    least_clock_mhz: float = figure("number", "lowest clock in MHz; 0 unknown", 0.0)
    exponent: float = figure("number", "exponent of the clock in the power of the cores", EXPONENT)
    voltage_clock_mhz: float = figure("number", "clock in MHz below which the voltage is constant; 0 unknown", 0.0)
    least_voltage: float = figure("number", "voltage there relative to that at the nominal clock", 1.0)
    memory_clock_mhz: float = figure("number", "clock in MHz below which the memory is also slower", 0.0)
    clocked_idle: float = figure("number", "fraction of the idle power that follows the clock", 0.0)
    measured_clocks: bool = figure("flag", "whether these four were measured on this device", False)

    def __post_init__(self) -> None:
        if self.least_clock_mhz > self.clock_mhz:
            raise ClusterError(
                f"least_clock_mhz: {self.least_clock_mhz:g} is above the nominal clock of {self.clock_mhz:g} MHz"
            )
        if max(self.voltage_clock_mhz, self.memory_clock_mhz) > self.clock_mhz:
            raise ClusterError(
                f"voltage_clock_mhz, memory_clock_mhz: above the nominal clock of {self.clock_mhz:g} MHz"
            )
        if self.least_voltage > 1 or self.clocked_idle > 1:
            raise ClusterError("least_voltage and clocked_idle must be at most 1")
        if self.exponent < 1:
            raise ClusterError(f"exponent: {self.exponent} is less than 1: a faster clock would draw less power")

    @property
    def least_ratio(self) -> float:
        """Lowest clock over the nominal one."""
        return self.least_clock_mhz / self.clock_mhz if self.least_clock_mhz and self.clock_mhz else LEAST_CLOCK

    def flop_factor(self, ratio: float) -> float:
        """Energy of an operation at a clock relative to the nominal one, over that at the nominal one: the square of
        the voltage, if a device has a voltage curve."""
        if not self.voltage_clock_mhz:
            return ratio ** (self.exponent - 1)
        knee = self.voltage_clock_mhz / self.clock_mhz
        above = max(ratio - knee, 0.0) / (1 - knee) if knee < 1 else 0.0
        return (self.least_voltage + (1 - self.least_voltage) * above) ** 2

    def core_factor(self, ratio: float) -> float:
        """The same for the power that does not depend on what is computed."""
        return ratio * self.flop_factor(ratio)

    def memory_factor(self, ratio: float) -> float:
        """Time of the memory at a clock over that at the nominal one: slower cores request less than it can deliver."""
        return max(1.0, self.memory_clock_mhz / self.clock_mhz / ratio) if self.memory_clock_mhz else 1.0
