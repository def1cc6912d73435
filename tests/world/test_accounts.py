"""Accounts of random worlds add up to the nanosecond, and no request is lost. A thousand of them are in
`benchmarks/random_worlds.py`."""

import pytest

from small_worlds import random_world, run, wrong_in
from whole_worlds import whole_scenario, whole_world, write_files, wrong_sums


@pytest.mark.parametrize("seed", range(25))
def test_every_nanosecond_is_booked_once(seed: int):
    machine, horizon = random_world(seed)
    run(machine, horizon)
    assert wrong_in(machine, horizon) == []


def test_the_same_seed_gives_the_same_world():
    found = []
    for _ in range(2):
        machine, horizon = random_world(7)
        run(machine, horizon)
        found.append(({name: one.parts_ns(horizon) for name, one in machine.workloads.items()}, machine.log))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(20))
def test_scenarios_of_all_that_there_is_add_up(seed: int, tmp_path):
    """To the nanosecond and the millijoule: faults, prices, caps, stores, adapters, images, agents, rollouts."""
    write_files(tmp_path)
    assert wrong_sums(*whole_world(whole_scenario(seed, tmp_path))) == []
