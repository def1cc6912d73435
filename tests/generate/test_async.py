"""`async:d`: what goes where by hand, bounds of utilisation and staleness, 1F1B as a special case, jobs that end."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.base.errors import UsageError
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.by_name import schedule
from etude.make.generate.schedules.pipeline import PipelineSchedule, staleness, times, under_way
from etude.make.generate.train.job import Generated, generate
from etude.model.schema import Collective, Kind
from toy_systems import one_level

TINY = Model(name="tiny", layers=8, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)


def words(s: PipelineSchedule) -> list[list[tuple[str, int, int]]]:
    """(action, stage, number) of each rank, read from the text."""
    found = []
    for rank in range(s.ranks):
        one = []
        for word in s.order(rank):
            letter = next(c for c in word if c.isalpha())
            stage, number = word.split(letter)
            one.append((letter, int(stage), int(number)))
        found.append(one)
    return found


def test_one_direction_by_hand():
    """Two ranks, windows of two, a backward takes 2. Rank 0: 0F0 at 0, 0F1 at 1, 0B0 at 4, 0F2 at 6, 0B1 from 7 to 9,
    with which the window is complete; rank 1 is then at 1B2, from 8 to 10."""
    s = schedule("async:1", ranks=2, micro_batches=4)
    assert " ".join(s.order(0)) == "0F0 0F1 0B0 0F2 0B1 0R0 0U0 0F3 0B2 0B3 0R1 0U1"
    assert " ".join(s.order(1)) == "1F0 1B0 1F1 1B1 1R0 1F2 1B2 0U0 1F3 1B3 1R1 0U1"
    assert s.held == ((0,), (1,))


def test_directions_begin_at_ranks_of_their_own():
    s = schedule("async:2", ranks=4, micro_batches=8)
    firsts = [[w[2] % 2 for w in order if w[:2] == ("F", 0)] for order in words(s)]
    assert firsts == [[0] * 4, [], [1] * 4, []]
    assert s.held == ((0, 2), (1, 3), (0, 2), (1, 3))


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 16])
def test_a_flush_with_room_for_all_ranks_is_1f1b(p: int, m: int):
    one = schedule(f"async:1,admit={p},window={m},flush", ranks=p, micro_batches=m, steps=3)
    other = schedule("1f1b", ranks=p, micro_batches=m)
    assert [one.order(r) for r in range(p)] == [other.order(r) for r in range(p)]


@pytest.mark.parametrize("more", [{}, {"zero": 1}, {"zero": 3, "host_ns": 1000.0}])
def test_and_its_job_is_that_of_1f1b(more: dict[str, object]):
    plan = {"gpus": 8, "pp": 4, "seq": 64, "steps": 2, "global_batch": 16, **more}
    one = generate(TINY, Plan(**plan, schedule="async:1,admit=4,window=8,flush")).job  # type: ignore[arg-type]
    assert etude.diff(one, generate(TINY, Plan(**plan, schedule="1f1b")).job) is None  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 3), st.data())
def test_bounds(p: int, m: int, steps: int, data: st.DataObject):
    """Each stage and micro-batch once each way; 2d under way, each on one rank; staleness at most what 2d - 1 others
    of windows can make, 1 for windows of 2d - 1."""
    d = data.draw(st.integers(1, p))
    window = data.draw(st.integers(1, 2 * p + 1))
    s = schedule(f"async:{d},window={window}", ranks=p, micro_batches=m, steps=steps)
    orders = words(s)
    done = Counter(w for order in orders for w in order if w[0] in "FB")
    assert done == Counter({(a, stage, g): 1 for a in "FB" for stage in range(p) for g in range(m * steps)})
    assert under_way(s) <= 2 * d
    assert 1 - times(s).bubble_share <= min(1.0, 2 * d / p) + 1e-9
    versions = [0]
    for order in orders:
        version, seen = 0, {}
        for letter, stage, number in order:
            version += letter == "U"
            if letter == "F":
                seen[stage, number] = version
            elif letter == "B":
                versions.append(version - seen[stage, number])
    assert staleness(s) == max(versions)
    assert max(versions) <= -(-(2 * d - 1) // window)


def test_updates_come_in_turn():
    """Windows of one micro-batch may be complete out of turn: the second direction is done before the first."""
    for d in (2, 3, 4):
        for order in words(schedule(f"async:{d},window=1", ranks=4, micro_batches=5, steps=2)):
            assert [number for letter, _, number in order if letter == "U"] == list(range(10))


def test_how_full_ranks_are():
    """One direction keeps two of p ranks busy, p/2 directions all but one in p + 1, p directions all."""
    for p in (4, 8, 16):
        steady = {d: 1 - times(schedule(f"async:{d}", ranks=p, micro_batches=4 * p, steps=8)).bubble_share
                  for d in (1, p // 2, p)}  # fmt: skip
        assert steady[1] == pytest.approx(2 / p, rel=0.01)
        assert steady[p // 2] == pytest.approx(p / (p + 1), rel=0.01)
        assert steady[p] == pytest.approx(1.0, rel=0.01)


def test_updates_and_sums_of_a_job():
    """Two directions on four ranks, four windows: an update each, and a sum for each of the two stages of a rank."""
    job = generate(TINY, Plan(gpus=4, pp=4, seq=64, global_batch=8, steps=2, schedule="async:2")).job
    for rank in range(4):
        t = job.trace(rank)
        codes, names = t.coded("name")
        assert int((np.array([*names, ""])[codes] == "aten::_fused_adamw_").sum()) == 4
        sums = np.flatnonzero((t.kind == Kind.COLL) & (t.collective == Collective.ALL_REDUCE))
        assert len(sums) == 8
        stages = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}[rank]
        assert sorted({t.group_slots[g] for g in t.group[sums].tolist()}) == [f"holders{s}" for s in stages]
        assert sorted(set(t.step.tolist())) == [0, 1]


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_jobs_are_sound_and_end(d: int, zero: int):
    for more in ("", ",window=3", ",window=4,flush", ",admit=1"):
        plan = Plan(gpus=8, pp=4, seq=64, steps=2, global_batch=16, zero=zero, schedule=f"async:{d}{more}")
        job = generate(TINY.replace(tied=d % 2 == 0), plan).job
        assert etude.check(job) == []
        assert etude.simulate(job, one_level("switch", 8), compute="roofline").makespan_ns > 0


@pytest.mark.parametrize("text", ["async:0", "async:x", "async:2,admit", "async:2,depth=3", "async:9", "async:2,3",
                                  "async:1,window=3,flush"])  # fmt: skip
def test_what_cannot_be_is_refused(text: str):
    with pytest.raises(UsageError, match="async"):
        schedule(text, ranks=8, micro_batches=8)


@pytest.mark.parametrize(("train", "stages"), [("layers:4..", 2), ("layers:6..", 1), ("forward", 0)])
def test_stages_that_do_not_train_go_forward_alone(train: str, stages: int):
    """Four stages of two layers, of which the last ones train: as many operations as in 1F1B; a window of 4 of 16
    micro-batches makes 4 updates in two steps of 8, on the ranks that hold a stage that trains."""
    model = TINY.replace(layers=8, tied=False)
    plan = {"gpus": 4, "pp": 4, "seq": 64, "steps": 2, "global_batch": 8, "train": train, "clip": False}
    one, other = (generate(model, Plan(**plan, schedule=s)) for s in ("async:2", "1f1b"))  # type: ignore[arg-type]
    assert etude.check(one.job) == []
    assert etude.simulate(one.job, one_level("switch", 4), compute="roofline").makespan_ns > 0

    def products(found: Generated) -> int:
        return sum(int(t.flops[t.micro_batch >= 0].clip(0).sum()) for t in map(found.job.trace, range(4)))

    assert products(one) == products(other)
    held = [{(rank - first) % 4 for first in (0, 2)} for rank in range(4)]
    for rank, mine in enumerate(held):
        trace = one.job.trace(rank)
        codes, words = trace.coded("name")
        updates = sum(words[c] == "aten::_fused_adamw_" for c in codes.tolist())
        assert updates == (4 if mine & set(range(4 - stages, 4)) else 0)
    assert one.pipeline()["in_flight"] >= 1
