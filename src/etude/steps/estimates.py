"""What predicted steps are like, for the ranges of their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from etude.cost.estimates import Estimate, EstimateCase, estimate_of, no_evidence
from etude.cost.stacks import Band, Stack, generation_of
from etude.cost.stacks.open import DEFAULT, NONE
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Family, Mixer, Model

ADAPTERS: Final = "adapters"
RECURRENT: Final = "recurrent"
OPEN: Final = ("micro_batch", "global_batch", "recompute")
"""Settings of a step that rules assume where they are not stated, beside its parallelism."""


def kind_of(model: Model, plan: Plan, stack: Stack) -> str:
    """Which measured rows a prediction is like."""
    if model.family != Family.DECODER:
        return str(model.family)
    if set(model.mixers) - {Mixer.ATTENTION, Mixer.NONE}:
        return RECURRENT
    if plan.frozen:
        return ADAPTERS
    if stack.family in ("xla", "eager"):
        return stack.family
    return "experts" if model.experts else "dense"


def open_settings(given: Mapping[str, Any]) -> int:
    """Settings of a step that are not given, or are empty."""
    missing = sum(not given.get(name) for name in OPEN)
    return missing + (not given.get("tp") and not given.get("pp"))


def step_case(
    model: Model, plan: Plan, system: System, stack: Stack, *, figure: str = "step", unstated: int = 0
) -> EstimateCase:
    """The case of a step; of a system of several kinds of devices, by one of which least is known."""
    devices = [device.name for device in system.all_kinds]
    unknown = [name for name in devices if not generation_of(name)]
    return EstimateCase(
        figure=figure,
        kind=kind_of(model, plan, stack),
        device=(unknown or devices)[0],
        precision=str(plan.precision),
        named=stack.name != DEFAULT,
        gpus=plan.gpus,
        unstated=unstated,
        elements=_elements(model, plan),
    )


def _elements(model: Model, plan: Plan) -> float:
    """Of the activation of a micro-batch on a device, where it is split."""
    tokens = plan.micro_batch * (plan.seq or model.seq)
    return float(tokens * model.hidden) / (plan.cp * plan.tp)


def step_estimate(value: float, case: EstimateCase, stack: Stack) -> Estimate:
    """Of a stack with errors of its own rows, by these."""
    if stack.name == NONE:
        return no_evidence(value, f"for the {case.figure} without a software stack", case)
    own = stack.bands.get(case.kind) or stack.bands.get("all")
    return estimate_of(value, case) if own is None else _by_own(value, case, own)


def _by_own(value: float, case: EstimateCase, own: Band) -> Estimate:
    """A range is symmetric in the logarithm, and no narrower than the errors of the rows."""
    from math import log1p

    basis = {"evidence": True, "rows": own.rows, "sources": 1, "text": f"{own.rows} {own.source}"}
    basis["case"] = case.record()
    return Estimate(value=value, half=log1p(own.p50), most=log1p(own.p90), basis=basis)
