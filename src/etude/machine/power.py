"""Power of a device: what it draws when idle and at work, and how that follows the clock.

    power = idle + (active + FLOP/s * energy of a FLOP) * (clock / nominal)^exponent + bytes/s * energy of a byte

Energies are in pJ (1e-12 J), which is what a watt at 1e12 FLOP/s or byte/s is. `active` is what running kernels draw
whatever they compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from etude.config import figure
from etude.errors import ClusterError

EXPONENT: Final = 2.5
"""Of the clock in the power of the cores, where no measurement says it: between a linear one (the voltage stays) and a
cubic one (it follows the clock)."""
LEAST_CLOCK: Final = 0.3
"""Lowest clock over the nominal one, where nothing says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCosts:
    """What work costs beyond the idle power, at the nominal clock."""

    active_w: float = figure("power", "of running kernels, whatever they compute", 0.0, zero=True)
    flop_pj: Mapping[str, float] = figure("map of number", "pJ of a FLOP by data type of the matrix units", {})
    vector_pj: float = figure("number", "pJ of a FLOP of the vector units", 0.0, zero=True)
    byte_pj: float = figure("number", "pJ of a byte read from or written to the memory", 0.0, zero=True)
    link_byte_pj: float = figure("number", "pJ of a byte sent over a link", 0.0, zero=True)
    quantised_w: float = figure("power", "of experts whose weights are scaled or unpacked, beyond", 0.0, zero=True)
    communication_w: float = figure("power", "of a running collective or message", 0.0, zero=True)
    clock_mhz: float = figure("number", "nominal clock in MHz; 0 unknown", 0.0, zero=True)
    least_clock_mhz: float = figure("number", "lowest clock in MHz; 0 unknown", 0.0, zero=True)
    exponent: float = figure("number", "of the clock in the power of the cores", EXPONENT)

    def __post_init__(self) -> None:
        if self.least_clock_mhz > self.clock_mhz:
            raise ClusterError(
                f"least_clock_mhz: {self.least_clock_mhz:g} is above the nominal clock of {self.clock_mhz:g} MHz"
            )
        if self.exponent < 1:
            raise ClusterError(f"exponent: {self.exponent} is less than 1: a faster clock would draw less power")

    @property
    def least_ratio(self) -> float:
        """Lowest clock over the nominal one."""
        return self.least_clock_mhz / self.clock_mhz if self.least_clock_mhz and self.clock_mhz else LEAST_CLOCK
