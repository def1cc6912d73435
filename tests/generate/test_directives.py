"""Directives: ZeRO built by rewrites of a step in which each copy is alone, against ZeRO as flags."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import ClusterError, UsageError
from etude.machine import open_system
from etude.make.generate import Generated, Plan, generate
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.trace import Trace
from etude.run.simulate.run import simulate

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
            found[
                number,
                int(trace.collective[row]),
                label,
                int(trace.in_bytes[row]),
                int(trace.out_bytes[row]),
                trace.text("phase", row),
            ] += 1
    return found


def same(model: Model, plan: Plan, zero: int) -> tuple[Generated, Generated]:
    flags = generate(model, plan.replace(zero=zero))
    made = generate(model, plan.replace(directives=str(EXAMPLES / f"zero{zero}.yaml")))
    assert moved(made.job) == moved(flags.job)
    for mine, theirs in zip(made.job.traces, flags.job.traces, strict=True):
        assert len(mine) == len(theirs)
        assert int(mine.flops[mine.kind == int(Kind.COMP)].sum()) == int(
            theirs.flops[theirs.kind == int(Kind.COMP)].sum()
        )
    system = open_system("dgx-h100")
    assert simulate(made.job, system).makespan_ns == simulate(flags.job, system).makespan_ns
    assert made.memory_peak_bytes == flags.memory_peak_bytes
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
    Plan(gpus=8, pp=4, schedule="dualpipe", micro_batch=1, global_batch=16),
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
            gpus=tp * pp * cp * dp,
            tp=tp,
            pp=pp,
            cp=cp,
            micro_batch=micro,
            global_batch=dp * micro * rng.choice([2, 4]),
            schedule=rng.choice(["1f1b", "gpipe"]),
            grad_dtype=rng.choice(["fp32", "bf16"]),
            clip=rng.random() < 0.5,
        )
        same(dense(tied=rng.random() < 0.5), plan, rng.randrange(4))


def test_rewritten_jobs_are_sound():
    made, _ = same(open_model("gpt2"), Plan(gpus=4, micro_batch=1, global_batch=4), 3)
    assert list(check(made.job)) == []


# -- other rewrites ----------------------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str, name: str = "d.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_alone_copies_exchange_nothing(tmp_path: Path):
    """Without `replicate` each copy trains for itself: 4 ranks do what one does."""
    alone = written(tmp_path, "- order: {select: {phase: optimizer}, after: {phase: forward}}")
    made = generate(dense(), Plan(gpus=4, clip=False, directives=alone))
    assert not moved(made.job)


def test_place_gives_layers_to_stages(tmp_path: Path):
    text = "- place: {layers: 0, stage: 0}\n- place: {layers: 1-3, stage: 1}\n- replicate: {over: dp}\n"
    made = generate(dense(), Plan(gpus=4, pp=2, global_batch=4, directives=written(tmp_path, text)))
    names = [
        {name.split(".")[1] for name in _modules(trace) if name.startswith("layers.")} for trace in made.job.traces
    ]
    assert names == [{"0"}, {"1", "2", "3"}]


def _modules(trace: Trace) -> list[str]:
    return [trace.text("module", row) for row in range(len(trace))]


def test_order_adds_control_edges_within_a_micro_batch(tmp_path: Path):
    text = """
- order:
    select: {module: "layers.1.ffn.up*", phase: forward}
    after: {module: "layers.0.ffn.up*", phase: forward}
"""
    plain = generate(dense(), Plan(gpus=1, global_batch=2)).job.traces[0]
    trace = generate(dense(), Plan(gpus=1, global_batch=2, directives=written(tmp_path, text))).job.traces[0]
    assert len(trace) == len(plain)
    new = set(_edges(trace)) - set(_edges(plain))
    assert len(new) == 2  # one in each micro-batch
    for row, waited in new:
        assert trace.text("module", row).startswith("layers.1.ffn.up")
        assert trace.text("module", waited).startswith("layers.0.ffn.up")
        assert trace.micro_batch[row] == trace.micro_batch[waited]


def _edges(trace: Trace) -> list[tuple[int, int]]:
    rows = np.repeat(np.arange(len(trace)), np.diff(trace.ctrl_start))
    return list(zip(rows.tolist(), trace.ctrl.tolist(), strict=True))


def test_overlap_moves_collectives_to_a_stream(tmp_path: Path):
    text = "- overlap: {select: {kind: collective, group: tp}, stream: 30}"
    trace = generate(dense(), Plan(gpus=2, tp=2, clip=False, directives=written(tmp_path, text))).job.traces[0]
    calls = trace.kind == int(Kind.COLL)
    assert calls.any()
    assert set(trace.stream[calls].tolist()) == {30}


def test_a_rewrite_of_ones_own(tmp_path: Path):
    source = """
from etude.make.generate.directives.step import Select

def rewrite(step):
    for node in step.select(Select(phase="forward", module="head.*")):
        step.insert(step.op(node), "again", after=node, ctrl=[node])
"""
    path = written(tmp_path, source, "mine.py")
    plain = generate(dense(), Plan(gpus=1)).job.traces[0]
    trace = generate(dense(), Plan(gpus=1, directives=f"{path}:rewrite")).job.traces[0]
    again = sum(name.startswith("again") for name in _modules(trace))
    assert again > 0
    assert len(trace) == len(plain) + again


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a list of directives"),
        ("- shrink: {}", "unknown verb `shrink`"),
        ("- shard: {tensor: gradients}", "before they are summed"),
        ("- shard: {tensor: everything}", "everything"),
        ("- replicate: {bucket: none}", "bucket `none`"),
        ("- replicate: {to: dp}", "unknown key `to`"),
        ("- gather: {before: step}", "every copy has them whole"),
        ("- replicate: {}\n- shard: {tensor: weights}", "not gathered where they are used"),
        ("- replicate: {}\n- shard: {tensor: optimizer}", "not gathered"),
        ("- replicate: {}\n- shard: {tensor: gradients, over: shard}", "needs the number of copies"),
        ("- place: {layers: 0-1, stage: 0}", "layer 2 has no stage"),
        ("- overlap: {select: {kind: compute}, stream: 30}", "not communication"),
        ("[", "not YAML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, problem: str):
    with pytest.raises(UsageError, match=problem):
        generate(dense(), Plan(gpus=2, directives=written(tmp_path, text)))


def test_circles_are_refused(tmp_path: Path):
    source = """
from etude.make.generate.directives.step import Select

def rewrite(step):
    nodes = step.select(Select(phase="forward"))
    step.join(nodes[0], ctrl=[nodes[-1]])
"""
    path = written(tmp_path, source, "mine.py")
    with pytest.raises(UsageError, match="wait for one another"):
        generate(dense(), Plan(gpus=1, directives=f"{path}:rewrite"))


def test_weights_in_8_bits_are_not_sharded_by_directives():
    with pytest.raises(UsageError, match="cast to 8 bits"):
        generate(dense(), Plan(gpus=2, precision="fp8", directives=str(EXAMPLES / "zero3.yaml")))  # type: ignore[arg-type]


def test_flags_and_directives_do_not_mix():
    with pytest.raises(ClusterError, match="directives replace ZeRO stages"):
        Plan(gpus=2, zero=1, directives="d.yaml")
