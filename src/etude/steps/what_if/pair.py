"""A prediction paired with that of the same job after edits: the same random draws for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from etude.base.errors import UsageError
from etude.cost.stacks.stack import tuned
from etude.make.generate.train import with_less, with_memory
from etude.make.transform import with_durations
from etude.make.transform.edits import Edit, Edited, apply_edits
from etude.model.job import Job
from etude.model.timing import Timing
from etude.steps.step import Prediction, check_memory, efficiency_of, simulated_on, with_host_memory


class Predicted(Protocol):
    """A prediction of one model's step, or of a job of sections."""

    @property
    def time_ns(self) -> int: ...
    @property
    def step_time_ns(self) -> int: ...
    @property
    def tokens_per_s_per_gpu(self) -> float: ...
    @property
    def mfu(self) -> float: ...
    def summary(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """A prediction, and what edits of its job make of it, with the same draws of all noise."""

    baseline: Predicted
    edited: Predicted
    edits: Edited

    @property
    def speedup(self) -> float:
        return self.baseline.time_ns / self.edited.time_ns

    def summary(self) -> dict[str, Any]:
        """Figures of the edited job, as `predict` has them without edits, and both side by side."""
        return self.edited.summary() | {
            "baseline": self.baseline.summary(),
            "edited": self.edited.summary(),
            "speedup": self.speedup,
            "findings": findings([self]),
            "edits": [step.record() for step in self.edits.steps],
        }


def findings(pairs: Sequence[WhatIf]) -> list[str]:
    """What a reader should not miss: that the edits cost more than they bring, on average over all seeds."""
    before, after = (
        sum(p.time_ns for p in found) for found in zip(*((w.baseline, w.edited) for w in pairs), strict=True)
    )
    if after <= before:
        return []
    said = f"the edited step is {after / before - 1:.1%} slower than the baseline"
    judged = any(
        step.edit.name == "compress" and step.edit.arguments()["when"] == "pays" for step in pairs[0].edits.steps
    )
    return (
        [f"{said}: `when=pays` judges each call by itself, and codecs occupy the compute stream unless `lane=own`"]
        if judged
        else [said]
    )


def simulated_again(found: Prediction, **options: Any) -> Prediction:
    """The same job on the same system with other options of the simulation: another seed."""
    by = efficiency_of(found.generated.model, found.system, found.stack)
    return replace(
        found, simulated=simulated_on(found.generated, found.system, by, with_host_memory(found.generated, options))
    )


def what_if(found: Prediction, edits: Sequence[str | Edit], *, check: bool = False, **options: Any) -> WhatIf:
    """The job of a prediction edited and simulated again on the same system. `options` are those it was made with.

    Edits see the times that compute takes on the system, so that `speed` has something to change. `check`: what does
    not fit the device although some of it is elsewhere is refused.
    """
    generated, by = found.generated, efficiency_of(found.generated.model, found.system, found.stack)
    machine = tuned(found.system, by)
    by_record = options.get("compute", "recorded") in ("recorded", "scaled")
    job = with_durations(generated.job, machine.device) if by_record else generated.job
    calm = {name: given for name, given in options.items() if name != "jitter"}  # codecs are chosen before the noise

    def times(edited: Job) -> Timing:
        return simulated_on(replace(generated, job=edited), found.system, by, with_host_memory(generated, calm)).timing

    applied = apply_edits(job, edits, system=machine, times=times)
    if applied.job.world_size > generated.job.world_size:
        raise UsageError("an edit that adds ranks changes the plan", hint="give `predict` the larger plan")
    changed = replace(generated, job=applied.job)
    if any(step.edit.name == "recompute" for step in applied.steps):
        changed, told = with_memory(generated, applied.job)
        applied = replace(applied, notes=(*applied.notes, told))
    freed = [(one.what, one.ranks, one.size_bytes) for step in applied.steps for one in step.freed]
    changed = with_less(changed, freed) if freed else changed
    if check and freed:
        check_memory(changed, found.system.memory_bytes, f"{generated.model.name} on {found.system.name}")
    simulated = simulated_on(changed, found.system, by, with_host_memory(generated, options))
    return WhatIf(found, replace(found, generated=changed, simulated=simulated), applied)


def over_seeds(
    found: Prediction, edits: Sequence[str | Edit], seeds: int, *, check: bool = False, **options: Any
) -> list[WhatIf]:
    """The baseline and the edited job for each seed from that of `options` on, both with the same random draws."""
    first = options.get("seed", 0)
    pairs = []
    for seed in range(first, first + seeds):
        mine = {**options, "seed": seed} if "jitter" in options else options
        baseline = found if seed == first else simulated_again(found, **mine)
        pairs.append(what_if(baseline, edits, check=check, **mine))
    return pairs


def summary_of(pairs: Sequence[WhatIf]) -> dict[str, Any]:
    """The summary of the first pair, what a reader should not miss, and of several seeds the steps and their means."""
    record = pairs[0].summary() | {"findings": findings(pairs)}
    if len(pairs) > 1:
        before, after = (
            [one.step_time_ns for one in found] for found in zip(*((p.baseline, p.edited) for p in pairs), strict=True)
        )
        record["seeds"] = [{"baseline_ns": a, "edited_ns": b} for a, b in zip(before, after, strict=True)]
        record["mean_step_time_ns"] = {"baseline": sum(before) / len(pairs), "edited": sum(after) / len(pairs)}
    return record
