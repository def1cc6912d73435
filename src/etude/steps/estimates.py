"""What predicted steps are like, for the ranges of their figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from etude.analyse.devices import device_of
from etude.analyse.program_figures import PROGRAM, times_of
from etude.cost.estimates import Estimate, EstimateCase, estimate_of, no_evidence
from etude.cost.stacks import Band, Stack, generation_of
from etude.cost.stacks.open import DEFAULT, NONE
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.model.job import Job
from etude.run.simulate import Simulated

OPEN: Final = ("micro_batch", "global_batch", "recompute")
"""Settings of a step that rules assume where they are not stated, beside its parallelism."""


PROGRAM_STEP: Final = "program step"
"""What other people's programs, most of them models of transformers, show of a step."""


def _under(stack: Stack, kind: str, figure: str = "step") -> tuple[str, str]:
    """Figure and kind of the measured rows that a step is like: those of XLA and of eager PyTorch are kinds of their
    own."""
    if stack.family == "transformers" and figure == "step":
        return PROGRAM_STEP, "programs" if kind == "dense" else kind
    own = stack.family in ("xla", "eager") and kind in ("dense", "experts")
    return figure, stack.family if own else kind


def open_settings(given: Mapping[str, Any]) -> int:
    """Settings of a step that are not given, or are empty."""
    missing = sum(not given.get(name) for name in OPEN)
    return missing + (not given.get("tp") and not given.get("pp"))


def step_case(
    model: Model, plan: Plan, system: System, stack: Stack, *, figure: str = "step", unstated: int = 0
) -> EstimateCase:
    """The case of a step; of a system of several kinds of devices, by one of which least is known."""
    like, kind = _under(stack, plan.step_kind(model), figure)
    return EstimateCase(
        figure=like,
        kind=kind,
        device=_least_known(system),
        precision=str(plan.precision),
        named=stack.name != DEFAULT,
        gpus=plan.gpus,
        unstated=unstated,
        elements=plan.elements(model),
    )


def _least_known(system: System) -> str:
    devices = [device.name for device in system.all_kinds]
    unknown = [name for name in devices if not generation_of(name)]
    return (unknown or devices)[0]


def job_estimate(run: Simulated, system: System, stack: Stack | None, *, by_database: bool = False) -> Estimate:
    """Of the time of a job that was simulated: that of its step, where it was generated from a model and a plan."""
    case = job_case(run.job, system, stack or Stack(name=NONE))
    if case is None:
        return no_evidence(float(run.makespan_ns), f"for the time of {_unlike(run.job, system)}")
    found = made_of(run, case, stack or Stack(name=NONE), float(run.makespan_ns), by_database=by_database)
    if "edits" in run.job.provenance and found.most is not None:
        return replace(found, basis={**found.basis, "text": f"{found.basis['text']}; an edited job, as if it was not"})
    return found


def made_of(run: Simulated, case: EstimateCase, stack: Stack, value: float, *, by_database: bool) -> Estimate:
    """Of a figure of a generated step, as it was simulated."""
    of_step = case.figure in ("step", PROGRAM_STEP)
    if of_step and run.choices():
        return no_evidence(value, "for a step with chosen kernels or units", case)
    if of_step and by_database:
        return no_evidence(value, "for a step by a database of operators", case)
    return step_estimate(value, case, stack)


def _unlike(job: Job, system: System) -> str:
    """Which jobs no held-out row is like."""
    if "sections" in job.provenance:
        return "a step of several models"
    device = device_of(job)
    if device is not None and device.name != system.device.name:
        return f"a job that was recorded on {device.name}, on {system.device.name}"
    if device is not None or times_of(job) != PROGRAM:
        return "a recorded job: operators with times take as long again, and messages as long as the network says"
    return "a job that does not say from which model and plan of training it was generated"


def job_case(job: Job, system: System, stack: Stack) -> EstimateCase | None:
    """The case of the step of a job that was generated from a model and a plan; None of any other."""
    made = job.provenance
    if "kind" not in made or "elements" not in made:
        return None
    like, kind = _under(stack, made["kind"])
    return EstimateCase(
        figure=like,
        kind=kind,
        device=_least_known(system),
        precision=made.get("precision", "bf16"),
        named=stack.name != DEFAULT,
        gpus=job.world_size,
        elements=float(made["elements"]),
    )


ENERGY: Final = ("energy_j", "kwh", "mean_w", "per_step_j", "per_token_j", "per_request_j", "carbon_g", "cost")
"""Figures that are proportional to the energy."""
TRAIN_STEP: Final = "train_step"


def energy_estimates(figures: Mapping[str, Any], kind: str, device: str) -> dict[str, Estimate]:
    """Energy, carbon and price by what was measured of such runs on such a device; of the highest power nothing was."""
    energy = estimate_of(1.0, EstimateCase(figure="energy of a call", kind=kind, device=device))
    found = {name: energy.at(figures[name]) for name in ENERGY if figures.get(name) is not None}
    return found | {"peak_w": no_evidence(figures["peak_w"], "for the highest power")}


def step_estimate(value: float, case: EstimateCase, stack: Stack) -> Estimate:
    """The time of a step of a stack with errors of its own rows, by these."""
    if stack.name == NONE:
        return no_evidence(value, f"for the {case.figure} without a software stack", case)
    own = stack.bands.get(case.kind) or stack.bands.get("all")
    return _by_own(value, case, own) if own is not None and case.figure != "memory" else estimate_of(value, case)


def _by_own(value: float, case: EstimateCase, own: Band) -> Estimate:
    """A range is symmetric in the logarithm, and no narrower than the errors of the rows."""
    from math import log1p

    basis = {"evidence": True, "rows": own.rows, "sources": 1, "text": f"{own.rows} {own.source}"}
    basis["case"] = case.record()
    return Estimate(value=value, half=log1p(own.p50), most=log1p(own.p90), basis=basis)
