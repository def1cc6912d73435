"""The ranges of a job's days: that of its step, and what faults, repairs and saves add to it without evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from etude.cost.estimates import Estimate, columns, no_evidence

OF_STEP: Final = ("step_s", "planned_tokens_per_s")
"""Figures that are as uncertain as the step."""
OF_DAYS: Final = ("goodput_tokens_per_s", "steps", "tokens")
"""Figures that faults, repairs and saves change, too: what these take is given, not measured."""
GIVEN: Final = "faults, repairs and saves are taken as they are given, of which there is no evidence"
ALONE: Final = {
    "useful_fraction": "for the useful part of days of training: faults, repairs and saves are taken as they are given",
    "energy_j": "for the energy of days of training",
}
UNKNOWN: Final = "for the days of a job whose step was given"


def day_ranges(record: Mapping[str, Any], step: Estimate | None) -> dict[str, Any]:
    """`low`, `high`, `low_50`, `high_50` and `basis` of the figures of days."""
    found = {name: _of(step, record[name], "") for name in OF_STEP}
    found |= {name: _of(step, record[name], GIVEN) for name in OF_DAYS}
    found |= {name: no_evidence(record[name], why) for name, why in ALONE.items() if record[name] is not None}
    return columns(found)


def _of(step: Estimate | None, value: float, more: str) -> Estimate:
    if step is None:
        return no_evidence(value, UNKNOWN)
    at = step.at(value)
    if not more or at.most is None:
        return at
    return replace(at, basis={**at.basis, "text": f"{at.basis['text']}; as wide as that of the step: {more}"})
