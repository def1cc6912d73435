"""Runs that can be had at any clock: recorded, simulated, or of a model that is predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from etude.analyse.energy import Energy
from etude.analyse.energy import energy as analyse
from etude.analyse.steps import step_times
from etude.cost.choice import Menu
from etude.machine.system import Device, System
from etude.make.generate.serving import ServedJob
from etude.model.job import Job
from etude.model.run import Run
from etude.run.simulate import simulate
from etude.steps.energy.clock import EnergyAt, slowed, step_at
from etude.steps.serving import predict_serving
from etude.steps.step import Prediction


@dataclass(frozen=True, slots=True)
class Clocked:
    """The energy of a run at a clock over the nominal one, and what the run is of."""

    at: EnergyAt
    device: Device
    mix: System | None = None
    """The system, where its devices are of several kinds."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Steps, tokens and requests, as far as they are known."""

    @classmethod
    def of_recording(cls, run: Run, device: Device, mix: System | None = None) -> Clocked:
        """A run with its own times, whatever the clock."""
        return cls(lambda ratio: analyse(run, device=device), device, mix, {"steps": _steps(run)})

    @classmethod
    def of_job(cls, job: Job, system: System, device: Device, mix: System | None = None) -> Clocked:
        """A job as it is simulated; at another clock with its compute slowed."""
        first = simulate(job, system)

        def at(ratio: float) -> Energy:
            run = first if ratio == 1.0 else simulate(slowed(job, device, ratio), system)
            return analyse(run, device=None if mix else device, ratio=ratio)

        return cls(at, device, mix, {"steps": _steps(first)})

    @classmethod
    def of_step(cls, found: Prediction, menu: Menu) -> Clocked:
        """A step that was predicted with these kernels."""
        system = found.system
        between = found.time_ns - found.simulated.makespan_ns

        def at(ratio: float) -> Energy:
            run = step_at(found, ratio)
            own = None if system.devices else system.device
            return analyse(run, device=own, ratio=ratio, end_ns=run.makespan_ns + between, menu=menu)

        counts = {"steps": found.generated.plan.steps, "tokens": found.generated.tokens}
        return cls(at, system.device, system if system.devices else None, counts)

    @classmethod
    def of_serving(cls, job: ServedJob, system: System, kernels: Sequence[str] = (), units: str = "") -> Clocked:
        """A job that serves, on as much of the system as it needs."""
        first = predict_serving(job, system, kernels=tuple(kernels), units=units).simulated
        machine, menu = first.system or system, Menu.of(kernels, units)

        def at(ratio: float) -> Energy:
            run = first if ratio == 1.0 else simulate(slowed(job.job, system.device, ratio), machine)
            return analyse(run, device=None if system.devices else system.device, ratio=ratio, menu=menu)

        counts = {"tokens": sum(r.output for r in job.requests), "requests": len(job.requests)}
        return cls(at, system.device, system if system.devices else None, counts)

    def kinds(self, ranks: int) -> list[tuple[Device, int]]:
        """The devices that this many ranks run on, and how many of each."""
        if self.mix is None:
            return [(self.device, ranks)]
        count = Counter(self.mix.kind_of(range(ranks)).tolist())
        return [(self.mix.all_kinds[kind], n) for kind, n in sorted(count.items())]


def _steps(run: Run) -> int:
    table = step_times(run)
    return len(set(table["step"].to_pylist())) if "step" in table.schema.names else 0
