"""Plans of a model that a recipe leaves open: those that fit the memory, and how promising each is. `etude.search` has
the best by simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.base.errors import EtudeError, UsageError
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Family, Model
from etude.make.generate.train import plan_memory


def powers(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def candidates(model: Model, gpus: int, system: System, base: dict[str, Any]) -> Iterator[Plan]:
    """Plans worth trying: tensor parallelism inside a node, powers of two, with the fields of `base` unchanged."""
    node = min(system.levels[0].size, gpus)
    splits = model.family not in (Family.DLRM, Family.CONVNET)

    def choices(name: str, usual: list[Any]) -> list[Any]:
        return [base[name]] if name in base else usual

    for tp in choices("tp", powers(min(node, 8)) if splits else [1]):
        for pp in choices("pp", [p for p in powers(max(model.layers, 1)) if p <= 32]):
            for ep in choices("ep", [e for e in powers(model.experts) if model.experts % e == 0] or [1]):
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
    """(memory, plan) of those that fit. Among plans that differ only in recomputation the one that recomputes least."""
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


def promise(plan: Plan) -> float:
    """A rough step time, to simulate the likely best first: the bubble, work done twice, tensor-parallel traffic."""
    number = plan.schedule.partition(":")[2]
    chunks = int(number) if number.isdecimal() else 1  # other options make no chunks
    bubble = (plan.pp - 1) / (plan.micro_batches * chunks)
    again = 0.33 if plan.recomputes_layers else 0.02 if plan.twice else 0.0
    small = 0.05 / plan.micro_batch
    return (1 + bubble) * (1 + again + small + 0.03 * (plan.tp - 1) + (0.1 if plan.zero == 3 else 0.0))
