"""Power that is smoothed, from the text that says how: `floor:0.8`, `battery:2MJ`, `stagger:4`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from etude.analyse.energy import PowerCurve, with_battery, with_floor, with_stagger
from etude.base.errors import UsageError

__all__ = ["Smoothing"]

JOULES: Final = {"kj": 1e3, "mj": 1e6, "gj": 1e9, "kwh": 3.6e6, "j": 1.0}
"""Unit -> J."""
EFFICIENCY: Final = 0.9
"""Of a battery."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """A method and its figure: the part of the peak that is a floor, J of a battery, or jobs that are staggered."""

    method: str = "none"
    figure: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Smoothing:
        name, _, value = text.partition(":")
        if name in ("", "none"):
            return cls()
        unit = next((u for u in JOULES if value.lower().endswith(u)), "")
        try:
            figure = float(value.lower().removesuffix(unit)) * JOULES.get(unit, 1.0)
        except ValueError:
            figure = -1.0
        valid = {
            "floor": 0 <= figure <= 1 and not unit,
            "battery": figure >= 0,
            "stagger": figure >= 1 and figure % 1 == 0 and not unit,
        }
        if not valid.get(name):
            raise UsageError(f"unknown method `{text}`", hint="floor:0.8, battery:2MJ, stagger:4")
        return cls(name, figure)

    def of(self, curve: PowerCurve) -> PowerCurve:
        if self.method == "floor":
            return with_floor(curve, self.figure * curve.peak_w)
        if self.method == "battery":
            return with_battery(curve, self.figure, efficiency=EFFICIENCY)
        return with_stagger(curve, int(self.figure)) if self.method == "stagger" else curve
