"""Search: the plans of a model on so many GPUs that fit their memory, ranked by simulated step time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from etude.cost.stacks import Stack
from etude.errors import EtudeError, UsageError
from etude.generate import Plan
from etude.generate.model import Family, Model
from etude.generate.train import plan_memory, sequence_of
from etude.machine.system import System
from etude.predict.step import Prediction, predict


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A plan that fits, with what it takes."""

    plan: Plan
    step_time_ns: int
    tokens_per_s_per_gpu: float
    mfu: float
    memory_peak_bytes: int

    def row(self) -> dict[str, Any]:
        p = self.plan
        return {
            "step_time_ns": self.step_time_ns, "tokens_per_s_per_gpu": round(self.tokens_per_s_per_gpu, 1),
            "mfu": round(self.mfu, 4), "memory_peak_bytes": self.memory_peak_bytes,
            "global_batch": p.batch, "tp": p.tp, "pp": p.pp, "cp": p.cp,
            "dp": p.dp, "ep": p.ep, "zero": p.zero, "schedule": p.schedule, "micro_batch": p.micro_batch,
            "recompute": str(p.recompute),
        }  # fmt: skip


TOKENS: Final = 1 << 24
"""Of a step at most, where nobody says: about what the largest models are trained with."""


def usual_batch(gpus: int, seq: int) -> int:
    """Samples of a step where nobody says: one for each GPU, as long as they are not too many tokens."""
    return min(gpus, max(1 << (max(TOKENS // max(seq, 1), 1).bit_length() - 1), 1))


def _powers(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def candidates(model: Model, gpus: int, system: System, base: dict[str, Any]) -> Iterator[Plan]:
    """Plans worth trying: tensor parallelism inside a node, powers of two, what `base` says left as it is."""
    node = min(system.levels[0].size, gpus)
    splits = model.family not in (Family.DLRM, Family.CONVNET)

    def choices(name: str, usual: list[Any]) -> list[Any]:
        return [base[name]] if name in base else usual

    for tp in choices("tp", _powers(min(node, 8)) if splits else [1]):
        for pp in choices("pp", [p for p in _powers(max(model.layers, 1)) if p <= 32]):
            for ep in choices("ep", [e for e in _powers(model.experts) if model.experts % e == 0] or [1]):
                for zero, micro in ((z, m) for z in choices("zero", [1, 3]) for m in choices("micro_batch", [1, 2, 4])):
                    chunks = [f"interleaved:{v}" for v in (2, 4) if pp > 1 and model.layers >= pp * v]
                    for schedule in choices("schedule", ["1f1b", *chunks] if pp > 1 else ["1f1b"]):
                        for again in choices("recompute", ["none", "selective:norm,activation", "full"]):
                            given = {"tp": tp, "pp": pp, "ep": ep, "zero": zero, "micro_batch": micro,
                                     "schedule": schedule, "recompute": again}  # fmt: skip
                            if zero == 3 and pp > 1:
                                continue  # weights would be gathered for every micro-batch
                            try:
                                yield Plan.from_dict({**base, **given, "gpus": gpus})
                            except UsageError:
                                continue


def feasible(model: Model, gpus: int, system: System, base: dict[str, Any]) -> list[tuple[int, Plan]]:
    """(memory, plan) of those that fit. Of plans that differ in recomputation alone the one that recomputes least."""
    limit, found, seen = system.memory_bytes, [], set()
    for plan in candidates(model, gpus, system, base):
        key = (plan.tp, plan.pp, plan.ep, plan.zero, plan.micro_batch, plan.schedule)
        if key in seen:
            continue
        try:
            peak = max(rank.peak_bytes for rank in plan_memory(model, plan))
        except EtudeError:
            continue
        if not limit or peak <= limit:
            seen.add(key)
            found.append((peak, plan))
    return found


def promise(model: Model, plan: Plan) -> float:
    """A rough step time, to simulate the likely best first: the bubble, work done twice, tensor-parallel traffic."""
    number = plan.schedule.partition(":")[2]
    chunks = int(number) if number.isdecimal() else 1  # other options make no chunks
    bubble = (plan.pp - 1) / (plan.micro_batches * chunks)
    again = 0.33 if plan.recomputes_layers else 0.02 if plan.twice else 0.0
    small = 0.05 / plan.micro_batch
    return (1 + bubble) * (1 + again + small + 0.03 * (plan.tp - 1) + (0.1 if plan.zero == 3 else 0.0))


def search(
    model: Model, gpus: int, system: System, *, tries: int = 24, advance: Callable[[int], None] = lambda n: None,
    stack: Stack | None = None, **base: Any,
) -> list[Ranked]:  # fmt: skip
    """The plans that fit, best first; `tries` of them, the most promising, are simulated, with the efficiency of
    `stack`. All have one batch."""
    base.setdefault("global_batch", usual_batch(gpus, int(base.get("seq") or sequence_of(model))))
    fitting = feasible(model, gpus, system, base)
    if not fitting:
        raise UsageError(f"no plan of `{model.name}` on {gpus:,} GPUs fits {system.memory_bytes:,} B of memory",
                         hint="more GPUs, a smaller --micro-batch or --seq, --recompute full")  # fmt: skip
    ranked = []
    for peak, plan in sorted(fitting, key=lambda f: promise(model, f[1]))[:tries]:
        found: Prediction = predict(model, plan, system, stack=stack, check=False)
        ranked.append(Ranked(plan, found.step_time_ns, found.tokens_per_s_per_gpu, found.mfu, peak))
        advance(1)
    return sorted(ranked, key=lambda r: r.step_time_ns)
