"""predict_sections(sections, system): the step of a job of sections on a system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.errors import UsageError
from etude.generate.sections import Sectioned, Sections, generate_sections
from etude.machine.system import System
from etude.predict.step import grown
from etude.simulate import Simulated, simulate
from etude.units import format_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SectionPrediction:
    generated: Sectioned
    simulated: Simulated
    system: System

    @property
    def step_time_ns(self) -> int:
        """The host's time between steps is that of the section where it is longest."""
        overheads = [int(s.found.plan.step_overhead_ns) for s in self.generated.sections]
        return self.simulated.makespan_ns + max(overheads)

    @property
    def samples_per_s(self) -> float:
        return self.generated.batch / (self.step_time_ns / 1e9)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of the last section, over all ranks."""
        return self.generated.tokens / self.generated.gpus / (self.step_time_ns / 1e9)

    def mfu_of(self, number: int) -> float:
        """Products of a section over what its ranks could have done in the step."""
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
        hint="more ranks or tp, pp or zero in the plan of a section, a smaller micro_batch; or --no-memory-check",
    )


def predict_sections(
    given: Sections, system: System, *, gpus: int = 0, check: bool = True, **options: Any
) -> SectionPrediction:
    """Generated and simulated. `options` are those of the simulation."""
    generated = generate_sections(given, gpus=gpus)
    machine = grown(system, generated.gpus)
    if check:
        check_sections(generated, machine.device.memory_bytes, f"{given.name} on {system.name}")
    return SectionPrediction(generated, simulate(generated.job, machine, **options), machine)
