import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from validate_stragglers import named

import etude
from etude.analyse.outliers import profile
from etude.analyse.stragglers import missing_only, stragglers
from etude.analyse.stretches import slow_units
from etude.base.errors import FormatError
from etude.model.run import recorded
from etude.model.schema import Collective, Kind
from straggling_jobs import straggling
from timed_jobs import timed


@pytest.mark.parametrize(
    ("seed", "ranks", "kind", "factor"),
    [(1, 16, "none", 1.0), (2, 8, "none", 1.0), (3, 16, "slow_rank", 1.1), (4, 8, "late_host", 1.1),
     (5, 16, "slow_link", 1.2), (6, 16, "missing_participant", 1.0)],
)  # fmt: skip
def test_injected_truth_is_found(seed: int, ranks: int, kind: str, factor: float) -> None:
    run, truth = straggling(seed, ranks, kind, factor)
    found = stragglers(run).to_pylist()
    assert named(truth, found) == kind
    if kind == "slow_rank":
        assert found[0]["slowdown_pct"] == pytest.approx(10, abs=2.5)
        assert found[0]["pattern"] == ("chronic" if truth.since == 0 else "acute")
        assert found[0]["since"] == truth.since


def test_a_rank_that_waits_is_not_slow() -> None:
    """Rank 1 computes for long; rank 0 waits for it in the collective. Only different kernels are to blame for that."""
    short, long = ({"kind": Kind.COMP, "name": n, "stream": 7, "cpu": 0} for n in ("short", "long"))
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
    ranks: list[list] = [[], []]
    for i in range(20):
        ranks[0] += [(short, 100 * i, 100 * i + 10), (total, 100 * i + 10, 100 * i + 90)]
        ranks[1] += [(long, 100 * i, 100 * i + 80), (total, 100 * i + 80, 100 * i + 90)]
    run = timed(*ranks, groups={"g": [0, 1]})
    assert len(stragglers(run)) == 0


def test_one_key_that_is_slow_makes_no_unit_slow() -> None:
    rng = np.random.default_rng(0)
    units, keys, segments, each = 8, 5, 4, 6
    unit, key, segment, _ = (
        i.ravel() for i in np.meshgrid(*map(np.arange, (units, keys, segments, each)), indexing="ij")
    )
    log = rng.normal(10, 0.03, len(unit)) + key
    busy = log + 0.4 * ((unit == 3) & (key == 1))
    assert slow_units(profile(unit, key, segment, busy, (units, keys, segments)), 0.06) == []
    slow = slow_units(
        profile(unit, key, segment, log + 0.15 * ((unit == 5) & (segment > 1)), (units, keys, segments)), 0.06
    )
    assert [(s.unit, s.first, s.last, s.whole) for s in slow] == [(5, 2, 3, False)]
    assert slow[0].factor == pytest.approx(np.exp(0.15), abs=0.03)
    assert slow[0].confidence > 0.9


def test_one_rank_alone_is_compared_with_nobody() -> None:
    run = timed([({"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}, 0, 10)])
    assert stragglers(run).num_rows == 0


def test_who_never_came_is_named_and_who_waits_is_not() -> None:
    gemm = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
    other = total | {"group": "h"}
    run = timed(
        [(gemm, 0, 10), (total, 10, None), (other, None, None)],
        [(gemm, 0, 10), (total, None, None)],  # the one
        [(gemm, 0, 10), (other, 10, None)],  # waits for rank 0, which waits for rank 1
        groups={"g": [0, 1], "h": [0, 2]},
    )
    found = stragglers(run).to_pylist()
    assert [(f["rank"], f["kind"]) for f in found] == [(1, "missing_participant")]
    assert "never reached all_reduce 1 of group `g`" in found[0]["evidence"]


def test_of_two_ranks_neither_is_called_slow() -> None:
    gemm = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
    rows = [[(gemm, 1000 * i, 1000 * i + (100 + i % 3) * slow // 10) for i in range(64)] for slow in (10, 20, 10, 10)]
    assert stragglers(timed(*rows[:2])).num_rows == 0
    found = stragglers(timed(*rows)).to_pylist()
    assert [(f["rank"], f["kind"]) for f in found] == [(1, "slow_rank")]
    assert found[0]["confidence"] == pytest.approx(1 - 1 / 8)  # three others agree, which may be chance


def test_samples_that_vary_more_than_units_differ_accuse_nobody() -> None:
    unit, segment = (i.ravel() for i in np.meshgrid(np.arange(3), np.arange(8), indexing="ij"))
    accused = 0
    for seed in range(100):
        log = np.random.default_rng(seed).normal(10, 2, len(unit))
        accused += bool(slow_units(profile(unit, unit * 0, segment, log, (3, 1, 8)), 0.06))
    assert accused <= 5
    found = profile(unit, unit * 0, segment, 10 + log / 100 + (unit == 2), (3, 1, 8))
    assert [s.unit for s in slow_units(found, 0.06)] == [2]


def test_what_was_seen_once_says_nothing() -> None:
    unit, key = (i.ravel() for i in np.meshgrid(np.arange(4), np.arange(16), indexing="ij"))
    assert slow_units(profile(unit, key, key % 8, 10.0 + (unit == 3), (4, 16, 8)), 0.06) == []


def test_a_slow_group_is_named_by_its_ranks_even_if_nobody_said_who_is_in_it() -> None:
    sums = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "in_bytes": 8}
    ranks: list[list] = []
    for rank in range(8):
        each = 100 if rank // 2 != 2 else 200
        ranks.append([(sums | {"group": f"g{rank // 2}"}, 1000 * i, 1000 * i + each + i % 3) for i in range(64)])
    run = timed(*ranks, groups={f"g{i}": None for i in range(4)})
    found = stragglers(run).to_pylist()
    assert [(f["rank"], f["kind"], f["ranks"]) for f in found] == [(4, "slow_link", [4, 5])]
    assert "group `g2`" in found[0]["evidence"]


def entry(number: int, *, done: bool = True, group: str = "0") -> dict[str, Any]:
    """One call as the Flight Recorder has it."""
    began = 1_000_000 * number
    return {
        "record_id": number, "process_group": [group, ""], "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce", "time_created_ns": began, "time_discovered_started_ns": began + 10,
        "time_discovered_completed_ns": began + 500 if done else None, "state": "completed" if done else "started",
        "input_sizes": [[1024]], "input_dtypes": ["Float"], "output_sizes": [[1024]], "output_dtypes": ["Float"],
        "retired": done, "is_p2p": False,
    }  # fmt: skip


def test_dumps_of_the_flight_recorder_tell_who_never_came(tmp_path: Path) -> None:
    for rank in range(3):
        calls = [entry(n) for n in range(3 + rank, 8)]  # ring buffers forget, each as much as it has to
        calls += [] if rank == 1 else [entry(8, done=False)]
        dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": "[0, 1, 2]"}}, "entries": calls}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    job = etude.open(tmp_path)
    assert [len(job.trace(rank)) for rank in range(3)] == [4, 3, 4]
    found = stragglers(recorded(job)).to_pylist()
    assert [(f["rank"], f["kind"], f["confidence"]) for f in found] == [(1, "missing_participant", 1.0)]
    assert "rank 0, 2 waits" in found[0]["evidence"]


def test_a_dump_that_would_run_code_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "nccl_trace_rank_0"
    place.write_bytes(pickle.dumps({"entries": [Path("x")], "why": "collective_seq_id"}))
    with pytest.raises(FormatError, match="asks for pathlib"):
        etude.open(place)


def test_a_rank_that_stops_before_the_others_is_missing() -> None:
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
    ranks = [[(total, 10 * i, 10 * i + 5) for i in range(20 if rank != 2 else 12)] for rank in range(4)]
    run = timed(*ranks, groups={"g": [0, 1, 2, 3]})
    found = stragglers(run).to_pylist()
    assert [(f["rank"], f["kind"]) for f in found] == [(2, "missing_participant")]
    assert "reached 12 of 20 collectives" in found[0]["evidence"]
    assert missing_only(run.job)["rank"].to_pylist() == [2]  # the same without times


def test_a_rank_of_which_nothing_was_recorded_is_missing() -> None:
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
    run = timed(*[[(total, 0, 5)] for _ in range(3)], groups={"g": [0, 1, 2, 3]})
    assert [(f["rank"], f["kind"]) for f in stragglers(run).to_pylist()] == [(3, "missing_participant")]


def test_a_host_that_comes_late_leaves_its_device_idle_while_the_others_wait() -> None:
    gemm = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
    total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}
    ranks: list[list] = []
    for rank in range(6):
        nodes = []
        for step in range(4):
            late = 150 if rank == 4 and step >= 2 else 0
            begin = 1000 * step + late + (7 * rank + 3 * step) % 5
            nodes += [(gemm | {"step": step}, begin, begin + 500)]
            nodes += [(total | {"step": step}, begin + 500, 1000 * step + 800)]
        ranks.append(nodes)
    found = stragglers(timed(*ranks, groups={"g": list(range(6))})).to_pylist()
    assert [(f["rank"], f["kind"], f["pattern"], f["since"]) for f in found] == [(4, "late_host", "acute", 2)]
    assert found[0]["slowdown_pct"] == pytest.approx(100 * 150 / 800, abs=3)


def test_a_port_slows_every_group_that_its_rank_is_in() -> None:
    """Rank 5's port: its row and its column of a 4 x 4 grid are slow, and nothing else is in both."""
    sums = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "in_bytes": 8}
    groups = {f"r{i}": [4 * i + k for k in range(4)] for i in range(4)}
    groups |= {f"c{i}": [i + 4 * k for k in range(4)] for i in range(4)}
    ranks: list[list] = []
    for rank in range(16):
        nodes, now = [], 0
        for call in range(32):
            group = f"r{rank // 4}" if call % 2 else f"c{rank % 4}"
            lasts = (1200 if 5 in groups[group] else 1000) + (11 * call + 5 * int(group[1])) % 40
            nodes.append((sums | {"group": group}, now, now + lasts))
            now += 2000
        ranks.append(nodes)
    found = stragglers(timed(*ranks, groups=groups), ranks_per_node=16).to_pylist()
    assert [(f["rank"], f["kind"], f["ranks"]) for f in found] == [(5, "slow_link", [5])]
