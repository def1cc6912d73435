"""`roundrobin`: cuts by hand, loads in closed form, bytes up and down, jobs that end."""

from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.round_robin import DispatchRounds, RoundRobinOptions, StageCut, cut
from etude.make.generate.train.job import generate
from etude.model.schema import Collective, Kind
from etude.steps.step import predict
from toy_systems import one_level

TINY = Model(name="tiny", layers=8, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)


def ranges(cuts: tuple[StageCut, ...], *, back: bool) -> list[tuple[int, int]]:
    return [(c.first, c.last) for c in cuts if c.back == back]


def test_cuts_by_hand():
    """Six equal layers, 1 forward and 3 back: three of them forward are one back. A head of 2 makes room for 6: two
    layers back (and the embedding), all of the model forward."""
    even = cut([1] * 6, [3] * 6, RoundRobinOptions())
    assert ranges(even, back=False) == [(0, 3), (3, 6)]
    assert ranges(even, back=True) == [(5, 6), (4, 5), (3, 4), (2, 3), (1, 2), (0, 1)]
    uneven = [0.1, 1, 1, 1, 1, 2], [0.1, 3, 3, 3, 3, 6]
    assert ranges(cut(*uneven, RoundRobinOptions()), back=False) == [(0, 6)]
    assert ranges(cut(*uneven, RoundRobinOptions()), back=True) == [(5, 6), (3, 5), (0, 3)]
    fused = cut(*uneven, RoundRobinOptions(1, True))
    assert ranges(fused, back=False) == [(0, 5)]
    assert [c.fused for c in fused] == [False, True, False, False]
    assert ranges(cut([1] * 6, [3] * 6, RoundRobinOptions(2)), back=True) == [(4, 6), (2, 4), (0, 2)]


def test_a_small_block_goes_with_a_large_one():
    assert ranges(cut([0.1, 1, 1], [0.2, 3, 3], RoundRobinOptions()), back=True) == [(2, 3), (0, 2)]


def naive_ends(r: DispatchRounds, cost: list[float]) -> dict[tuple[int, int, int], float]:
    """End of each (step, cut, micro-batch), one after another."""
    ends: dict[tuple[int, int, int], float] = {}
    free = [0.0] * r.ranks
    for j in range(r.steps * len(r.cuts)):
        step, number = divmod(j, len(r.cuts))
        for micro in range(r.micro_batches):
            begin = max(free[j % r.ranks], ends[step, number - 1, micro] if number else 0.0)
            free[j % r.ranks] = ends[step, number, micro] = begin + cost[number]
    return ends


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 7), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_times_loads_and_visits(n: int, m: int, steps: int, cost: list[int]):
    r = DispatchRounds(tuple(StageCut(i > 0, i, i + 1) for i in range(len(cost))), n, m, steps)
    begin, end = r.times([float(c) for c in cost])
    ends = naive_ends(r, [float(c) for c in cost])
    each = len(cost)
    for (step, number, micro), when in ends.items():
        assert end[step * each + number, micro] == pytest.approx(when)
        assert begin[step * each + number, micro] == pytest.approx(when - cost[number])
    visits = [r.visits(rank) for rank in range(n)]
    assert sorted(v for mine in visits for v in mine) == [(s, c) for s in range(steps) for c in range(each)]
    if gcd(each, n) == 1 and steps % n == 0:  # n steps: every cut once on every rank
        assert {sum(cost[c] for _, c in mine) for mine in visits} == {sum(cost) * steps // n}
    if each % n == 0:  # the same cuts in every step
        assert [sum(cost[c] for _, c in mine) for mine in visits] == [steps * sum(cost[k::n]) for k in range(n)]


def test_ranks_fill_one_stage_time_after_another():
    r = DispatchRounds(tuple(StageCut(i > 2, i, i + 1) for i in range(9)), 4, 6, 1)
    begin, _ = r.times([2.0] * 9)
    assert begin[:4, 0].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert DispatchRounds(r.cuts, 1, 6, 2).times([2.0] * 9)[1].max() == 9 * 6 * 2 * 2  # one rank: never idle


def moved(job: etude.Job, part: str) -> int:
    total = 0
    for rank in range(len(job)):
        t = job.trace(rank)
        codes, names = t.coded("name")
        rows = np.isin(t.kind, (Kind.MEM_LOAD, Kind.MEM_STORE)) & (np.array([*names, ""])[codes] == part)
        total += int(t.tensor_bytes[rows].sum())
    return total


@pytest.mark.parametrize("pp", [1, 3, 4])
def test_weights_go_up_twice_and_gradients_down_once(pp: int):
    """2 bytes a weight up, 4 a gradient down, for each step; a fused stage goes up once."""
    plan = Plan(gpus=pp, pp=pp, seq=64, global_batch=4, steps=2, schedule="roundrobin")
    found = generate(TINY, plan)
    assert moved(found.job, "upload") == 2 * 2 * found.params * 2
    assert moved(found.job, "gradients") == 2 * found.params * 4
    fused = generate(TINY, plan.replace(schedule="roundrobin:1,fused"))
    assert fused.rounds is not None
    both = next(i for i, c in enumerate(fused.rounds.cuts) if c.fused)
    once = sum(b.params for b in fused.layout.stages[both])
    assert moved(fused.job, "upload") == 2 * (2 * found.params - once) * 2


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_work_is_that_of_full_recomputation(pp: int):
    """Of layers; the head is done again too, unless its stage is fused."""
    base = {"gpus": pp, "pp": pp, "seq": 64, "global_batch": 8}
    model = TINY.replace(layers=8)
    classic = generate(model, Plan(**base, recompute="full", clip=False))
    found = generate(model, Plan(**base, schedule="roundrobin:1,fused"))
    assert found.model_flops == classic.model_flops
    assert _products(found.job) == _products(classic.job)  # the fused stage is the head
    plain = generate(model, Plan(**base, schedule="roundrobin"))
    head = 2 * 64 * 64 * 512 * 8
    assert _products(plain.job) == _products(classic.job) + head


def _products(job: etude.Job) -> int:
    total = 0
    for rank in range(len(job)):
        t = job.trace(rank)
        codes, names = t.coded("name")
        total += int(t.flops[(np.array([*names, ""])[codes] == "aten::mm")].sum())
    return total


@pytest.mark.parametrize(
    "more", [{}, {"tp": 2}, {"gpus": 6, "data_loading": True}, {"precision": "fp8", "host_ns": 1e3}]
)
@pytest.mark.parametrize("text", ["roundrobin", "roundrobin:2", "RoundRobin:1,fused"])
def test_jobs_are_sound_and_end(more: dict[str, object], text: str):
    plan = {"gpus": 3 * int(more.get("tp", 1)), "pp": 3, "seq": 64, "global_batch": 8, "steps": 2, **more}  # type: ignore[call-overload]
    job = generate(TINY.replace(tied=True), Plan(**plan, schedule=text)).job  # type: ignore[arg-type]
    assert etude.check(job) == []
    assert etude.simulate(job, one_level("switch", 6), compute="roofline").makespan_ns > 0


def test_the_host_sets_the_pace_where_it_is_slow():
    system = open_system("dgx-h100")
    plan = Plan(gpus=4, pp=4, seq=64, global_batch=8, schedule="roundrobin")
    fast, slow = (
        predict(TINY, plan.replace(host_bandwidth_bytes_per_s=rate), system).step_time_ns for rate in (1e12, 1e6)
    )
    found = generate(TINY, plan)
    busiest = max(
        int(found.job.trace(r).tensor_bytes[found.job.trace(r).kind == Kind.MEM_LOAD].sum()) for r in range(4)
    )
    assert slow > busiest / 1e6 * 1e9 > fast
    with pytest.raises(UsageError, match="bandwidth is not given"):
        predict(TINY, plan, system)


@pytest.mark.parametrize(
    "more",
    [{"checkpoint": True}, {"stages": (4, 4)}, {"schedule": "roundrobin:x"}, {"schedule": "roundrobin:0"},
     {"recompute": "selective"}, {"gpus": 64, "pp": 64}, {"schedule": "roundrobin:1,flush"}],
)  # fmt: skip
def test_what_cannot_be_is_refused(more: dict[str, object]):
    with pytest.raises(UsageError, match="roundrobin"):
        generate(TINY, Plan(**{"gpus": 2, "pp": 2, "seq": 64, "schedule": "roundrobin", **more}))  # type: ignore[arg-type]


LAYER = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 256 + 128 * 64 + 2 * 64
"""Weights of a layer of `TINY`, norms among them."""
ENDS = 512 * 64, 64 + 64 * 512
"""Of the embedding; of the last norm and the head."""


@pytest.mark.parametrize(
    ("train", "up", "down"),
    [
        ("layers:6..", 8 * LAYER + sum(ENDS) + 2 * LAYER + ENDS[1], 2 * LAYER + ENDS[1]),
        ("layers:0..1", 2 * (8 * LAYER + sum(ENDS)), ENDS[0] + 2 * LAYER),
        ("forward", 8 * LAYER + sum(ENDS), 0),
        ("frozen", 2 * (8 * LAYER + ENDS[1]) + ENDS[0], 0),
    ],
)
@pytest.mark.parametrize("pp", [1, 3])
def test_what_gets_no_gradients_does_not_go_up_again(train: str, up: int, down: int, pp: int):
    """A block that is trained, or lies behind one, goes up twice, others once."""
    found = generate(TINY, Plan(gpus=pp, pp=pp, seq=64, global_batch=4, schedule="roundrobin", train=train))
    assert etude.check(found.job) == []
    assert moved(found.job, "upload") == 2 * up
    assert moved(found.job, "gradients") == 4 * down
    assert etude.simulate(found.job, one_level("switch", pp), compute="roofline").makespan_ns > 0


def test_adapters_alone_come_down():
    plan = Plan(gpus=2, pp=2, seq=64, global_batch=4, schedule="roundrobin", train="lora:4")
    adapters = 8 * 4 * ((64 + 128) + (64 + 64) + (64 + 256) + (128 + 64))
    found = generate(TINY, plan)
    assert moved(found.job, "gradients") == 4 * adapters
    assert moved(found.job, "upload") == 2 * (2 * (8 * LAYER + adapters + ENDS[1]) + ENDS[0])


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("copies", [2, 4])
def test_copies_move_a_part_each(zero: int, copies: int):
    """All copies together load and store what one does, and gather and scatter the rest; the work is the same."""
    base = {"pp": 2, "seq": 64, "global_batch": 8, "steps": 2, "schedule": "roundrobin"}
    plain = generate(TINY, Plan(**base, gpus=2 * copies))
    found = generate(TINY, Plan(**base, gpus=2 * copies, zero=zero))
    whole = found.params
    assert etude.check(found.job) == []
    assert moved(plain.job, "upload") == copies * 2 * 2 * 2 * whole
    assert moved(found.job, "upload") == 2 * 2 * 2 * whole
    assert moved(found.job, "gradients") == 2 * 4 * whole
    assert _products(found.job) == _products(plain.job)
    assert _collectives(found.job) == {"all_gather": 2 * 2 * 2 * whole, "reduce_scatter": copies * 2 * 4 * whole}
    assert found.memory_peak_bytes == plain.memory_peak_bytes
    assert etude.simulate(found.job, one_level("switch", 2 * copies), compute="roofline").makespan_ns > 0


def _collectives(job: etude.Job) -> dict[str, int]:
    """Bytes that ranks bring, by kind."""
    found: dict[str, int] = {}
    for rank in range(len(job)):
        t = job.trace(rank)
        for row in np.flatnonzero(t.kind == int(Kind.COLL)).tolist():
            name = Collective(int(t.collective[row])).name.lower()
            found[name] = found.get(name, 0) + int(t.in_bytes[row])
    return found
