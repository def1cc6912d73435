"""Several steps in one job: the step again and again, each behind the update of the one before."""

import numpy as np
import pytest

import etude
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate
from etude.model.schema import Kind
from toy_systems import one_level

TINY = Model(name="tiny", layers=4, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)
PLANS: list[dict[str, object]] = [
    {"gpus": 1},
    {"gpus": 4, "pp": 4, "global_batch": 8},
    {"gpus": 4, "pp": 2, "zero": 1, "global_batch": 8, "schedule": "zb1p"},
    {"gpus": 4, "pp": 4, "global_batch": 8, "schedule": "dualpipe"},
    {"gpus": 4, "zero": 1, "overlap_params": False, "global_batch": 8},
    {"gpus": 4, "zero": 3, "global_batch": 8, "precision": "fp8", "host_ns": 5000.0},
]


@pytest.mark.parametrize("options", PLANS)
def test_n_steps_are_n_times_one(options: dict[str, object]):
    """Nodes and sums exactly; time as nearly as the ends of ranks lie together."""
    one, three = (generate(TINY, Plan(seq=64, steps=n, **options)) for n in (1, 3))  # type: ignore[arg-type]
    assert etude.check(three.job) == []
    assert three.job.nodes == 3 * one.job.nodes
    assert (three.tokens, three.model_flops) == (3 * one.tokens, 3 * one.model_flops)
    assert three.memory_peak_bytes == one.memory_peak_bytes
    system = one_level("switch", 16)
    times = [etude.simulate(g.job, system, compute="roofline").makespan_ns for g in (one, three)]
    assert times[1] == pytest.approx(3 * times[0], rel=2e-3)


@pytest.mark.parametrize("options", PLANS)
def test_a_step_waits_for_the_update_before_it(options: dict[str, object]):
    """No compute or collective of a step starts before the last update of the step before has ended; what the host
    issues ahead, receives and loads of data do."""
    job = generate(TINY, Plan(seq=64, steps=3, **options)).job  # type: ignore[arg-type]
    done = etude.simulate(job, one_level("switch", 16), compute="roofline")
    for rank in range(len(job)):
        t = job.trace(rank)
        start, end = done.timing.block(rank)
        codes, words = t.coded("phase")
        update = np.array([w == "optimizer" for w in words] + [False])[codes] & (t.kind == Kind.COMP) & (t.cpu != 1)
        work = ((t.kind == Kind.COMP) & (t.cpu != 1)) | (t.kind == Kind.COLL)
        for step in (1, 2):
            assert start[work & (t.step == step)].min() >= end[update & (t.step == step - 1)].max()


def test_micro_batches_count_within_their_step():
    job = generate(TINY, Plan(gpus=2, pp=2, seq=64, global_batch=4, steps=2)).job
    t = job.trace(0)
    sends = np.flatnonzero(t.kind == Kind.SEND)
    assert [(int(t.step[i]), int(t.micro_batch[i])) for i in sends] == [(s, m) for s in (0, 1) for m in range(4)]
    assert len(set(t.tag[sends].tolist())) == 8


def test_one_checkpoint_at_the_end():
    job = generate(TINY, Plan(gpus=1, seq=64, steps=3, checkpoint=True)).job
    t = job.trace(0)
    assert t.step[t.kind == Kind.MEM_STORE].tolist() == [2]
