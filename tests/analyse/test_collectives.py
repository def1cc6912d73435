import random
from dataclasses import replace

import numpy as np
import pytest

from etude.analyse.clocks import alignment, can_align, offsets
from etude.analyse.collectives import bus_factor, collectives, payload_bytes, summarised
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.run.simulate.run import simulate
from simulated_jobs import symmetric_job, system
from timed_jobs import timed, timing_of

SUM = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "in_bytes": 1000}


def skewed(run: Run, skew: list[int]) -> Run:
    starts = [(run.timing.block(i)[0] + s).tolist() for i, s in enumerate(skew)]
    ends = [(run.timing.block(i)[1] + s).tolist() for i, s in enumerate(skew)]
    return Run(run.job, timing_of(starts, ends))


def two_ranks() -> Run:
    call = SUM | {"group": "g"}
    return timed([(call, 0, 100), (call, 200, 260)], [(call, 60, 100), (call, 190, 260)], groups={"g": [0, 1]})


def test_transfer_is_apart_from_waiting() -> None:
    run = two_ranks()
    first, second = collectives(run).to_pylist()
    assert (first["transfer_ns"], first["skew_ns"], first["wait_ns"]) == (40, 60, 30)
    assert (first["first_rank"], first["last_rank"]) == (0, 1)
    assert (second["transfer_ns"], second["skew_ns"], second["last_rank"]) == (60, 10, 0)
    assert first["algbw_bytes_per_s"] == pytest.approx(1000 / 40e-9)
    assert first["busbw_bytes_per_s"] == pytest.approx(1000 / 40e-9)  # 2(n-1)/n is 1 for two


def test_clocks_that_differ_are_aligned_on_the_ends() -> None:
    other = skewed(two_ranks(), [0, 5000])
    assert offsets(other).tolist() == [0, -5000]
    rows = collectives(other).to_pylist()
    assert [r["skew_ns"] for r in rows] == [60, 10]
    assert alignment(other).to_pylist()[1]["end_spread_ns"] == 0


def test_offsets_go_from_group_to_group() -> None:
    """Ranks 0 and 2 share no group; what 1 shares with both tells."""
    a, b = SUM | {"group": "a"}, SUM | {"group": "b"}
    run = timed([(a, 0, 10)], [(a, 0, 10), (b, 10, 30)], [(b, 5, 30)], groups={"a": [0, 1], "b": [1, 2]})
    assert offsets(skewed(run, [0, 700, -900])).tolist() == [0, -700, 900]


def test_clocks_can_be_aligned_by_calls_or_are_one_already() -> None:
    assert can_align(skewed(two_ranks(), [0, 0])) and can_align(skewed(two_ranks(), [0, 5000]))
    apart = timed([(SUM | {"group": "a"}, 0, 10)], [(SUM | {"group": "b"}, 0, 10)], groups={"a": [0], "b": [1]})
    apart = skewed(apart, [0, 0])
    assert not can_align(apart)
    assert can_align(Run(apart.job, replace(apart.timing, aligned=True)))
    assert can_align(timed([(SUM | {"group": "a"}, 0, 10)], groups={"a": [0]}))


@pytest.mark.parametrize("seed", range(8))
def test_simulated_clocks_are_found_to_the_nanosecond(seed: int) -> None:
    rng = random.Random(seed)
    job = symmetric_job(rng)
    run = simulate(job, system(16), fold=False)
    skew = [rng.randrange(-1000, 1000) for _ in job.ranks]
    world = any((t.kind == Kind.COLL).any() and (t.group[t.kind == Kind.COLL] < 0).any() for t in job.traces)
    found = offsets(skewed(run, skew))
    if world:  # then all ranks share calls
        assert found.tolist() == [skew[0] - s for s in skew]


def test_a_member_that_was_not_seen_is_counted_out() -> None:
    call = SUM | {"group": "g"}
    run = timed([(call, 0, 100)], [(call, None, None)], groups={"g": [0, 1]})
    row = collectives(run).to_pylist()[0]
    assert (row["ranks_seen"], row["group_size"], row["transfer_ns"]) == (1, 2, 100)


def test_alike_calls_become_one_row() -> None:
    run = two_ranks()
    row = summarised(collectives(run)).to_pylist()[0]
    assert (row["collective"], row["calls"], row["total_transfer_ns"], row["median_transfer_ns"]) == (
        "all_reduce", 2, 100, 50,
    )  # fmt: skip


def test_payload_and_bus_factor_by_collective() -> None:
    kinds = np.array(
        [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST, Collective.ALL_TO_ALL], np.uint8
    )
    size, members = np.array([8, 8, 8, UNKNOWN]), np.array([4, 4, 4, 4])
    assert payload_bytes(kinds, size, members)[:3].tolist() == [8, 32, 8]
    assert np.isnan(payload_bytes(kinds, size, members)[3])
    assert bus_factor(kinds, members).tolist() == [1.5, 0.75, 1.0, 0.75]
