"""Pipeline schedules: every one valid, bubbles and memory as the closed forms say, impossible ones refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.base.errors import DeadlockError, EtudeError, FormatError, UsageError
from etude.make.generate.schedules.by_name import KNOWN, parse, schedule
from etude.make.generate.schedules.csv import read, text
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, build, check, in_flight, times

F, B, I, W = Action.FORWARD, Action.BACKWARD, Action.INPUT, Action.WEIGHT  # noqa: E741


def naive_times(s: PipelineSchedule, cost: dict[int, float], hop: float) -> tuple[dict[int, float], dict[int, float]]:
    """Begin and end of every action, by doing any that can be done until none is left."""
    home, begin, end = {}, {}, {}
    for rank in range(s.ranks):
        for i in range(s.start[rank], s.start[rank + 1]):
            home[i] = rank
    key = {}
    for i in range(len(s)):
        what = Action(s.action[i]).letter.replace("I", "B")
        key[what, int(s.stage[i]), int(s.micro_batch[i])] = i
    while len(end) < len(s):
        before = len(end)
        for i in range(len(s)):
            pair = [i, i + 1] if s.paired[i] else [i]
            if i in end or (i > 0 and s.paired[i - 1]):
                continue
            needs = [] if i == s.start[home[i]] else [(i - 1, 0.0)]
            for j in pair:
                stage, m = int(s.stage[j]), int(s.micro_batch[j])
                if s.action[j] == F:
                    wants = [("F", stage - 1, m)] if stage else []
                elif s.action[j] == W:
                    wants = [("B", stage, m)]
                elif s.action[j] in (Action.REDUCE, Action.UPDATE):
                    window = range(m * s.window, min((m + 1) * s.window, s.micro_batches))
                    needs += [(key["B", 0, g], 0.0) for g in window if s.action[j] == Action.UPDATE]
                    wants = []
                else:
                    wants = [("F", stage, m)] + ([("B", stage + 1, m)] if stage + 1 < s.stages else [])
                needs += [(key[w], hop * (home[key[w]] != home[j])) for w in wants]
            if all(j in end for j, _ in needs):
                for j in pair:
                    begin[j] = max((end[k] + d for k, d in needs), default=0.0)
                    end[j] = begin[j] + sum(cost[int(s.action[k])] for k in pair)
        assert len(end) > before, "deadlock"
    return begin, end


def bubble(name: str, p: int, m: int, **costs: float) -> float:
    return times(schedule(name, ranks=p, micro_batches=m), **costs).bubble


# --- the closed forms: F = I = W = 1 for a stage; B = I + W


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_bubbles_of_one_stage_a_rank(p: int, more: int):
    m = 2 * p + more
    assert bubble("gpipe", p, m) == (p - 1) * 3
    assert bubble("1f1b", p, m) == (p - 1) * 3
    assert bubble("zb1p", p, m) == (p - 1) * (1 + 2 - 2)
    assert bubble("zb2p", p, m) == 0


@pytest.mark.parametrize(("f", "i", "w"), [(3.0, 2.0, 2.0), (1.0, 2.0, 1.0), (5.0, 6.0, 4.0), (2.0, 2.0, 2.0)])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_bubbles_with_other_times(p: int, f: float, i: float, w: float):
    costs, m, whole = {"forward": f, "input": i, "weight": w}, 4 * p, i + w
    assert bubble("1f1b", p, m, **costs) == pytest.approx((p - 1) * (f + whole))
    assert bubble("interleaved:2", p, m, **costs) == pytest.approx((p - 1) * (f + whole))  # a chunk is half a stage
    assert bubble("zb1p", p, m, **costs) == pytest.approx((p - 1) * (f + whole - 2 * w))


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("saved", [0.0, 0.25, 0.75])
def test_the_bubble_of_dualpipe_with_overlap(p: int, saved: float):
    """(p/2 - 1)(F&B + B - 3W), where F&B takes 3 less what the overlap saves."""
    for name, ranks in (("dualpipe", p), ("dualpipev", p // 2)):
        t = times(schedule(name, ranks=ranks, micro_batches=4 * p), overlap=saved)
        assert t.idle == pytest.approx((p // 2 - 1) * ((3 - saved) + 2 - 3))


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("v", [1, 2, 4])
def test_bubbles_of_several_stages_a_rank(p: int, v: int):
    """A chunk takes 1/v of a rank's work: in units of a chunk the bubble is that of one stage a rank."""
    assert bubble(f"interleaved:{v}", p, 3 * p) == (p - 1) * 3
    assert bubble(f"looped_bfs:{v}", p, 3 * p + 1) == (p - 1) * 3


def test_pairs_of_interleaved_chunks():
    """By hand: 2 ranks, one chunk, 4 micro-batches: 2(p - r - 1) + 1 forwards, then pairs, then what is left."""
    s = schedule("paired:1", ranks=2, micro_batches=4)
    assert s.order(0) == ["0F0", "0F1", "0F2", "0F3", "0B0", "0B1", "0B2", "0B3"]
    assert s.paired[s.rows(0)].tolist() == [False, False, False, True, False, False, False, False]
    assert s.order(1) == ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"]
    assert s.paired[s.rows(1)].tolist() == [False, True, False, True, False, True, False, False]
    assert times(s).makespan == times(schedule("1f1b", ranks=2, micro_batches=4)).makespan
    assert times(s, overlap=0.5).makespan < times(s).makespan


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("v", [1, 2, 4])
def test_pairs_have_the_bubble_of_interleaved_chunks_and_one_more_in_flight(p: int, v: int):
    assert bubble(f"paired:{v}", p, 3 * p) == (p - 1) * 3
    one, other = (schedule(f"{name}:{v}", ranks=p, micro_batches=3 * p) for name in ("paired", "interleaved"))
    assert (in_flight(one) - in_flight(other)).tolist() == [1] * p


@pytest.mark.parametrize("p", range(1, 17))
def test_bubbles_and_memory_of_the_vs(p: int):
    """In chunks, two of which are a rank's work: b is 6(p - 1), and 1F1B keeps 2p of them."""
    for m in (2 * p, 3 * p + 1):
        made = {name: schedule(name, ranks=p, micro_batches=m) for name in ("zbv", "vhalf", "vmin")}
        assert times(made["zbv"]).bubble == 0
        assert in_flight(made["zbv"]).max() == 2 * p
        half = 3 * (p - 1)
        assert times(made["vhalf"]).bubble == (half if p % 2 == 0 or p == 1 else half - 1)
        assert in_flight(made["vhalf"]).max() == (2 if p == 1 else p + 1 if p % 2 else p + 2)
        assert times(made["vmin"]).bubble == max(0, 4 * (p - 1) - 1)
        assert in_flight(made["vmin"]).max() <= 2 * p / 3 + 8 / 3


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
@pytest.mark.parametrize("times_p", [2, 3, 5])
def test_dualpipe(p: int, times_p: int):
    m = times_p * p
    both = schedule("dualpipe", ranks=p, micro_batches=m)
    folded = schedule("dualpipev", ranks=p // 2, micro_batches=m)
    for s in (both, folded):
        assert times(s).bubble == (p // 2 - 1) * (3 + 2 - 3)
        assert in_flight(s).tolist() == [p + 1] * s.ranks
        assert s.paired.any()
    assert both.stages == folded.stages == p
    assert both.held[1] == (1, p - 2)  # parameters twice
    assert sorted(s for held in folded.held for s in held) == list(range(p))


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_activations_in_flight(p: int):
    m = 3 * p

    def peak(name: str) -> list[int]:
        return in_flight(schedule(name, ranks=p, micro_batches=m)).tolist()

    assert peak("gpipe") == [m] * p
    assert peak("1f1b") == [p - r for r in range(p)]
    assert peak("zb1p") == [p] * p
    assert peak("zb2p") == [2 * p - 1] * p
    assert peak("interleaved:2") == [min(2 * m, 2 * (p - r - 1) + p + 1) for r in range(p)]
    assert peak("looped_bfs:2") == [2 * m] * p


def test_the_order_of_1f1b_is_the_textbooks():
    s = schedule("1f1b", ranks=2, micro_batches=3)
    assert s.order(0) == ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"]
    assert s.order(1) == ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]


def test_the_order_of_interleaved_is_megatrons():
    s = schedule("interleaved:2", ranks=2, micro_batches=2)
    assert s.order(0) == ["0F0", "0F1", "2F0", "2F1", "2B0", "2B1", "0B0", "0B1"]
    assert s.order(1) == ["1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "1B0", "1B1"]
    assert s.held == ((0, 2), (1, 3))
    assert s.chunk()[s.rows(1)].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


# --- every schedule is valid; the kernel is what its twin says

NAMES = [*KNOWN, "interleaved:3", "looped_bfs:4"]


@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 12), st.sampled_from([0.0, 0.25, 3.0]))
def test_any_is_valid_or_refused_with_a_reason(name: str, p: int, m: int, hop: float):
    try:
        s = schedule(name, ranks=p, micro_batches=m)
    except UsageError:
        assert m % p or m < 2 * p or p % 2
        assert name.startswith(("interleaved", "dualpipe"))
        return
    assert (s.ranks, s.micro_batches) == (p, m)
    check(s)
    got = times(s, forward=1.0, input=1.5, weight=0.5, hop=hop)
    begin, end = naive_times(s, {F: 1.0, B: 2.0, I: 1.5, W: 0.5, Action.REDUCE: 0.0, Action.UPDATE: 0.0}, hop)
    assert got.begin.tolist() == [begin[i] for i in range(len(s))]
    assert got.end.tolist() == [end[i] for i in range(len(s))]
    assert got.bubble == max(got.rank_end - got.rank_begin - got.busy)


def test_times_by_stage():
    """0F0 1, 0F1 1..2; 1F0 waits for nothing else: 1..11; its backward 11..31."""
    s = schedule("gpipe", ranks=2, micro_batches=1)
    t = times(s, forward=[1, 10], input=[1, 10], weight=[1, 10])
    assert (t.end.tolist(), t.makespan) == ([1, 33, 11, 31], 33)


# --- what is not valid


def orders(*ranks: str) -> list[list[tuple[Action, int, int, bool]]]:
    letters = {a.letter: a for a in Action}
    return [[(letters[w[1]], int(w[0]), int(w[2]), False) for w in r.split()] for r in ranks]


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        (("0F0", "1F0 1B0"), "stage 0, micro-batch 0 is not done exactly once .F: 1, B: 0, I: 0, W: 0."),
        (("0F0 0F0 0B0", "1F0 1B0"), "not done exactly once"),
        (("0F0 0B0 0W0", "1F0 1B0"), "not done exactly once"),
        (("0F0 0I0", "1F0 1B0"), "not done exactly once"),
        (("0F0 0B0", "1F0 1B0 0F0"), "rank 1 does not have stage 0"),
        (("0F0 0B0", "1F0 1B1"), "outside 2 stages and 1 micro-batches"),
    ],
)
def test_bad_orders_are_refused(ranks: tuple[str, ...], problem: str):
    with pytest.raises(UsageError, match=problem):
        build("mine", 2, 1, orders(*ranks), [(0,), (1,)])


def test_a_backward_away_from_its_forward_is_refused():
    with pytest.raises(UsageError, match="goes backward on rank 1, its forward is on rank 0"):
        build("mine", 1, 1, orders("0F0", "0B0"), [(0,), (0,)])


def test_an_order_that_stands_still_is_a_deadlock():
    with pytest.raises(DeadlockError, match="rank 0 at 0B0, rank 1 at 1F1") as caught:
        build("mine", 2, 2, orders("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"), [(0,), (1,)])
    assert [w["rank"] for w in caught.value.waiting] == [0, 1]


@pytest.mark.parametrize(
    ("name", "p", "m", "problem"),
    [
        ("interleaved:2", 4, 6, "6 micro-batches on 4 ranks: not a multiple"),
        ("dualpipe", 3, 12, "must be even"),
        ("dualpipe", 4, 6, "at least 8 are needed"),
        ("dualpipev", 4, 6, "at least 8 are needed"),
        ("1f1b:x", 4, 8, "column 6: `1f1b:x`: `x` is not a count"),
        ("interleaved:x", 4, 8, "column 13: `interleaved:.`: `.` is not (a count|positive)"),
        ("interleaved:0", 4, 8, "column 13: `interleaved:.`: `.` is not (a count|positive)"),
        ("2f2b", 4, 8, "unknown pipeline schedule `2f2b`"),
        ("gpipe", 0, 8, "at least one of each"),
    ],
)
def test_what_cannot_be_is_refused(name: str, p: int, m: int, problem: str):
    with pytest.raises(UsageError, match=problem):
        schedule(name, ranks=p, micro_batches=m)


def test_names_are_read_as_they_are_written():
    assert parse("V-Half") == ("vhalf", 2)
    assert parse("Interleaved1F1B:4") == ("interleaved", 4)
    assert parse("looped-bfs") == ("looped_bfs", 2)
    assert parse("ZB-H1") == ("zb1p", 1)
    assert parse("my/Order.CSV") == ("my/Order.CSV", 0)


# --- CSV


def test_updates_are_not_written_as_csv():
    with pytest.raises(UsageError, match="windows"):
        text(schedule("async:2", ranks=4, micro_batches=8))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "async"])
def test_csv_comes_back(name: str, tmp_path: Path):
    s = schedule(name, ranks=4, micro_batches=8)
    path = tmp_path / "order.csv"
    path.write_text(text(s))
    back = schedule(str(path), ranks=4, micro_batches=8)
    for column in ("start", "action", "stage", "micro_batch", "paired"):
        assert np.array_equal(getattr(back, column), getattr(s, column)), column
    assert [set(h) for h in back.held] == [set(h) for h in s.held]


def test_csv_as_pytorch_writes_it(tmp_path: Path):
    path = tmp_path / "order.csv"
    path.write_text("0F0,0F1,0SEND_F1,,0RECV_B0,0B0,,0B1\n1UNSHARD,1F0,1B0,1F1,1B1\n")
    s = read(path)
    assert (s.ranks, s.stages, s.micro_batches) == (2, 2, 2)
    assert s.order(1) == ["1F0", "1B0", "1F1", "1B1"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it has no actions"),
        ("0F0,0SEND_G0\n", "line 1, cell 2: `0SEND_G0` is not an action"),
        ("0F0,0B0\n\n1F0,1B0\n", "line 2: rank 1 has no actions"),
        ("0F0,0B0\n1X0\n", "line 2, cell 1"),
        ("(0F0;0B0\n", "is not an action"),
        ("0F0,999999999F0\n", "is not an action"),
        ("(0F0;0F1)OVERLAP_F_B,0B0,0B1\n", "0F0 and 0F1 cannot run together"),
        ("(0F0;0B0)OVERLAP_F_B\n", "the order deadlocks"),
        ("0F0,0B0\n0F1,0B1\n2F0,2B0\n2F1,2B1\n", "not done exactly once"),
    ],
)
def test_bad_csv_is_refused(content: str, problem: str, tmp_path: Path):
    path = tmp_path / "order.csv"
    path.write_text(content)
    with pytest.raises(EtudeError, match=problem):
        read(path)


def test_csv_must_be_what_the_plan_says(tmp_path: Path):
    path = tmp_path / "order.csv"
    path.write_text("0F0,0B0\n")
    with pytest.raises(UsageError, match="has 1 pipeline ranks, the plan 2"):
        schedule(str(path), ranks=2, micro_batches=1)
    path.write_bytes(b"\xff\xfe0F0")
    with pytest.raises(FormatError, match="not a CSV file"):
        read(path)
