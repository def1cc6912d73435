"""EstimateCase: what the error of a predicted figure depends on, as far as it is known before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

SCALE: Final = 64
"""Devices up to which a case is not larger than most that were measured."""

FULL: Final = 8
"""Sequences of a device up to which a batch is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateCase:
    """What is predicted, of what kind, and where."""

    figure: str
    """`step`, `memory`: what errors are kept of."""
    kind: str
    """`dense`, `experts`, ...: rows of one kind have errors of one size."""
    device: str
    precision: str = "bf16"
    named: bool = True
    """The software stack is known."""
    gpus: int = 1
    unstated: int = 0
    """Settings of the run that were assumed."""
    batch: float = 0.0
    """Sequences at once on a device, of serving."""
    elements: float = 0.0
    """Of an activation on a device, of training; of a single call its bytes. The less there are, the more the host
    and launches decide. 0: nothing is said of it."""

    def record(self) -> dict[str, Any]:
        """As an instance is made from it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def distances(self, fitted: Collection[str]) -> dict[str, float]:
        """How far the case is from what was measured, by what may widen its range; 0: not at all. `fitted`: devices
        that the predictor was fitted to."""
        found = {
            "stack": 0.0 if self.named else 1.0,
            "device": 0.0 if self.device in fitted else 1.0,
            "fp8": 1.0 if self.precision == "fp8" else 0.0,
            "fp4": 1.0 if self.precision == "fp4" else 0.0,
            "scale": max(0.0, math.log10(self.gpus / SCALE)),
            "unstated": float(self.unstated),
            "batch": max(0.0, math.log10(self.batch / FULL)) if self.batch else 0.0,
        }
        return {name: value for name, value in found.items() if value}


DISTANCES: Final = ("stack", "device", "fp8", "fp4", "scale", "unstated", "batch")
