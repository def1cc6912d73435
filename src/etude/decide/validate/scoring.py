"""Measured and predicted changes of a step, and the score of the graph that predicted them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.base.units import format_time
from etude.decide.validate.pairs import MeasuredChange

TOLERANCE: Final = 0.15
HIDDEN: Final = 0.5
"""A change that is smaller than this share of the delay is held to the tolerance of that share."""


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """A delay at a place: what it changed, and what the graph says."""

    where: str
    measured: MeasuredChange
    predicted_ns: int

    @property
    def within(self) -> bool:
        """Off by at most 15% of the measured change, or of half the delay if that is more: a delay that the program
        hides must be predicted as hidden."""
        return abs(self.predicted_ns - self.measured.change_ns) <= TOLERANCE * self.scale_ns

    @property
    def scale_ns(self) -> float:
        return max(abs(self.measured.change_ns), HIDDEN * self.measured.injected_ns)

    def record(self) -> dict[str, Any]:
        it = self.measured
        return {"where": self.where, "injected_ns": it.injected_ns, "measured_ns": it.change_ns,
                "spread_ns": it.spread_ns, "predicted_ns": self.predicted_ns, "within": self.within,
                "pairs": it.pairs}  # fmt: skip

    def row(self) -> dict[str, Any]:
        it = self.measured
        return {
            "where": self.where,
            "injected": format_time(it.injected_ns),
            "measured": f"{_signed(it.change_ns)} ± {format_time(it.spread_ns)}",
            "predicted": _signed(self.predicted_ns),
            "off by": f"{self.off:.0%}",
            "within": "yes" if self.within else "no",
        }

    @property
    def off(self) -> float:
        return abs(self.predicted_ns - self.measured.change_ns) / max(self.scale_ns, 1.0)


def _signed(time_ns: int) -> str:
    return f"{'-' if time_ns < 0 else '+'}{format_time(abs(time_ns))}"


@dataclass(frozen=True, slots=True)
class Validated:
    """What was put in where, what it changed, and what the graph predicted."""

    places: tuple[PlaceResult, ...]
    step_ns: Mapping[str, int]
    """The step without delays: `measured`, and `predicted` by the graph."""
    ranks: int
    runs: int
    """Runs of the program with delays."""

    @property
    def score(self) -> float:
        """The share of places whose change the graph predicted."""
        return sum(one.within for one in self.places) / len(self.places)

    def record(self) -> dict[str, Any]:
        return {"places": [one.record() for one in self.places], "score": round(self.score, 4),
                "tolerance": TOLERANCE, "step_ns": dict(self.step_ns), "ranks": self.ranks,
                "runs": self.runs}  # fmt: skip
