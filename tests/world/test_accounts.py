"""Accounts of random worlds add up to the nanosecond, and no request is lost. A thousand of them are in
`benchmarks/random_worlds.py`."""

import pytest

from small_worlds import random_world, run, wrong_in


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
