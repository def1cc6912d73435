"""The ranges of a stream's figures: of means, of percentiles, of tokens per second and of energy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from etude.cost.estimates import Estimate, columns, estimate_of, no_evidence
from etude.machine import open_system
from etude.world.serve.asked.service import ModelService
from etude.world.serve.estimates import FIGURES, RATE, serving_case

RANGES: Final = {
    "ttft_s": "ttft_s",
    "tpot_s": "tpot_s",
    "itl_s": "itl_s",
    "latency_s": "latency_s",
    "output_tokens_per_s": "tokens_per_s",
    "energy_j": "energy_j_per_token",
}
"""Figure of a stream -> what errors are kept of. Of times it is the mean over requests, and percentiles have ranges as
wide."""
PROGRAMS: Final = "programs"
MEAN: Final = "mean"


def with_ranges(service: ModelService, one: dict[str, Any]) -> dict[str, Any]:
    """The summary of a stream with `low`, `high`, `low_50`, `high_50` and `basis` of its figures; a percentile is
    `ttft_s.p99`."""
    found: dict[str, Estimate] = {}
    for name, errors in RANGES.items():
        values = one[name] if isinstance(one[name], dict) else {MEAN: one[name]}
        if values[MEAN] is None:
            continue
        found[name] = mean = _estimate(service, one, errors, values[MEAN])
        found |= {f"{name}.{key}": _as_wide(mean, value) for key, value in values.items() if key != MEAN}
    return one | columns(found)


def _as_wide(mean: Estimate, value: float) -> Estimate:
    """A percentile, whose errors were measured too seldom."""
    text = mean.basis["text"] + ("" if mean.most is None else "; as wide as that of the mean")
    return replace(mean.at(value), basis={**mean.basis, "text": text})


def _estimate(service: ModelService, one: dict[str, Any], figure: str, value: float) -> Estimate:
    costs, said = service.costs, FIGURES[figure]
    if service.model is None:
        return no_evidence(value, f"for the {said} of {PROGRAMS}")
    if costs.get("ops") or costs.get("stack") == "none":
        how = "by a profile of operators" if costs.get("ops") else "without a software stack"
        return no_evidence(value, f"for the {said} {how}")
    first = service.pools[0]
    waiting = one["latency_s"]["mean"] * one["requests"] / one["duration_s"] if one["latency_s"] else 0.0
    case = serving_case(
        figure,
        open_system(first.system or service.system).device.name,
        experts=bool(service.model.experts),
        load=RATE,
        precision=str(costs.get("precision", "bf16")),
        gpus=sum(pool.gpus for pool in service.pools),
        batch=waiting,
    )
    return estimate_of(value, case)
