"""Runs of one to three steps with one thing wrong, worked out by hand."""

from typing import Any

import numpy as np
import pytest

from etude.analyse.late_hosts import stages
from etude.analyse.outliers import profile
from etude.analyse.stragglers import stragglers
from etude.model.run import Run
from etude.model.schema import Collective, Kind
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
SUM = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "in_bytes": 8}
ASK = {"kind": Kind.COMP, "name": "c10d::allreduce_", "cpu": 1, "thread": 1}
Nodes = list[list[Any]]


def found(run: Run, **options: Any) -> list[dict[str, Any]]:
    return stragglers(run, **options).to_pylist()


def message(kind: Kind, peer: int, tag: int) -> dict[str, Any]:
    end = {"dst": peer} if kind == Kind.SEND else {"src": peer}
    return {"kind": kind, "stream": 9, "cpu": 0, "tag": tag, "in_bytes": 64} | end


def pipeline(late: int, late_ns: int, skew_ns: int = 0, *, sums: bool = True) -> Run:
    """Three stages of two ranks, three micro-batches, no steps: each receives, computes for 100 us times its stage and
    one more, and hands on; then the two of a stage have a sum. One rank's host comes late with the second batch; the
    clocks of odd ranks are off."""
    nodes: Nodes = [[] for _ in range(6)]
    done = [[0] * 4 for _ in range(2)]  # of either chain and each batch: when the stage before has handed it on
    comes = [0] * 6
    for stage in range(3):
        for chain in range(2):
            rank, now = 2 * stage + chain, 0
            for batch in range(3):
                now += late_ns if rank == late and batch == 1 else 0
                if stage:
                    there = max(now, done[chain][batch]) + 10_000
                    nodes[rank].append((message(Kind.RECV, rank - 2, batch), now, there))
                    now = there
                lasts = 100_000 * (stage + 1) + 1000 * ((5 * rank + 3 * batch) % 7)
                nodes[rank].append((GEMM, now, now + lasts))
                now += lasts
                if stage < 2:
                    nodes[rank].append((message(Kind.SEND, rank + 2, batch), now, now + 10_000))
                    now += 10_000
                done[chain][batch] = now
            comes[rank] = now
    for rank in range(6 if sums else 0):
        end = max(comes[rank], comes[rank ^ 1]) + 50_000
        nodes[rank].append((SUM | {"group": f"stage{rank // 2}"}, comes[rank], end))
    for rank in range(1, 6, 2):
        nodes[rank] = [(node, start + skew_ns, end + skew_ns) for node, start, end in nodes[rank]]
    return timed(*nodes, groups={f"stage{s}": [2 * s, 2 * s + 1] for s in range(3)})


@pytest.mark.parametrize("late", [0, 3, 5])
def test_of_two_ranks_of_a_stage_the_one_whose_device_is_idle_is_late(late: int) -> None:
    rows = found(pipeline(late, 150_000, skew_ns=400_000))
    assert [(row["rank"], row["kind"]) for row in rows] == [(late, "late_host")]
    assert found(pipeline(late, 0, skew_ns=400_000)) == []


def test_clocks_that_cannot_be_compared_make_nobody_late() -> None:
    """Without a sum the two of a stage share no call: that odd ranks seem to begin later is their clock."""
    assert found(pipeline(0, 0, skew_ns=400_000, sums=False)) == []


def test_stages_are_told_by_who_receives_before_it_sends() -> None:
    assert stages(pipeline(0, 0)).tolist() == [0, 0, 1, 1, 2, 2]
    ring: Nodes = []
    for rank in range(3):  # all receive first, from one another: none is before the others
        messages = message(Kind.RECV, (rank - 1) % 3, 0), message(Kind.SEND, (rank + 1) % 3, 0)
        ring.append([(messages[0], 0, 20), (messages[1], 5, 20)])
    assert stages(timed(*ring)).tolist() == [0, 0, 0]
    assert stages(timed([(GEMM, 0, 10)], [(GEMM, 0, 10)])).tolist() == [0, 0]


def two_groups(steps: int, slow: float, since: int, count: int = 2) -> Run:
    """Two groups of two, or more, with five sums a step of 100 us, a few percent apart; those of the second become
    slow."""
    nodes: Nodes = [[] for _ in range(2 * count)]
    for step in range(steps):
        for call in range(5):
            for rank in range(2 * count):
                group = rank // 2
                jitter = 1 + ((7 * group + 11 * step + 5 * call) % 13 - 6) / 200
                lasts = round(100_000 * jitter * (slow if group == 1 and step >= since else 1.0))
                begin = 10**6 * (5 * step + call)
                nodes[rank].append((SUM | {"group": f"g{group}", "step": step}, begin, begin + lasts))
    return timed(*nodes, groups={f"g{group}": [2 * group, 2 * group + 1] for group in range(count)})


def test_of_two_groups_one_that_is_slow_in_the_second_of_two_steps() -> None:
    """Its own samples lie far apart, because it became slow: that is no reason to doubt it."""
    rows = found(two_groups(2, 1.2, 1))
    assert [(row["kind"], row["ranks"], row["since"]) for row in rows] == [("slow_link", [2, 3], 1)]
    assert rows[0]["slowdown_pct"] == pytest.approx(20, abs=3)
    assert found(two_groups(2, 1.0, 1)) == []


def test_of_many_groups_one_that_is_slow_in_a_single_step_may_be_so_by_chance() -> None:
    """Throughout the run it is named all the same."""
    assert found(two_groups(2, 1.2, 1, count=8)) == []
    rows = found(two_groups(2, 1.2, 0, count=8))
    assert [(row["kind"], row["ranks"]) for row in rows] == [("slow_link", [2, 3])]


def grid(column: dict[int, float]) -> Run:
    """Four rows of four ranks; the sums of the second row take 20% longer, those of each column are called once."""
    groups = {f"r{i}": [4 * i + k for k in range(4)] for i in range(4)}
    groups |= {f"c{i}": [i + 4 * k for k in range(4)] for i in range(4)}
    nodes: Nodes = [[] for _ in range(16)]
    for call in range(17):
        for rank in range(16):
            group = f"c{rank % 4}" if call == 16 else f"r{rank // 4}"
            lasts = 1000 + (11 * call + 5 * int(group[1])) % 40
            lasts += 200 if group == "r1" else round(1000 * column.get(rank % 4, 0.0)) if call == 16 else 0
            name = SUM | {"group": group, "in_bytes": 8 if call < 16 else 16}
            nodes[rank].append((name, 2000 * call, 2000 * call + lasts))
    return timed(*nodes, groups=groups)


def test_one_column_that_is_a_little_slow_does_not_make_a_port() -> None:
    """A link inside of the second row is as likely: of what one sum of 5% more says nothing can be told."""
    for run in (grid({}), grid({2: 0.05})):
        rows = found(run, ranks_per_node=16)
        assert [(row["kind"], row["ranks"]) for row in rows] == [("slow_link", [4, 5, 6, 7])]


def host_calls(true_us: list[float], *, ends: bool) -> Run:
    """Ranks with 120 host calls each, one after the other, a few percent apart, in whole us: ends were rounded, or
    durations."""
    nodes: Nodes = []
    for rank, us in enumerate(true_us):
        rows, now = [], 0.37 * rank
        for call in range(120):
            lasts = us * (1 + ((7 * rank + 5 * call) % 13 - 6) / 300)
            until = round(now + lasts) if ends else round(now) + round(lasts)
            call_of = {
                "kind": Kind.COMP,
                "name": f"aten::{'abcde'[call % 5]}",
                "cpu": 1,
                "thread": 1,
                "step": call // 40,
            }
            rows.append((call_of, 1000 * round(now), 1000 * until))
            now += lasts
        gemm = GEMM | {"step": 0}
        nodes.append([*rows, (gemm, 10**7, 2 * 10**7)])
    return timed(*nodes)


def test_calls_of_a_few_us_whose_ends_were_rounded_are_slow_by_less_than_a_us() -> None:
    rows = found(host_calls([4.1] * 5 + [4.6] + [4.1] * 2, ends=True))
    assert [(row["rank"], row["kind"]) for row in rows] == [(5, "late_host")]
    assert 8 < rows[0]["slowdown_pct"] < 20  # 12%, and a whole us would be 25%
    assert found(host_calls([4.1] * 8, ends=True)) == []


def test_calls_whose_durations_were_rounded_say_nothing_below_a_us() -> None:
    """4.4 us becomes 4 and 4.6 becomes 5: a quarter more where there is a twentieth."""
    assert found(host_calls([4.4] * 5 + [4.6] + [4.4] * 2, ends=False)) == []


def test_the_middle_of_rounded_times_is_finer_than_what_they_were_rounded_to() -> None:
    unit, sample = (i.ravel() for i in np.meshgrid(np.arange(8), np.arange(100), indexing="ij"))
    us = np.where(sample < np.where(unit == 3, 60, 20), 5, 4)  # means of 4.2 us, of one unit of 4.6
    log = np.log(1000.0 * us)
    slower = profile(unit, unit * 0, unit * 0, log, (8, 1, 1), step_ns=1000, cancels=True).log_slower[:, 0]
    assert slower[3] == pytest.approx(np.log(4.6 / 4.2), abs=0.02)
    assert np.abs(np.delete(slower, 3)).max() < 0.01


def test_who_did_not_ask_among_those_that_came_as_far() -> None:
    """Ranks 0 and 1 have a group of their own: 1 asked for its second sum, 0 did not, and the others are done."""
    nodes: Nodes = []
    for rank in range(6):
        rows: list[Any] = []
        for i in range(2):
            rows.append((ASK, 1000 * i, 1000 * i + 10))
            rows.append((SUM | {"group": f"g{rank // 2}"}, 1000 * i + 20, 1000 * i + 500))
        nodes.append(rows if rank > 1 else rows[:-1] if rank == 1 else rows[:-2])
    groups = {f"g{i}": [2 * i, 2 * i + 1] for i in range(3)}
    rows = found(timed(*nodes, groups=groups))
    assert [(row["rank"], row["kind"]) for row in rows] == [(0, "missing_participant")]
    assert "rank 1 ran as many kernels and communications and requested one more" in rows[0]["evidence"]


@pytest.mark.parametrize("late_ns", [0, 600_000])
def test_who_is_late_once_among_ranks_with_uneven_work(late_ns: int) -> None:
    """Experts of 50 to 150 us before each of six sums: who was late to the first is not behind on the whole."""
    nodes: Nodes = [[] for _ in range(8)]
    now = 0
    for call in range(6):
        comes = []
        for rank in range(8):
            begin = now + (late_ns if rank == 2 and call == 0 else 0)
            lasts = 50_000 + 10_000 * ((5 * rank + 3 * call) % 11)
            nodes[rank].append((GEMM | {"name": f"expert{'abcdefgh'[rank]}"}, begin, begin + lasts))
            comes.append(begin + lasts)
        now = max(comes) + 50_000
        for rank in range(8):
            nodes[rank].append((SUM | {"group": "g"}, comes[rank], now))
    rows = found(timed(*nodes, groups={"g": list(range(8))}))
    assert [(row["rank"], row["kind"]) for row in rows] == ([(2, "late_host")] if late_ns else [])
