"""predict(model, plan, system): the step of a generated job on a system, and what that means in tokens and FLOP/s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.units import format_bytes, format_time
from etude.cost.estimates import Estimate, columns
from etude.cost.stacks import Efficiency, Stack, generation_of
from etude.cost.stacks.open import NONE
from etude.cost.stacks.stack import NEUTRAL, tuned, user_buffers, with_kernels
from etude.machine.system import System
from etude.make.generate import Generated, Plan, generate
from etude.make.generate.model import Model
from etude.make.generate.schedules import steady_from
from etude.model.job import Job
from etude.run.simulate import Overlap, RemoteMemory, Simulated, simulate
from etude.steps.estimates import made_of, step_case


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """A generated step, simulated on a system: its time, memory and utilisation."""

    generated: Generated
    simulated: Simulated
    system: System
    stack: Stack | None = None
    assumed: tuple[str, ...] = ()
    """What was taken from the stack's recipe, or from a database of operators."""
    by_database: bool = False
    """Kernels take the times of a database of operators: the errors of a stack say nothing of it."""
    unstated: int = 0
    """Settings of the run that were assumed."""

    def __repr__(self) -> str:
        made, peak = self.generated, format_bytes(self.generated.memory_peak_bytes)
        return (
            f"Prediction(`{made.model.name}` on {made.plan.gpus:,} devices of {self.system.name}: step "
            f"{format_time(self.step_time_ns)}, MFU {self.mfu:.1%}, memory {peak})"
        )

    @property
    def time_ns(self) -> int:
        """Time of all steps."""
        plan = self.generated.plan
        return self.simulated.makespan_ns + plan.steps * int(plan.step_overhead_ns)

    @property
    def step_time_ns(self) -> int:
        """Time of a step, the mean of several."""
        return round(self.time_ns / self.generated.plan.steps)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.generated.tokens / self.generated.plan.gpus / (self.time_ns / 1e9)

    @property
    def samples_per_s(self) -> float:
        return self.generated.samples / (self.time_ns / 1e9)

    @property
    def mfu(self) -> float:
        """Products of the model (nothing twice) over what the devices could have done, dense 16-bit (or 32-bit)."""
        peak = self.system.peak(self.generated.plan.dtype, self.generated.plan.gpus)
        return self.generated.model_flops / (self.time_ns / 1e9) / peak

    def elsewhere(self, machine: System, **options: Any) -> Prediction:
        """The same job on the same machine with its ranks on other places. `options` are those of `predict`."""
        generated = self.generated
        by = efficiency_of(generated.model, machine, self.stack)
        run = simulated_on(generated, machine, by, with_host_memory(generated, options))
        return replace(self, simulated=run, system=machine)

    def summary(self) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "step_time_ns": self.step_time_ns,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
        }
        if self.stack is not None:
            figures["stack"] = self.stack.name
            figures |= {"assumed": list(self.assumed)} if self.assumed else {}
        told = self.of_lengths() | self.generated.pipeline() | self.simulated.choices()
        return self.generated.summary() | figures | told | columns(self.estimates())

    def estimates(self) -> dict[str, Estimate]:
        """The figures of `summary` that are predicted, with their ranges."""
        step = self._estimate("step", float(self.step_time_ns))
        return {
            "step_time_ns": step,
            "tokens_per_s_per_gpu": step.at(self.tokens_per_s_per_gpu),
            "mfu": step.at(self.mfu),
            "memory_peak_bytes": self._estimate("memory", float(self.generated.memory_peak_bytes)),
        }

    def _estimate(self, figure: str, value: float) -> Estimate:
        stack = self.stack or Stack(name=NONE)
        made = self.generated
        case = step_case(made.model, made.plan, self.system, stack, figure=figure, unstated=self.unstated)
        return made_of(self.simulated, case, stack, value, by_database=self.by_database)

    def of_lengths(self) -> dict[str, Any]:
        """Where samples have lengths: what comes out, what is padding, how uneven ranks are."""
        dealt = self.generated.dealt
        if dealt is None:
            return {}
        return {
            "samples_per_s": self.samples_per_s,
            "padding": dealt.padding,
            "imbalance": dealt.imbalance(self.generated.pair_cost),
            "steps": dealt.steps,
            "samples": int(dealt.samples.sum()),
            "samples_left": dealt.left,
        }


def grown(system: System, ranks: int) -> System:
    """The system with as many nodes as the ranks need, or the slice of a torus that they take."""
    return system.for_ranks(ranks)


def check_memory(generated: Generated, limit_bytes: int, what: str) -> None:
    """Refuses a plan that does not fit, with the numbers."""
    worst = max(generated.memory, key=lambda m: m.peak_bytes)
    if not limit_bytes or worst.peak_bytes <= limit_bytes:
        return
    moving = worst.moving_bytes
    parts = {
        "weights": worst.weights,
        "gradients": worst.gradients,
        "optimizer": worst.optimizer,
        "activations": moving,
    }
    told = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    raise UsageError(
        f"the plan does not fit: pipeline rank {generated.memory.index(worst)} needs "
        f"{format_bytes(worst.peak_bytes)} of {format_bytes(limit_bytes)} ({told})",
        where=what,
        hint="use more --tp, --pp or --zero, --recompute full, a smaller --micro-batch; or --no-memory-check",
    )


def efficiency_of(model: Model, system: System, stack: Stack | None) -> Efficiency:
    """Factors of a stack on the device of a system."""
    if stack is None:
        return NEUTRAL
    return stack.on(generation_of(system.device.name), experts=bool(model.experts))


def machine_for(plan: Plan, system: System, stack: Stack | None = None) -> System:
    """The part of a system that a plan runs on, as a stack uses it.

    A job that is larger than the innermost level and no multiple of it takes an equal part of each unit, a power of
    two: 64 of a rack's 72 GPUs.
    """
    first = system.levels[0]
    if len(system.levels) > 1 and not system.placement and plan.gpus > first.size and plan.gpus % first.size:
        part = 1 << (first.size.bit_length() - 1)
        if plan.gpus % part == 0:
            system = system.replace(levels=(replace(first, size=part), *system.levels[1:]))
    system = with_kernels(system, stack)
    if stack is not None and stack.user_buffers and plan.tp_chunks > 1:
        system = user_buffers(system)
    return grown(system, plan.gpus)


def predict(
    model: Model, plan: Plan, system: System, *, stack: Stack | None = None, check: bool = True, **options: Any
) -> Prediction:
    """Generated and simulated, with the efficiency of `stack`. `options` are those of the simulation."""
    machine, by = machine_for(plan, system, stack), efficiency_of(model, system, stack)
    database, taken = options.get("ops"), list[str]()
    if database is not None:
        # What was measured is as efficient as it is: of the stack the network, the overlap and the plan remain.
        options, by = {"compute": "ops", **options}, replace(by, products=1.0, fp8=1.0, attention=1.0, rest=1.0)
        measured_ns = database.host_ns()
        if plan.host_ns and measured_ns is not None:
            plan, by = plan.replace(host_ns=measured_ns), replace(by, host=1.0)
            taken.append(f"operators: the host takes {measured_ns / 1000:.1f} us for an op, as measured")
    generated = generate(model, plan.replace(host_ns=plan.host_ns * by.host))
    options = with_host_memory(generated, options)
    if check:
        check_memory(generated, machine.memory_bytes, f"{model.name} on {system.name}")
    found = simulated_on(generated, machine, by, options)
    return Prediction(generated, found, machine, stack, tuple(taken), database is not None)


def with_host_memory(generated: Generated, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a simulation, with the memory of the host that weights are streamed from."""
    plan = generated.plan
    if plan.host_bandwidth_bytes_per_s:
        options = {"remote_memory": RemoteMemory(bytes_per_s=plan.host_bandwidth_bytes_per_s), **options}
    if generated.rounds and "remote_memory" not in options:
        problem = f"schedule `{plan.schedule}` streams weights from the host's memory, whose bandwidth is not given"
        raise UsageError(problem, hint="--host-bandwidth 50GB/s")
    return options


def simulated_on(generated: Generated, machine: System, by: Efficiency, options: dict[str, Any]) -> Simulated:
    system, options = as_efficient(machine, by, options)
    return simulate(generated.job, system, **options)


def on_stack(
    job: Job, machine: System, stack: Stack | None, options: Mapping[str, Any]
) -> tuple[System, dict[str, Any]]:
    """The system and the options of a simulation of a job that is there already, with the efficiency of a stack."""
    if stack is None:
        return machine, dict(options)
    is_experts = job.provenance.get("kind") == "experts"
    return as_efficient(
        with_kernels(machine, stack), stack.on(generation_of(machine.device.name), experts=is_experts), options
    )


def as_efficient(machine: System, by: Efficiency, options: Mapping[str, Any]) -> tuple[System, dict[str, Any]]:
    """The system and the options of a simulation with the factors of a stack."""
    if by.overlap > 1 and not options.keys() & {"overlap", "contention", "share"}:
        options = {**options, "overlap": Overlap(compute=by.overlap)}
    return tuned(machine, by), dict(options)


MANY: Final = 3
"""Micro-batches for each pipeline rank, above which a step is a straight line from fewer."""


def step_times(
    model: Model, plan: Plan, system: System, settings: list[Efficiency], stack: Stack | None
) -> list[float]:
    """Seconds of a step under each of these efficiencies. The plan is that of `stack` already.

    Of many micro-batches two shorter steps are simulated, with one and two for each pipeline rank (two and four without
    a pipeline, or as many as the schedule needs), and a straight line goes on from there: each more takes as long as
    the last.
    """
    machine, counts, few = (
        machine_for(plan, system, stack),
        [plan.micro_batches],
        steady_from(plan.schedule, ranks=plan.pp),
    )
    if few and not plan.lengths and plan.steps == 1 and plan.micro_batches > MANY * few:
        counts = [few, 2 * few]
    found = []
    for count in counts:
        short = plan.replace(global_batch=plan.dp * plan.micro_batch * count)
        hosts = {by.host for by in settings}
        jobs = {host: generate(model, short.replace(host_ns=plan.host_ns * host)) for host in hosts}
        options = with_host_memory(next(iter(jobs.values())), {})
        found.append([simulated_on(jobs[by.host], machine, by, options).makespan_ns / 1e9 for by in settings])
    if len(counts) == 1:
        times = found[0]
    else:
        more = (plan.micro_batches - counts[1]) / (counts[1] - counts[0])
        times = [b + (b - a) * more for a, b in zip(*found, strict=True)]
    return [t + plan.step_overhead_ns / 1e9 for t in times]


def step_time(model: Model, plan: Plan, system: System, stack: Stack | None = None) -> float:
    """Seconds of a step."""
    return step_times(model, plan, system, [efficiency_of(model, system, stack)], stack)[0]
