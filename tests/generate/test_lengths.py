"""Sample lengths: dealt by hand, work in closed form, jobs that stay sound."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.base.errors import ClusterError, EtudeError, FormatError, UsageError
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate
from etude.make.generate.train.lengths import Lengths, deal
from etude.model.schema import UNKNOWN, Kind
from toy_systems import one_level

TINY = Model(name="tiny", layers=2, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)
EXPERTS = TINY.replace(name="experts", experts=4, top_k=2, expert_ffn=32)


class Fixed(Lengths):
    """These lengths, in this order."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(np.array(tokens, np.int64), np.full(len(tokens), 1 / len(tokens)))

    def stream(self, seed: int, longest: int):  # type: ignore[no-untyped-def]
        while True:
            yield from np.minimum(self.tokens, longest).tolist()


def dealt(batching: str, lengths: Lengths, pair_cost: float = 0.0, **plan: int) -> list[list[list[int]]]:
    options = {"gpus": 2, "global_batch": 4, "micro_batch": 1, "seq": 10, **plan}
    made = deal(lengths, Plan(lengths="1", batching=batching, **options), pair_cost=pair_cost)  # type: ignore[arg-type]
    return [made.samples.tolist(), made.tokens.tolist(), made.pairs.tolist()]


def test_fixed_by_hand():
    """Two ranks, two micro-batches; micro-batch by micro-batch, rank by rank. 30 is cut at 10."""
    assert dealt("fixed", Fixed(3, 30, 1, 5)) == [[[1, 1], [1, 1]], [[3, 1], [10, 5]], [[6, 1], [55, 15]]]
    assert dealt("fixed", Fixed(3, 4, 1, 5), micro_batch=2, gpus=1)[1] == [[7, 6]]


def test_tokens_by_hand():
    """10 tokens at most: 3 + 4, 8 + 2, and again."""
    assert dealt("tokens", Fixed(3, 4, 8, 2)) == [[[2, 2], [2, 2]], [[7, 7], [10, 10]], [[16, 16], [39, 39]]]


def test_compute_by_hand():
    """A token costs 1 and a pair 1: the usual micro-batch is 10 + 55. 9 costs 54; 5 costs 20, three of them 60."""
    assert dealt("compute", Fixed(9, 5, 5, 5), pair_cost=1.0)[0] == [[1, 1], [3, 3]]
    assert dealt("compute", Fixed(9, 5, 5, 5), pair_cost=0.0)[1] == [[9, 5], [10, 9]]


def test_packed_by_hand():
    """4 + 4 + 2 of the next 4; 2 left of it, 4, 4; and so on: always 10 tokens."""
    samples, tokens, pairs = dealt("packed", Fixed(4))
    assert tokens == [[10, 10], [10, 10]]
    assert samples == [[3, 3], [3, 3]]
    assert pairs == [[10 + 10 + 3, 10 + 10 + 3], [3 + 10 + 10, 3 + 10 + 10]]


def test_padded_by_hand():
    """Two and two: 3 and 4 are 2 x 4 tokens and 2 x 10 pairs, 1 and 5 are 2 x 5 and 2 x 15."""
    made = deal(Fixed(3, 4, 1, 5), small(batching="padded", gpus=1, micro_batch=2), pair_cost=0.0)
    assert (made.samples.tolist(), made.tokens.tolist(), made.pairs.tolist()) == ([[2, 2]], [[8, 10]], [[20, 30]])
    assert (made.own_tokens.tolist(), made.own_pairs.tolist()) == ([[7, 6]], [[6 + 10, 1 + 15]])
    assert made.padding == pytest.approx(1 - 13 / 18)


def test_padded_tokens_by_hand():
    """10 tokens at most, padding counted: 3 and 4 are 8, a third makes 12; 8 and 2 would be 16."""
    assert dealt("padded_tokens", Fixed(3, 4, 2, 8, 2))[:2] == [[[2, 1], [1, 2]], [[8, 8], [2, 6]]]
    assert dealt("padded_tokens", Fixed(3, 4, 2, 8, 2), budget=12)[:2] == [[[3, 3], [1, 1]], [[12, 12], [8, 2]]]


def test_a_power_by_hand():
    """Samples x longest^2 of at most 10^2: 5 four times, 4 six times; one of 10 alone."""
    made = deal(Fixed(5), small(batching="compute", power=2.0), pair_cost=9.0)
    assert made.samples.tolist() == [[4, 4], [4, 4]]
    made = deal(Fixed(4, 4, 4, 4, 4, 4, 4, 10), small(batching="compute", power=2.0), pair_cost=9.0)
    assert made.samples.tolist() == [[6, 1], [1, 6]]
    assert made.tokens.tolist() == [[24, 10], [4, 24]]


def test_memory_bounds_a_micro_batch():
    made = deal(Fixed(2), small(batching="compute", power=1.0), pair_cost=0.0, most_tokens=7)
    assert made.tokens.tolist() == [[6, 6], [6, 6]]


def test_online_by_hand():
    """Four wait: 1 9 2 8, 10 tokens. The oldest is 1; 2 is nearest: 2 x 2. Then 9 waits longest (9, 8, 3, 3): 8 does
    not fit beside it. Then 8 with none, then 3, 3 and what came behind it."""
    made = deal(Fixed(1, 9, 2, 8, 3, 3, 3, 1), small(batching="online", window=4), pair_cost=0.0)
    assert made.samples.tolist() == [[2, 1], [1, 3]]
    assert made.tokens.tolist() == [[4, 8], [9, 9]]


def small(**plan: object) -> Plan:
    return Plan(**{"gpus": 2, "global_batch": 4, "micro_batch": 1, "seq": 10, "lengths": "1", **plan})  # type: ignore[arg-type]


EVERY = ["fixed", "padded", "tokens", "padded_tokens", "compute", "online"]


@pytest.mark.parametrize("length", [64, 16])
def test_equal_lengths_are_one_job_for_every_policy(length: int):
    """Budgets of two samples; work of a budget grows with the sequence, so that of `compute` has a power of one."""
    jobs = []
    for batching in [*EVERY, "power"]:
        more: dict[str, object] = {"batching": batching}
        if batching not in ("fixed", "padded"):
            more["budget"] = 2 * length
        if batching == "power" or (batching == "compute" and length < 64):
            more |= {"batching": "compute", "power": 1.0, "memory_budget_bytes": 10**12}
        plan = Plan(gpus=4, tp=2, seq=64, micro_batch=2, global_batch=8, lengths=str(length), steps=2, **more)  # type: ignore[arg-type]
        jobs.append(generate(TINY, plan).job)
    assert [etude.diff(jobs[0], job) for job in jobs] == [None] * 7


@pytest.mark.parametrize("batching", EVERY)
@pytest.mark.parametrize("dp", [1, 3])
def test_an_epoch_conserves_its_samples(batching: str, dp: int):
    """Counted against the samples themselves, each rank's its own."""
    lengths = Lengths.parse("3:2,17:1,40:1")
    plan = Plan(gpus=dp, seq=32, micro_batch=2, global_batch=4 * dp, lengths="1", batching=batching, samples=101,
                join=True, length_seed=4)  # type: ignore[arg-type]  # fmt: skip
    drawn = [n for n, _ in zip(lengths.stream(4, 32), range(101), strict=False)]
    found = deal(lengths, plan, pair_cost=0.1)
    assert found.samples.sum(axis=1).tolist() == [len(drawn[d::dp]) for d in range(dp)]
    assert found.own_tokens.sum(axis=1).tolist() == [sum(drawn[d::dp]) for d in range(dp)]
    assert (found.left, found.tokens.shape[1]) == (0, found.steps * 2)
    alone = deal(lengths, plan.replace(join=False), pair_cost=0.1)
    assert int(alone.samples.sum()) + alone.left == 101
    assert alone.samples.min() > 0
    assert alone.steps <= found.steps <= alone.steps + 3


def test_ranks_that_join_do_empty_steps():
    """One rank has three samples of 40, the other three of 3: by tokens 3 micro-batches and 1."""
    plan = small(batching="tokens", samples=6, join=True, seq=40, global_batch=2)
    found = deal(Fixed(40, 3), plan, pair_cost=0.0)
    assert found.samples.tolist() == [[1, 1, 1], [3, 0, 0]]
    assert deal(Fixed(40, 3), plan.replace(join=False), pair_cost=0.0).left == 2
    job = generate(TINY, plan.replace(gpus=4, pp=2, global_batch=4, lengths="3:1,40:1", samples=9)).job
    assert etude.check(job) == []
    assert len({tuple(np.unique(job.trace(r).step).tolist()) for r in range(4)}) == 1
    assert etude.simulate(job, one_level("switch", 4), compute="roofline").makespan_ns > 0


@settings(max_examples=40)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.floats(1.0, 2.5), st.integers(8, 4096))
def test_the_bound_holds_for_every_micro_batch_of_several(tokens: list[int], power: float, room: int):
    plan = Plan(gpus=2, seq=64, micro_batch=4, global_batch=32, lengths="1", batching="compute", power=power)  # type: ignore[arg-type]
    found = deal(Fixed(*tokens), plan, pair_cost=0.0, most_tokens=room)
    for count, size in zip(found.samples.ravel().tolist(), found.tokens.ravel().tolist(), strict=True):
        longest = size // count
        assert count == 1 or (count * longest**power <= 4 * 64**power * 1.000001 and size <= room)


def test_the_memory_budget_holds_in_bytes():
    """Peak bytes of the plan, not of the formula that the bound is made with."""
    plan = Plan(gpus=2, seq=64, micro_batch=8, global_batch=32, lengths="16:1,64:1", batching="tokens")  # type: ignore[arg-type]
    free = generate(TINY, plan).memory_peak_bytes
    limit = free - 200_000
    held = generate(TINY, plan.replace(memory_budget_bytes=limit))
    assert limit - 400_000 < held.memory_peak_bytes <= limit
    with pytest.raises(UsageError, match="weights, gradients and optimizer"):
        generate(TINY, plan.replace(memory_budget_bytes=1000))


def test_padding_costs_time_and_no_tokens():
    plan = Plan(gpus=4, seq=256, micro_batch=4, global_batch=16, lengths="16:3,256:1")
    plain, padded = (generate(TINY, plan.replace(batching=b)) for b in ("fixed", "padded"))
    assert plain.tokens == padded.tokens
    assert plain.model_flops == padded.model_flops
    times = [etude.simulate(g.job, one_level("switch", 4), compute="roofline").makespan_ns for g in (plain, padded)]
    assert times[1] > times[0]


def test_imbalance_by_hand():
    """Two steps of one micro-batch: 4 and 2, then 1 and 3: 4 + 3 over 3 + 2."""
    made = deal(Fixed(4, 2, 1, 3), small(global_batch=2, steps=2), pair_cost=0.0)
    assert made.imbalance(0.0) == pytest.approx(7 / 5 - 1)


def test_samples_of_the_usual_length_change_nothing():
    plan = {"gpus": 4, "tp": 2, "seq": 64, "global_batch": 4}
    assert etude.diff(generate(TINY, Plan(**plan)).job, generate(TINY, Plan(**plan, lengths="64")).job) is None


def work(job: etude.Job, rank: int) -> tuple[int, int]:
    """FLOPs of products: of attention, and of the rest in micro-batches."""
    t = job.trace(rank)
    codes, words = t.coded("name")
    names = np.array([*words, ""])[codes]
    mine = (t.kind == Kind.COMP) & (t.micro_batch != UNKNOWN)
    core = np.char.find(names, "attention") >= 0
    return int(t.flops[mine & core].sum()), int(t.flops[mine & (names == "aten::mm")].sum())


@pytest.mark.parametrize("batching", [*EVERY, "packed"])
def test_work_follows_tokens_and_pairs(batching: str):
    plan = Plan(gpus=8, tp=2, seq=64, global_batch=8, lengths="8:2,32:1,64:1", batching=batching)  # type: ignore[arg-type]
    found, usual = generate(TINY, plan), generate(TINY, plan.replace(lengths="", batching="fixed"))
    assert found.dealt is not None
    attention, rest = work(usual.job, 0)
    for rank in range(8):
        copy = rank // 2
        got = work(found.job, rank)
        tokens = found.dealt.tokens[copy].sum() / (2 * 64)
        pairs = found.dealt.pairs[copy].sum() / (2 * 64 * 65 // 2)
        assert got[0] == pytest.approx(attention * pairs, rel=1e-3)
        assert got[1] == pytest.approx(rest * tokens, rel=1e-3)
    assert found.tokens == found.dealt.own_tokens.sum()
    assert etude.check(found.job) == []


@settings(max_examples=25)
@given(st.data())
def test_every_job_is_sound_and_ends(data: st.DataObject):
    m = data.draw(st.sampled_from([TINY, EXPERTS]))
    tp, pp, cp, dp = (data.draw(st.sampled_from([1, 2])) for _ in range(4))
    ep = data.draw(st.sampled_from([1, 2])) if m.experts and tp * cp * dp > 1 else 1
    plan = Plan(
        gpus=tp * pp * cp * dp, tp=tp, pp=pp, cp=cp, ep=ep, seq=64, global_batch=4 * dp,
        zero=data.draw(st.integers(0, 3)), recompute=data.draw(st.sampled_from(["none", "full"])),
        lengths=data.draw(st.sampled_from(["16", "4:3,64:1", "7:1,200:1"])),
        batching=data.draw(st.sampled_from([*EVERY, "packed"])), steps=data.draw(st.sampled_from([1, 2])),
        length_seed=data.draw(st.integers(0, 5)),
    )  # fmt: skip
    found = generate(m, plan)
    assert etude.check(found.job) == []
    assert etude.simulate(found.job, one_level("switch", 16), compute="roofline").makespan_ns > 0


def test_a_long_sample_holds_everybody_up():
    system = one_level("switch", 4)
    plan = Plan(gpus=4, seq=256, global_batch=4)
    even, uneven = (generate(TINY, plan.replace(lengths=text)) for text in ("64", "1:1,253:1"))
    assert uneven.dealt is not None
    assert uneven.dealt.tokens.max() > even.tokens / 4
    times = [etude.simulate(g.job, system, compute="roofline").makespan_ns for g in (even, uneven)]
    assert times[1] > times[0]


@pytest.mark.parametrize("text", ["x", "0", "5:-1", "5:0", "5:nan", "1:1,,2", "-3"])
def test_bad_lengths_are_refused(text: str):
    with pytest.raises(UsageError):
        Lengths.parse(text)


def test_a_table_of_lengths(tmp_path: Path):
    path = tmp_path / "l.csv"
    path.write_text("length,count\n10,3\n20,1\n")
    found = Lengths.parse(str(path))
    assert (found.tokens.tolist(), found.share.tolist()) == ([10, 20], [0.75, 0.25])
    path.write_text("len\n10\n")
    with pytest.raises(FormatError, match="not a table of lengths"):
        Lengths.parse(str(path))


@pytest.mark.parametrize(
    "plan",
    [
        {"batching": "fixed", "budget": 5},
        {"batching": "tokens", "window": 5},
        {"batching": "tokens", "power": 2.0},
        {"batching": "padded", "memory_budget_bytes": 5},
        {"batching": "packed", "samples": 5},
        {"join": True},
        {"samples": 5, "steps": 2},
    ],
)
def test_figures_that_change_nothing_are_refused(plan: dict[str, object]):
    with pytest.raises(EtudeError):
        small(**plan)


def test_experts_split_over_copies_are_refused():
    """With `pp-dp-cp-tp` the neighbours of a stage are copies, which have other samples."""
    plan = Plan(gpus=4, tp=2, etp=2, seq=64, global_batch=2, lengths="5:3,64:1")
    assert etude.check(generate(EXPERTS, plan).job) == []
    with pytest.raises(ClusterError, match="split within a copy"):
        plan.replace(order="pp-dp-cp-tp")


def test_plans_that_make_no_sense():
    with pytest.raises(EtudeError, match="needs lengths"):
        Plan(batching="packed")  # type: ignore[arg-type]


def test_samples_that_are_longer_than_a_picture_are_not_cut_in_silence():
    """16 patches, and one more for the class: longer samples need a sequence of their own."""
    picture = Model(name="see", family="vit", layers=1, hidden=32, heads=4, ffn=64, image=16, patch=4, classes=10)
    with pytest.raises(UsageError, match="samples of 64 tokens, and pictures of `see` have 17"):
        generate(picture, Plan(gpus=2, lengths="8:1,64:1"))
    assert generate(picture, Plan(gpus=2, lengths="64", seq=64)).tokens == 2 * 64
    assert generate(picture, Plan(gpus=2, lengths="8")).tokens == 2 * 8
