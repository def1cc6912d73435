"""Faults in runs whose times are written by hand: what is named, what it costs, and what is not said."""

import json

import numpy as np
import pytest

from etude.analyse.diagnose import diagnose
from etude.analyse.findings import FAULTS
from etude.analyse.slower_sets import clean_levels, episodes, stage_changes
from etude.model.build import build_trace
from etude.model.job import Part, assemble
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import measured
from summed_steps import noise, run_of


def told(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.kind, one.ranks) for one in diagnose(run) if one.kind in FAULTS]


def test_a_clean_run_has_no_fault():
    assert told(run_of(noise(20, 8))) == []


def test_a_slow_rank_is_named_alone_with_what_it_costs():
    slower = noise(20, 8) * 1.0
    slower[:, 5] = 1.2
    (one,) = [f for f in diagnose(run_of(slower)) if f.kind in FAULTS]
    assert (one.kind, one.level, one.ranks, one.steps) == ("slow_rank", "kernel", (5,), None)
    # 20 steps of 600 us, 20% longer: 2.4 ms, less what the slowest of the others takes longer than the middle
    assert one.cost_ns == pytest.approx(20 * 600_000 * 0.2, rel=0.06)
    assert one.share == pytest.approx(2.4 / (20 * (0.72 + 0.05)), rel=0.06)
    assert "rank 5" in one.words and "20." in one.words


def test_most_ranks_slow_from_a_step_on_is_not_a_few_that_were_fast():
    slower = noise(30, 8)
    guilty = (0, 1, 3, 4, 6, 7)
    slower[15:, guilty] *= 1.15
    (one,) = [f for f in diagnose(run_of(slower)) if f.kind in FAULTS and f.level != "job"]
    assert (one.kind, one.ranks, one.steps) == ("throttled", guilty, (15, 29))


def test_the_other_half_is_not_named_where_half_is_throttled_from_a_step_on():
    """From then on what the ranks have in common lies between the halves: those that are as ever are below it, some of
    them in single steps far less than others."""
    for seed in range(6):
        levels = np.random.default_rng(seed).normal(0, 0.006, (16, 14))
        levels[1::2, 6:] += 0.07
        levels[::2, 6:] -= 0.07
        clean = clean_levels(levels, np.full_like(levels, 0.004), np.zeros(16, np.int64))
        assert {row for one in episodes(clean, 0.03) for row in one.rows} == set(range(1, 16, 2))


def test_a_rank_that_is_slow_for_three_of_ten_steps():
    slower = noise(10, 8)
    slower[2:5, 4] *= 1.3
    (one,) = [f for f in diagnose(run_of(slower)) if f.kind in FAULTS]
    assert (one.kind, one.ranks, one.steps) == ("slow_rank", (4,), (2, 4))


def test_two_ranks_that_are_slow_one_after_the_other_are_both_as_slow_as_they_are():
    slower = noise(20, 8)
    slower[:10, 3] *= 1.5
    slower[10:, 7] *= 1.5
    found = {f.ranks: (f.steps, f.height) for f in diagnose(run_of(slower)) if f.kind in FAULTS}
    assert {ranks: steps for ranks, (steps, _) in found.items()} == {(3,): (0, 9), (7,): (10, 19)}
    assert [height for _, height in found.values()] == pytest.approx([0.5, 0.5], abs=0.01)


def test_of_transfers_without_peers_a_small_period_is_chance_and_a_large_one_is_not():
    """One group of all ranks: there is nothing to compare its transfers with but themselves in other steps."""
    usual, seventh = np.exp(0.003 * np.random.default_rng(4).standard_normal(24)), np.arange(24) % 7 == 5
    assert told(run_of(noise(24, 16), transfer=usual * np.where(seventh, 1.1, 1.0))) == []
    (slow,) = diagnose(run_of(noise(24, 16), transfer=usual * np.where(seventh, 3.0, 1.0)))
    assert (slow.kind, slow.level, slow.pattern, len(slow.ranks)) == ("slow_link", "link", "periodic", 16)
    assert "every 7 steps, in steps 5 to 19" in slow.words


def test_a_rank_that_is_slow_in_one_kind_of_kernels_is_uneven_work_and_no_fault():
    """300 of 600 us take 40% longer on rank 5, which is late for each sum: 120 us a step. Times do not say whether it
    has more to do there."""
    kernels = np.ones((20, 8, 3)) * noise(20, 8)[:, :, None]
    kernels[:, 5, 2] *= 1.4
    run = run_of(np.ones((20, 8)), kernels=kernels)
    assert told(run) == []
    (uneven,) = [f for f in diagnose(run) if f.kind == "uneven_work"]
    assert (uneven.level, len(uneven.ranks), uneven.figures["rank"], uneven.detail) == ("job", 8, 5, "norm")
    assert uneven.height == pytest.approx(0.4, abs=0.01)
    assert uneven.cost_ns == pytest.approx(20 * 120_000, rel=0.06)
    assert "`norm` takes" in uneven.words and "on rank 5" in uneven.words


def test_work_is_not_called_uneven_where_a_finding_explains_it_or_chance_does():
    slower = noise(20, 8)
    slower[:, 5] *= 1.3
    assert [f.kind for f in diagnose(run_of(slower)) if f.kind != "exposed_communication"] == ["slow_rank"]
    far = np.ones((4, 8, 3)) * noise(4, 8)[:, :, None]
    far[1, 5, 2] = 3.0  # once
    assert "uneven_work" not in [f.kind for f in diagnose(run_of(np.ones((4, 8)), kernels=far))]


def test_a_large_group_is_one_finding_though_some_of_it_are_much_slower():
    slower = noise(3, 64)
    slower[:, 3:19] *= 1.2
    slower[:, 5] *= 1.3
    assert told(run_of(slower)) == [("throttled", tuple(range(3, 19)))]


def test_the_same_share_of_kernels_is_not_a_slow_rank_if_only_some_take_longer():
    rng = np.random.default_rng(3)
    kernels = np.ones((60, 8, 3)) * rng.normal(1, 0.005, (60, 8, 3))
    kernels[:, 2] *= np.where(rng.random((60, 3)) < 0.15, 1.8, 1.0)
    assert told(run_of(np.ones((60, 8)), kernels=kernels)) == [("intermittent", (2,))]


def test_a_late_host_and_a_pause_in_every_fourth_step():
    late = np.zeros((24, 8))
    late[:, 6] = 60
    assert told(run_of(noise(24, 8), late)) == [("late_host", (6,))]
    paused = np.zeros((24, 8))
    paused[3::4, 1] = 150
    (one,) = [f for f in diagnose(run_of(noise(24, 8), paused)) if f.kind in FAULTS]
    assert (one.kind, one.ranks, one.every) == ("periodic", (1,), 4)


@pytest.mark.parametrize(("steps", "most"), [(3, 0.95), (20, 0.99)])
def test_of_few_steps_less_is_sure(steps: int, most: float):
    slower = noise(steps, 8)
    slower[:, 3] *= 1.5
    (one,) = [f for f in diagnose(run_of(slower)) if f.kind in FAULTS]
    assert (one.ranks, one.confidence) == ((3,), most)


def test_a_drift_is_one_of_the_rank_that_drifts():
    slower = noise(40, 8)
    slower[:, 3] *= np.linspace(1, 1.2, 40)
    assert told(run_of(slower)) == [("drift", (3,))]


def test_a_change_of_all_names_no_rank_alone():
    slower = noise(40, 8)
    slower[20:] *= 1.1
    (one,) = [f for f in diagnose(run_of(slower)) if f.kind in FAULTS]
    assert (one.kind, one.level, one.steps) == ("common_change", "job", (20, 39))


def test_the_record_has_the_keys_that_scripts_read():
    slower = noise(20, 8)
    slower[:, 5] = 1.2
    (record,) = [f.record() for f in diagnose(run_of(slower)) if f.kind in FAULTS]
    assert list(record) == ["kind", "level", "ranks", "steps", "share", "cost_ns", "confidence", "words"]
    assert json.loads(json.dumps(record)) == record


def halted(sizes: tuple[tuple[int, int], ...]) -> Run:
    """Two ranks that sum one after another; of each call the bytes of both. The last one never ends."""
    n = len(sizes)
    parts, begun, lasted = [], [], []
    for rank in range(2):
        columns = {
            "kind": np.full(n, int(Kind.COLL)),
            "name": ["all_reduce"] * n,
            "cpu": np.zeros(n, np.int8),
            "stream": np.full(n, 7),
            "collective": np.full(n, int(Collective.ALL_REDUCE)),
            "in_bytes": np.array([both[rank] for both in sizes]),
            "group": np.zeros(n, int),
        }
        parts.append(Part(rank, build_trace(columns, group_slots=["g0"]), [("world", [0, 1])], np.zeros(0, np.int64)))
        begun.append(np.arange(n, dtype=np.int64) * 1000)
        lasted.append(np.append(np.full(n - 1, 500), UNKNOWN).astype(np.int64))
    timing = measured(begun, lasted)
    assert timing is not None
    return Run(assemble("halted", parts).replace(timing=timing), timing)


def test_of_two_that_disagree_the_one_that_never_asked_so_before_is_named():
    (one,) = diagnose(halted(((4096, 4096), (4096, 4096), (4096, 2048))))
    assert (one.kind, one.ranks) == ("desync", (1,))
    assert "rank 1 asks for all_reduce of 2,048 bytes, the others all_reduce of 4,096 bytes" in one.words


def test_of_two_that_disagree_in_their_first_call_both_are_named():
    (one,) = diagnose(halted(((4096, 2048),)))
    assert (one.kind, one.ranks, one.confidence) == ("desync", (0, 1), 0.7)


def test_a_stage_that_becomes_slower_is_seen_without_peers_and_what_all_do_is_not():
    """Three stages of two ranks; all are 5% longer in step 3, the second stage 10% from step 5 on."""
    reference = np.zeros((6, 10)) + np.repeat([0.3, 0.1, 0.2], 2)[:, None]
    reference[:, 3] += 0.05
    reference[2:4, 5:] += 0.10
    found = stage_changes(reference, np.repeat([0, 1, 2], 2))
    expected = np.zeros((6, 10))
    expected[2:4, 5:] = 0.10
    assert np.allclose(found, expected, atol=1e-12)
