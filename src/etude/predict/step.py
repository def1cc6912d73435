"""predict(model, plan, system): the step of a generated job on a system, and what that means in tokens and FLOP/s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.errors import UsageError
from etude.generate import Generated, Plan, generate
from etude.generate.model import Model
from etude.machine.system import System
from etude.simulate import RemoteMemory, Simulated, simulate
from etude.units import format_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    generated: Generated
    simulated: Simulated
    system: System

    @property
    def time_ns(self) -> int:
        """Of all steps."""
        plan = self.generated.plan
        return self.simulated.makespan_ns + plan.steps * int(plan.step_overhead_ns)

    @property
    def step_time_ns(self) -> int:
        """Of a step, the mean where there are several."""
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
        peak = self.system.device.peak(self.generated.plan.dtype)
        return self.generated.model_flops / (self.time_ns / 1e9) / (peak * self.generated.plan.gpus)

    def summary(self) -> dict[str, Any]:
        figures = {
            "step_time_ns": self.step_time_ns,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
        }
        return self.generated.summary() | figures | self.of_lengths() | self.generated.pipeline()

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
        hint="more --tp, --pp or --zero, --recompute full, a smaller --micro-batch; or --no-memory-check",
    )


def predict(model: Model, plan: Plan, system: System, *, check: bool = True, **options: Any) -> Prediction:
    """Generated and simulated. `options` are those of the simulation."""
    machine = grown(system, plan.gpus)
    if plan.host_bandwidth_bytes_per_s:
        options.setdefault("remote_memory", RemoteMemory(bytes_per_s=plan.host_bandwidth_bytes_per_s))
    generated = generate(model, plan)
    if generated.rounds and "remote_memory" not in options:
        raise UsageError(
            f"schedule `{plan.schedule}` streams weights from the host's memory, whose bandwidth is not given",
            hint="--host-bandwidth 50GB/s",
        )
    if check:
        check_memory(generated, machine.device.memory_bytes, f"{model.name} on {system.name}")
    return Prediction(generated, simulate(generated.job, machine, **options), machine)
