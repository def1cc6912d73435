"""predict_sections(sections, system): the step of a job of sections on a system, as a stack runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import key_of
from etude.base.units import format_bytes
from etude.cost.stacks import Efficiency, Stack
from etude.cost.stacks.stack import KNOBS, NEUTRAL, tuned, with_kernels
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.make.generate.sections import Sectioned, Sections, generate_sections
from etude.make.transform import with_durations
from etude.make.transform.edits import Edit, apply_edits
from etude.model.job import Job
from etude.run.simulate import Overlap, Simulated, simulate
from etude.steps.measured import RunFacts, completed
from etude.steps.step import efficiency_of, grown
from etude.steps.what_if import WhatIf


@dataclass(frozen=True, slots=True, eq=False)
class SectionPrediction:
    generated: Sectioned
    simulated: Simulated
    system: System
    stack: Stack | None = None
    assumed: tuple[str, ...] = ()
    """Taken from the stack's recipe."""

    @property
    def step_time_ns(self) -> int:
        """The host's time between steps is that of the section in which it is longest."""
        overheads = [int(s.found.plan.step_overhead_ns) for s in self.generated.sections]
        return self.simulated.makespan_ns + max(overheads)

    @property
    def time_ns(self) -> int:
        return self.step_time_ns

    @property
    def samples_per_s(self) -> float:
        return self.generated.batch / (self.step_time_ns / 1e9)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of the last section, over all ranks."""
        return self.generated.tokens / self.generated.gpus / (self.step_time_ns / 1e9)

    def mfu_of(self, number: int) -> float:
        """FLOPs of a section's products over what its ranks could have done in the step."""
        section = self.generated.sections[number]
        peak = self.system.device.peak(section.found.plan.dtype)
        return section.model_flops / (self.step_time_ns / 1e9) / (peak * len(section.ranks))

    @property
    def mfu(self) -> float:
        peak = self.system.device.peak(self.generated.sections[-1].found.plan.dtype)
        return self.generated.model_flops / (self.step_time_ns / 1e9) / (peak * self.generated.gpus)

    def summary(self) -> dict[str, Any]:
        found = self.generated.summary()
        for number, section in enumerate(found["sections"].values()):
            section["mfu"] = self.mfu_of(number)
        found |= {"stack": self.stack.name} if self.stack else {}
        found |= {"assumed": list(self.assumed)} if self.assumed else {}
        return found | {
            "step_time_ns": self.step_time_ns,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
        }


def check_sections(found: Sectioned, limit_bytes: int, what: str) -> None:
    """Refuses sections that do not fit, with the numbers."""
    if not limit_bytes or found.memory_peak_bytes <= limit_bytes:
        return
    told = ", ".join(f"{s.name} {format_bytes(max(s.peaks()))}" for s in found.sections)
    raise UsageError(
        f"the sections do not fit: a rank needs {format_bytes(found.memory_peak_bytes)} of {format_bytes(limit_bytes)} "
        f"(at most: {told})",
        where=what,
        hint="use more ranks or tp, pp or zero in the plan of a section, a smaller micro_batch; or --no-memory-check",
    )


def predict_sections(
    given: Sections, system: System, *, gpus: int = 0, stack: Stack | None = None, check: bool = True, **options: Any
) -> SectionPrediction:
    """Generated and simulated, with the efficiency of `stack`. `options` are those of the simulation."""
    hosts = {n: efficiency_of(open_model(s.model), system, stack).host for n, s in given.sections.items()}
    generated = generate_sections(given, gpus=gpus, hosts=hosts)
    machine = with_kernels(grown(system, generated.gpus), stack)
    if check:
        check_sections(generated, machine.device.memory_bytes, f"{given.name} on {system.name}")
    by = _efficiency(generated, system, stack)
    return SectionPrediction(generated, _simulated(generated.job, machine, by, options), machine, stack)


def _simulated(job: Job, machine: System, by: Efficiency, options: Mapping[str, Any]) -> Simulated:
    slower = {"overlap": Overlap(compute=by.overlap)} if by.overlap > 1 else {}
    return simulate(job, tuned(machine, by), **{**slower, **options})


def sections_what_if(found: SectionPrediction, edits: Sequence[str | Edit], **options: Any) -> WhatIf:
    """The job of all sections edited, and simulated again on the same system."""
    by = _efficiency(found.generated, found.system, found.stack)
    machine = tuned(found.system, by)
    job = with_durations(found.generated.job, machine.device)
    applied = apply_edits(
        job, edits, system=machine, times=lambda edited: _simulated(edited, found.system, by, options).timing
    )
    if applied.job.world_size > job.world_size:
        raise UsageError("an edit that adds ranks changes the plans", hint="give the sections more ranks")
    changed = replace(found.generated, job=applied.job)
    after = replace(found, generated=changed, simulated=_simulated(applied.job, found.system, by, options))
    return WhatIf(found, after, applied)


def _efficiency(found: Sectioned, system: System, stack: Stack | None) -> Efficiency:
    """Factors of all sections. A stack has others for models with experts: where both kinds are in a job, the geometric
    mean, each section as heavy as its products."""
    each = [efficiency_of(s.found.model, system, stack) for s in found.sections]
    made = [s.name for s in found.sections if s.section.makes_tokens]
    if made and any(one != NEUTRAL for one in each):
        raise UsageError(
            f"a stack applies only to training steps, and `{made[0]}` generates tokens", hint="--stack none"
        )
    if all(one == each[0] for one in each):
        return each[0]
    mean = np.exp(
        np.average(np.log([e.values() for e in each]), axis=0, weights=[s.model_flops for s in found.sections])
    )
    return Efficiency(**dict(zip(KNOBS, mean.tolist(), strict=True)))


def completed_sections(
    given: Sections, system: System, stack: Stack, *, gpus: int = 0
) -> tuple[Sections, tuple[str, ...]]:
    """What plans leave open as the stack's recipe has it, section by section; and what that was."""
    ranks, told, done = given.ranks(given.world(gpus)), [], {}
    keys = {f.name: key_of(f) for f in fields(Plan)}
    for name, section in given.sections.items():
        waits = given.takes_gradients(name) and not given.ordered(name)
        own: dict[str, Any] = {"schedule": "gpipe"} if waits else {}
        own |= {"micro_batch": 1, **section.plan}
        whole = {**own, "gpus": len(ranks[name]), "global_batch": given.batch, "train": section.train}
        plan, said = completed(RunFacts(model=open_model(section.model), given=whole, system=system), stack)
        usual = Plan.from_dict(whole)
        more = {
            keys[f.name]: getattr(plan, f.name) for f in fields(Plan) if getattr(plan, f.name) != getattr(usual, f.name)
        }
        if given.ordered(name):
            more.pop("schedule", None)
        done[name] = replace(section, plan={**own, **{key: _written(v) for key, v in more.items()}})
        told += [f"{name}: {text}" for text in said]
    return replace(given, sections=done), tuple(told)


def _written(value: Any) -> Any:
    """A field of a plan as a file has it."""
    return list(value) if isinstance(value, tuple) else value
