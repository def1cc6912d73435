"""Several jobs on one fabric: what they cost each other, and that they cost nothing where they share nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from etude.base.errors import DeadlockError, UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.join import join
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.run.simulate import Options, simulate
from etude.run.simulate.options import Network
from etude.run.simulate.together import simulate_jobs
from etude.store import chakra
from etude.store.times import read_timing
from etude.surface.cli import main
from simulated_jobs import random_job, symmetric_job
from toy_systems import DEVICE, System, level, one_level

MB = 1 << 20
# Two units of two devices; what leaves a unit shares one link of a device's rate.
SHARED = System(
    name="narrow",
    device=DEVICE,
    levels=(level("in", "switch", 2), level("out", "switch", 2, oversubscription=2.0, latency_ns=0.0)),
)


def all_reduces(ranks: int = 2, calls: int = 1, size: int = MB, group: str | None = None, before_ns: int = 0) -> Job:
    builders = [TraceBuilder() for _ in range(ranks)]
    for b in builders:
        for k in range(calls):
            last = [len(b) - 1] if len(b) else []
            if before_ns and not k:
                b.add(Kind.COMP, "before", duration_ns=before_ns)
                last = [0]
            b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=size, group=group, data=last)
    return job_of("sums", builders, {group: list(range(ranks))} if group else {})


@pytest.mark.parametrize("network", ["links", "flow"])
def test_two_equal_all_reduces_take_twice_as_long_on_shared_links_and_as_long_on_others(network: str):
    jobs = [all_reduces(), all_reduces(group="g")]
    across = simulate_jobs(jobs, SHARED, Options(network=network), places=[[0, 2], [1, 3]])
    table = across.job_table().to_pydict()
    assert max(table["slowdown"]) == pytest.approx(2.00, abs=0.005)
    assert table["shared_links"] == [4, 4] and table["shared_bytes"] == [0.5, 0.5]
    assert all(row["by_job"] == [MB, MB] for row in across.link_table(shared=True).to_pylist())
    apart = simulate_jobs(jobs, SHARED, Options(network=network), places=[[0, 1], [2, 3]])
    assert apart.job_table()["slowdown"].to_pylist() == [1.0, 1.0]
    assert apart.link_table(shared=True).num_rows == 0


def test_fair_links_give_both_their_half_and_queues_serve_the_first_first():
    jobs = [all_reduces(), all_reduces()]
    fair, queued = (
        simulate_jobs(jobs, SHARED, Options(network=network), places=[[0, 2], [1, 3]])
        .job_table()["slowdown"]
        .to_pylist()
        for network in ("flow", "links")
    )
    assert fair == pytest.approx([2.0, 2.0], abs=0.005)
    assert min(queued) == pytest.approx(1.5, abs=0.005)  # two messages each, in turn: 1 2 1 2
    many = simulate_jobs(
        [all_reduces(calls=20)] * 2, SHARED, Options(network="links"), places=[[0, 2], [1, 3]]
    ).job_table()["slowdown"].to_pylist()  # fmt: skip
    assert many == pytest.approx([2.0, 2.0], abs=0.03)


@pytest.mark.parametrize("calls", [1, 3, 10])
def test_of_two_queues_of_k_messages_the_first_is_one_message_ahead_of_twice_its_time(calls: int):
    """An all-reduce of two is two messages of a link, one after the other. Whole messages go in turn, 1 2 1 2 ..., so
    of 2k messages the first job has its last one at 2k - 1 and the second at 2k: over k alone 2 - 1/k and 2.00."""
    k = 2 * calls
    found = simulate_jobs(
        [all_reduces(calls=calls)] * 2, SHARED, Options(network="links"), places=[[0, 2], [1, 3]]
    ).job_table()["slowdown"].to_pylist()  # fmt: skip
    assert found == pytest.approx([2 - 1 / k, 2.0], abs=0.005)


def test_the_part_that_overlaps_is_the_part_that_is_slower():
    # 1 MiB at a byte a ns over a link of its own takes T; the second starts at T / 2: each has T / 2 alone, T shared
    alone_ns = simulate(all_reduces(), SHARED, network="flow").makespan_ns
    half = alone_ns // 2
    found = simulate_jobs(
        [all_reduces(), all_reduces()], SHARED, Options(network="flow"), at_ns=[0, half], places=[[0, 2], [1, 3]]
    )
    assert found.time_ns.tolist() == pytest.approx([1.5 * alone_ns, 1.5 * alone_ns], rel=0.001)
    assert found.start_ns.tolist() == [0, half]


@pytest.mark.parametrize("network", list(Network))
def test_one_job_is_plain_simulation_wherever_it_sits(network: Network):
    machine = one_level("switch", 16)
    for seed in range(16):
        rng = random.Random(seed)
        job = symmetric_job(rng) if seed % 2 else random_job(rng, ranks=4, events=14, broken=False)
        options = Options(network=network)
        places = sorted(rng.sample(range(16), job.world_size))  # queues break ties by the order of ranks
        try:
            plain = simulate(job, machine, options)
        except DeadlockError:
            with pytest.raises(DeadlockError):
                simulate_jobs([job], machine, options, places=[places])
            continue
        here = simulate_jobs([job], machine, options)
        assert here.run.makespan_ns == plain.makespan_ns and here.run.job is job
        moved = simulate_jobs([job], machine, options, places=[places]).run_of(0)
        for at in range(len(job.ranks)):
            for one, other in zip(moved.timing.block(at), plain.timing.block(at), strict=True):
                assert one.tolist() == other.tolist(), (seed, at)


@pytest.mark.parametrize("network", list(Network))
def test_what_starts_when_the_others_are_done_is_as_if_alone(network: Network):
    first, second = all_reduces(calls=3, before_ns=1000), all_reduces(calls=2, group="g")
    machine, options = SHARED, Options(network=network)
    end = simulate(first, machine, options).makespan_ns
    found = simulate_jobs([first, second], machine, options, at_ns=[0, 2 * end], places=[[0, 2], [1, 3]])
    assert found.time_ns.tolist() == found.alone_ns.tolist()
    assert found.job_table()["slowdown"].to_pylist() == [1.0, 1.0]
    assert found.run.makespan_ns == 2 * end + found.alone_ns[1]


@pytest.mark.parametrize("network", list(Network))
def test_a_rank_that_starts_late_is_one_with_work_before(network: Network):
    """The same as a compute node on a lane of its own that all others wait for."""
    for seed in range(6):
        rng = random.Random(seed)
        job, machine = random_job(rng, ranks=3, events=12, broken=False), one_level("switch", 4)
        late = {r: rng.choice([1, 30, 500]) for r in rng.sample(range(3), 2)}
        found = simulate(job, machine, Options(network=network, starts=late, fold=rng.choice([None, False])))
        for rank, start_ns in late.items():
            started = found.timing.block(rank)[0]
            assert (started[started != UNKNOWN] >= start_ns).all()
    jobs = [all_reduces(before_ns=b) for b in (0, 700)]
    waited = simulate(jobs[1], one_level("switch", 2), network=network).makespan_ns
    assert simulate(jobs[0], one_level("switch", 2), network=network, starts={1: 700}).makespan_ns == waited


def test_closed_forms_share_nothing_and_say_so():
    found = simulate_jobs([all_reduces(), all_reduces()], SHARED, at_ns=[0, 5], places=[[0, 2], [1, 3]])
    assert found.job_table()["slowdown"].to_pylist() == [1.0, 1.0]
    assert any("closed forms do not model links" in note for note in found.run.notes)


def test_the_joined_job_is_sound_and_says_who_is_who():
    jobs = [random_job(random.Random(seed), ranks=3, events=12, broken=False) for seed in (1, 2, 5)]
    both = join(jobs, [[7, 3, 5], [0, 1, 2], [4, 8, 6]])
    assert both.ranks.tolist() == list(range(9)) and both.nodes == sum(job.nodes for job in jobs)
    assert {f.kind for f in check(both)} <= {f.kind for job in jobs for f in check(job)}
    for job, places in zip(jobs, ([7, 3, 5], [0, 1, 2], [4, 8, 6]), strict=True):
        for rank, place in enumerate(places):
            assert both.trace(place).source_id.tolist() == job.trace(rank).source_id.tolist()
            assert both.peer_slots(place).tolist() == [places[p] for p in job.peer_slots(rank).tolist()]


def test_slow_ranks_and_folding_go_by_the_system_s_ranks():
    jobs = [all_reduces(before_ns=1000), all_reduces(before_ns=1000)]
    found = simulate_jobs(jobs, SHARED, Options(slow_ranks={3: 2.0}))
    assert (found.time_ns - found.time_ns[0]).tolist() == [0, 1000]
    assert simulate_jobs(jobs, SHARED, at_ns=[0, 10]).run.simulated_ranks == 2  # one of each job stands for both


@pytest.mark.parametrize(("given", "said"), [
    ({"places": [[0, 1], [1, 2]]}, "jobs 0 and 1 overlap: both are placed on 1"),
    ({"places": [[0, 1]]}, "2 jobs, but places for 1"),
    ({"places": [[0, 1], [2]]}, "1 places for a world of 2"),
    ({"places": [[0, 0], [2, 3]]}, "two of its ranks have the same place"),
    ({"at_ns": [0]}, "2 jobs, 1 start times"),
    ({"at_ns": [0, -5]}, "starts at -5 ns"),
])  # fmt: skip
def test_bad_places_and_times_are_refused(given: dict[str, list[int]], said: str):
    with pytest.raises(UsageError, match=said):
        simulate_jobs([all_reduces(), all_reduces()], SHARED, **given)


NARROW = """
name: narrow
device: {name: d}
levels:
  - {name: in, kind: switch, size: 2, bandwidth: 1GB/s, latency: 0ns}
  - {name: out, kind: switch, size: 2, bandwidth: 1GB/s, latency: 0ns, oversubscription: 2}
"""


@pytest.fixture
def typed(tmp_path: Path) -> list[str]:
    (tmp_path / "narrow.yaml").write_text(NARROW)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        chakra.write_job(all_reduces(group="g").replace(name=name), tmp_path / name)
    return ["simulate", str(tmp_path / "a"), str(tmp_path / "b"), "--system", str(tmp_path / "narrow.yaml")]


def test_as_it_is_typed(typed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    there = ["--place", "0,2", "--place", "1,3", "--network", "flow"]
    assert main([*typed, *there, "--json", "--timing", str(tmp_path / "t.parquet")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["slowdown"] for row in found["jobs"]] == pytest.approx([2, 2], abs=0.005)
    assert [row["job"] for row in found["ranks"]] == [0, 1, 0, 1]
    assert [row["by_job"] for row in found["links"][:4]] == [[MB, MB]] * 4
    own = read_timing(all_reduces(group="g"), tmp_path / "t.1.parquet")  # by the ranks of the job itself
    assert own.last_ends().tolist() == [found["jobs"][1]["end_ns"]] * 2
    assert main([*typed, *there, "--at", "0,5ms"]) == 0
    printed = capsys.readouterr().out
    assert "slowdown" in printed and "shared_link" in printed


@pytest.mark.parametrize(("more", "said"), [
    (["--place", "0-1", "--place", "1-2"], "overlap"),
    (["--place", "x", "--place", "1"], "not a rank"),
    (["--at", "0"], "1 times for 2 jobs"),
    (["--at", "0,-5ms"], "before the run"),
    (["--at", "0,soon"], "soon"),
    (["--astra-network", "n.yml", "--astra-system", "s.json"], "two systems"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(
    more: list[str], said: str, typed: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([*typed, *more]) == 2
    assert said in capsys.readouterr().err
