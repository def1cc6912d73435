"""Directives: ZeRO built by rewrites of a step in which each copy is alone, against ZeRO as flags."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from etude.errors import UsageError
from etude.generate import Generated, Plan, generate
from etude.generate.model.open import open_model
from etude.generate.model.shape import Model
from etude.machine import open_system
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import Kind
from etude.simulate.run import simulate

EXAMPLES = Path(__file__).parents[2] / "examples" / "directives"


def dense(**more: object) -> Model:
    return Model(name="tiny", layers=4, hidden=256, heads=4, ffn=704, vocab=1000, seq=128, **more)  # type: ignore[arg-type]


def experts() -> Model:
    return dense(experts=8, top_k=2, expert_ffn=256)


def moved(job: Job) -> Counter[tuple[object, ...]]:
    """Collectives of all ranks: program, kind, group, bytes in and out, phase."""
    found: Counter[tuple[object, ...]] = Counter()
    for number, trace in enumerate(job.traces):
        for row in np.flatnonzero(trace.kind == int(Kind.COLL)).tolist():
            label = trace.group_slots[int(trace.group[row])]
            found[number, int(trace.collective[row]), label, int(trace.in_bytes[row]), int(trace.out_bytes[row]), trace.text("phase", row)] += 1
    return found


def same(model: Model, plan: Plan, zero: int, bucket: str = "40000000") -> tuple[Generated, Generated]:
    flags = generate(model, plan.replace(zero=zero))
    made = generate(model, plan.replace(directives=str(EXAMPLES / f"zero{zero}.yaml")))
    assert moved(made.job) == moved(flags.job)
    for mine, theirs in zip(made.job.traces, flags.job.traces, strict=True):
        assert len(mine) == len(theirs)
        assert int(mine.flops[mine.kind == int(Kind.COMP)].sum()) == int(theirs.flops[theirs.kind == int(Kind.COMP)].sum())
    system = open_system("dgx-h100")
    assert simulate(made.job, system).makespan_ns == simulate(flags.job, system).makespan_ns
    return made, flags


PLANS = [
    Plan(gpus=4, micro_batch=1, global_batch=8),
    Plan(gpus=8, tp=2, micro_batch=1, global_batch=8),
    Plan(gpus=8, pp=2, micro_batch=1, global_batch=16),
    Plan(gpus=8, pp=2, schedule="interleaved:2", micro_batch=1, global_batch=16),
    Plan(gpus=8, pp=2, schedule="zb1p", micro_batch=1, global_batch=16),
    Plan(gpus=8, cp=2, micro_batch=1, global_batch=4),
    Plan(gpus=4, micro_batch=1, global_batch=8, recompute="full"),
    Plan(gpus=4, micro_batch=1, global_batch=8, steps=2),
]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_zero_by_rewrites_moves_the_bytes_of_the_flags_in_their_time(number: int, zero: int):
    same(dense(), PLANS[number], zero)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_experts_have_copies_of_their_own(zero: int):
    same(experts(), Plan(gpus=8, ep=2, micro_batch=1, global_batch=16), zero)


def test_random_plans():
    rng = random.Random(5)
    for _ in range(12):
        tp, pp, cp = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([1, 2])
        dp = rng.choice([2, 4])
        micro = rng.choice([1, 2])
        plan = Plan(
            gpus=tp * pp * cp * dp, tp=tp, pp=pp, cp=cp, micro_batch=micro, global_batch=dp * micro * rng.choice([2, 4]),
            schedule=rng.choice(["1f1b", "gpipe"]), grad_dtype=rng.choice(["fp32", "bf16"]), clip=rng.random() < 0.5,
        )  # fmt: skip
        same(dense(tied=rng.random() < 0.5), plan, rng.randrange(4))


def test_rewritten_jobs_are_sound():
    made, _ = same(open_model("gpt2"), Plan(gpus=4, micro_batch=1, global_batch=4), 3)
    assert list(check(made.job)) == []
