"""Sample lengths: dealt by hand, work in closed form, jobs that stay sound."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.errors import EtudeError, FormatError, UsageError
from etude.generate.model.shape import Model
from etude.generate.plan import Plan
from etude.generate.train.job import generate
from etude.generate.train.lengths import Lengths, deal
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


@pytest.mark.parametrize("batching", ["fixed", "tokens", "compute", "packed"])
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
    assert found.tokens == found.dealt.tokens.sum()
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
        batching=data.draw(st.sampled_from(["fixed", "tokens", "compute", "packed"])),
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


def test_plans_that_make_no_sense():
    with pytest.raises(EtudeError, match="needs lengths"):
        Plan(batching="packed")  # type: ignore[arg-type]
