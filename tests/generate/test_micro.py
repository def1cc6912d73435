"""Micro-benchmarks: what is in them, by hand; all of them sound; numbers as derived."""

import json
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import UsageError
from etude.make.generate.micro_benchmarks import COLLECTIVES, PATTERNS, MicroOptions, micro
from etude.model.schema import Collective, Kind
from etude.model.totals import totals
from etude.surface.cli import main
from toy_systems import one_level

ALL = [*(c.name.lower() for c in COLLECTIVES), *PATTERNS, "shift:3"]


@pytest.mark.parametrize("pattern", ALL)
@pytest.mark.parametrize(
    "more",
    [{}, {"compute_ns": 1000, "overlap": True}, {"compute_ns": 1000}, {"concurrent": True}],
    ids=["plain", "overlap", "compute", "concurrent"],
)
def test_every_pattern_is_sound_and_ends(pattern: str, more: dict[str, object]):
    job = micro(pattern, MicroOptions(ranks=6, sizes=(600, 6000), repeat=2, **more))  # type: ignore[arg-type]
    assert etude.check(job) == []
    assert len(job) == 6
    timing = etude.simulate(job, one_level("switch", 6))
    assert timing.makespan_ns > 4 * 1000 * ("compute_ns" in more)


def test_overlap_takes_as_long_as_the_longer_of_the_two():
    """Four rounds: 1000 ns of compute and one all-reduce of T."""
    system = one_level("switch", 4)
    base = {"ranks": 4, "sizes": (4096,), "repeat": 4}
    alone = etude.simulate(micro("all_reduce", MicroOptions(**base)), system).makespan_ns // 4
    serial = etude.simulate(micro("all_reduce", MicroOptions(**base, compute_ns=1000)), system)
    both = etude.simulate(micro("all_reduce", MicroOptions(**base, compute_ns=1000, overlap=True)), system)
    assert serial.makespan_ns == 4 * (1000 + alone)
    assert both.makespan_ns == max(4 * 1000 + alone, 1000 + 4 * alone)


def test_groups_and_strides():
    job = micro("all_gather", MicroOptions(ranks=8, sizes=(10,), group=2, stride=2))
    members = [job.groups.ranks(g) for g in range(len(job.groups))]
    assert [m.tolist() for m in members if m is not None] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [int(job.group_slots(r)[0]) for r in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert job.traces[0].out_bytes.tolist() == [20]
    assert etude.check(job) == []


@pytest.mark.parametrize(
    ("collective", "out"),
    [("all_reduce", 100), ("all_gather", 400), ("reduce_scatter", 25), ("scatter", 25), ("all_to_all", 100)],
)
def test_output_bytes(collective: str, out: int):
    trace = micro(collective, MicroOptions(ranks=4, sizes=(100,))).traces[0]
    assert (trace.in_bytes.tolist(), trace.out_bytes.tolist()) == ([100], [out])


def test_a_barrier_has_no_bytes():
    assert micro("barrier", MicroOptions(ranks=4)).traces[0].in_bytes.tolist() == [0]


def test_who_sends_to_whom():
    def sends(pattern: str, ranks: int) -> set[tuple[int, int]]:
        job = micro(pattern, MicroOptions(ranks=ranks, sizes=(8,)))
        found = set()
        for r in range(ranks):
            t, peers = job.trace(r), job.peer_slots(r)
            found |= {(r, int(peers[s])) for s in t.dst[t.kind == Kind.SEND]}
        return found

    assert sends("ring", 4) == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert sends("shift:3", 4) == {(0, 3), (1, 0), (2, 1), (3, 2)}
    assert sends("neighbours", 3) == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert sends("ping_pong", 4) == sends("exchange", 4) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert sends("bisection", 4) == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert sends("incast", 4) == {(1, 0), (2, 0), (3, 0)}
    assert sends("outcast", 4) == {(0, 1), (0, 2), (0, 3)}
    assert sends("chain", 4) == {(0, 1), (1, 2), (2, 3)}
    assert sends("all_pairs", 4) == {(a, b) for a in range(4) for b in range(4) if a != b}
    one = sends("permutation", 9)
    assert [{p[i] for p in one} for i in (0, 1)] == [set(range(9))] * 2
    assert all(a != b for a, b in one)


def test_ranks_cost_nothing():
    job = micro("ring", MicroOptions(ranks=100_000, sizes=(8,)))
    assert (len(job.traces), len(job), job.nodes) == (1, 100_000, 200_000)
    assert totals(job)["comm_bytes_by_type"] == {"send": 800_000}


def test_numbers_count_ranks_with_values_of_their_own():
    job = micro("all_reduce", MicroOptions(ranks=4, sizes=(100,)))
    job = job.replace(values={2: {"in_bytes": np.array([1000], np.int64)}})
    assert totals(job)["comm_bytes_by_type"] == {"all_reduce": 3 * 100 + 1000}


@pytest.mark.parametrize(
    ("pattern", "options", "problem"),
    [
        ("nothing", {}, "unknown pattern `nothing`"),
        ("ring:2", {}, "unknown pattern"),
        ("shift:0", {}, "cannot send to itself"),
        ("shift:8", {}, "cannot send to itself"),
        ("shift:x", {}, "column 7: `shift:x`: `x` is not a count"),
        ("exchange", {"ranks": 7}, "7 is odd"),
        ("ring", {"ranks": 1}, "at least two ranks"),
        ("ring", {"group": 2}, "groups apply only to collectives"),
        ("all_reduce", {"group": 3}, "not a whole number of groups"),
        ("all_reduce", {"stride": 2}, "a stride needs groups"),
        ("all_reduce", {"overlap": True}, "nothing to overlap with"),
        ("all_reduce", {"sizes": (0,)}, "is not valid"),
        ("all_reduce", {"ranks": 1 << 21}, "2,097,152 ranks"),
        ("all_reduce", {"repeat": 10**9}, "too many"),
        ("all_pairs", {"ranks": 10_000}, "all_pairs on 10,000 ranks"),
    ],
)
def test_what_cannot_be_is_refused(pattern: str, options: dict[str, object], problem: str):
    with pytest.raises(UsageError, match=problem):
        micro(pattern, MicroOptions(**{"ranks": 8, **options}))  # type: ignore[arg-type]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "job"
    args = ["generate", "micro", "all_reduce", "--ranks", "4", "--bytes", "1KB,2KB", "-o", str(out), "--json"]
    assert main([*args, "--to", "et"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["comm_bytes_by_type"] == {"all_reduce": 4 * 3000}
    assert sorted(p.name for p in out.iterdir()) == [f"micro_all_reduce.{r}.et" for r in range(4)]
    job = etude.open(out)
    assert job.traces[0].collective.tolist() == [Collective.ALL_REDUCE] * 2
    assert etude.check(job) == []
    assert main(args) == 2
    assert main([*args, "--force"]) == 0
    assert (out / "manifest.json").exists()
    assert main([*args[:5], "--no-write"]) == 0
    assert main(args[:5]) == 0
    assert "nothing written" in capsys.readouterr().err
