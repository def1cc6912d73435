"""Radio functions and AI services on one set of nodes."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.radio.places import best_place, worth
from etude.world.fleet.radio.results import radio_record
from etude.world.fleet.radio.run import _served, share_radio
from etude.world.fleet.radio.shares import (
    DEADLINES,
    EVENLY,
    Members,
    requests_in_time,
    shares_at,
    slots_in_time,
    times_at,
)
from etude.world.fleet.radio.spec import read_radio

EXAMPLE = Path(__file__).parents[2] / "examples" / "airan.yaml"


def members(radio, ai, gpus=(1.0,), cpus=(1.0,), vary=0.0):
    """`radio`: (gpu, cpu, deadline) in seconds; `ai`: (gpu, cpu, deadline, rate)."""
    rows = [(*one, 1 / one[2]) for one in radio] + list(ai)
    gpu, cpu, deadline, rate = (np.array(column, float) for column in zip(*rows, strict=True))
    kinds = np.array([True] * len(radio) + [False] * len(ai))
    return Members(kinds, gpu, cpu, deadline, np.where(kinds, vary, 0.0), rate, np.array(gpus), np.array(cpus))


def at(given, place=None, how=DEADLINES, factor=1.0):
    count = len(given.rate)
    return shares_at(given, np.full(count, factor), np.zeros(count, np.int64) if place is None else place, how)


def test_a_slot_ends_at_its_deadline_with_the_least_of_both():
    given = members([(100e-6, 25e-6, 500e-6)], [(0.01, 0.001, 0.1, 1.0)])
    found = at(given)
    # g = 100, c = 25, d = 500: sqrt(gc) = 50, so 150/500 of the GPU and 75/500 of the CPU
    assert found.gpu[0] == pytest.approx(0.3) and found.cpu[0] == pytest.approx(0.15)
    assert times_at(given, found)[0] == pytest.approx(500e-6)
    sums = [x + 25 / (500 - 100 / x) for x in np.arange(0.21, 0.9, 0.001)]  # all x, with the y that is just enough
    assert found.gpu[0] + found.cpu[0] <= min(sums) + 1e-9


def test_fractions_of_services_are_where_a_grid_finds_the_least_weighted_time():
    given = members([], [(0.02, 0.002, 0.3, 12.0), (0.004, 0.001, 0.05, 40.0), (0.01, 0.0, 0.15, 20.0)])
    found = at(given).gpu
    alone, rate, limit = given.gpu_s + given.cpu_s, given.rate, given.deadline_s

    def weighted(parts):
        spare = np.array(parts) / alone - rate
        return float((rate / limit / spare).sum()) if (spare > 0).all() else np.inf

    grid = [(a, b, 1 - a - b) for a, b in itertools.product(np.arange(0.005, 0.99, 0.005), repeat=2) if a + b < 0.995]
    best = min(grid, key=weighted)
    assert weighted(found) <= weighted(best) and found == pytest.approx(best, abs=0.006)
    assert found.sum() == pytest.approx(1.0)


def test_radio_goes_first_and_no_share_is_more_than_there_is():
    draws = np.random.default_rng(4)
    for _ in range(50):
        radio = [(*draws.uniform(10e-6, 300e-6, 2), 500e-6) for _ in range(3)]
        ai = [(*draws.uniform(1e-3, 30e-3, 2), 0.1, draws.uniform(1, 80)) for _ in range(4)]
        given = members(radio, ai, gpus=(1.0, 0.5), cpus=(1.0, 2.0), vary=0.2)
        place = draws.integers(0, 2, 7)
        for how in (DEADLINES, EVENLY):
            found = at(given, place, how)
            for n in range(2):
                assert found.gpu[place == n].sum() <= given.node_gpu[n] + 1e-9
                assert found.cpu[place == n].sum() <= given.node_cpu[n] + 1e-9
    full = members([(400e-6, 400e-6, 500e-6)], [(0.01, 0.01, 0.1, 1.0)])
    assert at(full).gpu.tolist() == [1.0, 0.0]


def test_slots_between_the_shortest_and_the_longest():
    assert slots_in_time(1.0, 1.2, 0.2) == 1.0
    assert slots_in_time(1.0, 1.0, 0.2) == pytest.approx(0.5)
    assert slots_in_time(1.0, 0.8, 0.2) == pytest.approx(0.0, abs=1e-9)
    assert (slots_in_time(1.0, 1.0, 0.0), slots_in_time(1.01, 1.0, 0.0), slots_in_time(np.inf, 1.0, 0.2)) == (1, 0, 0)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_who_leaves_a_queue_is_as_theory_says(rate):
    """Requests that would wait longer than 3 leave at once; a walk over the work that is left counts them."""
    draws = np.random.default_rng(1)
    gaps, work = draws.exponential(1 / rate, 200_000), draws.exponential(1.0, 200_000)
    left, stays = 0.0, 0
    for gap, more in zip(gaps, work, strict=True):
        left = max(left - gap, 0.0)
        if left <= 3.0:
            left += more
            stays += 1
    assert requests_in_time(1.0, 4.0, rate) == pytest.approx(stays / len(gaps), abs=0.01)


def test_the_best_place_is_that_of_all_places():
    draws = np.random.default_rng(7)
    for _ in range(10):
        ai = [(*draws.uniform(1e-3, 20e-3, 2), draws.uniform(0.05, 0.3), draws.uniform(5, 40)) for _ in range(4)]
        given = members([(100e-6, 50e-6, 500e-6)], ai, gpus=(1.0, 0.6), cpus=(1.0, 0.6), vary=0.1)
        now, ones = np.array([0, 0, 0, 1, 1]), np.ones(5)
        for migrate in (0.0, 2.0, 20.0):
            every = [np.array(place) for place in itertools.product(range(2), repeat=5)]
            most = max(worth(given, ones, now, place, 30.0, migrate) for place in every)
            found = best_place(given, ones, now, 30.0, migrate)
            assert worth(given, ones, now, found, 30.0, migrate) == most
        assert best_place(given, ones, now, 30.0, np.inf).tolist() == now.tolist()


def test_requests_run_at_the_speed_of_each_stretch_and_stop_in_an_interruption():
    begins, ends = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, np.inf])
    times = np.array([1.0, np.inf, 0.5])
    # the first has 0.5 left at 1 s, waits until 2 s, ends at 2.25; the second then runs to 2.75
    assert _served(np.array([0.5, 0.6]), np.array([1.0, 1.0]), begins, ends, times, 2.2) == 2
    assert _served(np.array([0.5, 0.6]), np.array([1.0, 1.0]), begins, ends, times, 2.0) == 1
    # given up at 1.5 s; the second is given up at 1.6 s
    assert _served(np.array([0.5, 0.6]), np.array([1.0, 1.0]), begins, ends, times, 1.0) == 0


def test_no_interruption_is_greedy_and_an_endless_one_is_static():
    def ran(**given):
        return radio_record(share_radio(read_radio(EXAMPLE, **given), seed=3))

    static, endless = ran(policy="static"), ran(policy="haf", migrate="endless")
    assert static["members"] == endless["members"] and endless["moves"] == 0
    greedy, free = ran(policy="greedy", migrate="0s"), ran(policy="haf", migrate="0s")
    assert greedy["members"] == free["members"] and free["moves"] > 0
    assert static == ran(policy="static")
    assert static["requests"] == greedy["requests"]


def test_a_folder_a_page_and_a_range_of_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "airan"
    assert main(["fleet", str(EXAMPLE), "-o", str(out)]) == 0
    assert main(["query", str(out), "select count(*) as moves from moves"]) == 0
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    assert "Requests on time" in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert main(["fleet", str(EXAMPLE), "--policy", "static", "--load", "0.5..1.2"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 9


def test_bad_files_and_flags_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, text = tmp_path / "airan.yaml", EXAMPLE.read_text()
    for old, new, said in (
        ("policy: haf", "policy: best", "unknown policy `best`"),
        ("node: c,", "node: d,", "no node `d`"),
        ("rate: 12", "speed: 12", "unknown key `speed`"),
        ("swing: 0.5", "swing: 1.5", "a swing of 1.5"),
        ("slot: 1ms", "slot: 1ms, deadline: 2ms", "after the next slot"),
        ("name: maps", "name: chat", "a name appears twice"),
        ("migrate: 2s", "migrate: -2s", "is negative"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UsageError, match=said):
            read_radio(path)
    for more in (["--load", "2..1"], ["--load", "-1"], ["--migrate", "5"], ["--switch", "3s"]):
        assert main(["fleet", str(EXAMPLE), *more]) == 2
    assert main(["fleet", str(EXAMPLE), "--load", "1..2", "-o", str(tmp_path / "x")]) == 2
    assert main(["fleet", "llama3-8b", "--load", "1"]) == 2
    assert "Traceback" not in capsys.readouterr().err
