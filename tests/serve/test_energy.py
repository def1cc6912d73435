"""Energy of a stream, worked by hand."""

import pytest

from etude.world.serve import Engine, serve, summary
from etude.world.serve.energy import ReplicaPower
from etude.world.serve.requests import requests_of
from etude.world.serve.steps import step_cost

SECOND = step_cost(tokens=[1], layers_ns=[1e9])
WORK = step_cost(tokens=[0, 10], layers_ns=[0.0, 1000e9])  # 100 J a token


@pytest.mark.parametrize(
    ("most_w", "joules"),
    [
        # Passes of a second: 4 tokens in, then one out. 100 W idle and 50 W busy on each of 2 ranks of 2 replicas,
        # one of which is idle throughout; work of 400 J and of 100 J on each rank.
        (600.0, 2 * 2 * 100 * 2 + 2 * (50 + 400) + 2 * (50 + 100)),
        # No more than 300 W beyond idle: the first pass draws that.
        (300.0, 2 * 2 * 100 * 2 + 2 * 300 + 2 * (50 + 100)),
    ],
)
def test_energy_of_two_passes(most_w: float, joules: float):
    energy = ReplicaPower(WORK, 50.0, most_w, 100.0, 1.0, 2)
    found = serve(requests_of([0], [4], [2]), Engine(), SECOND, replicas=2, energy=energy, keep_passes=True)
    record = summary(found)
    assert record["energy_j"] == pytest.approx(joules)
    assert record["idle_energy_j"] == pytest.approx(800)
    assert found.passes is not None
    assert sum(found.passes["energy_nj"].to_pylist()) / 1e9 == pytest.approx(joules - 800)


def test_energy_of_a_device_that_says_nothing_is_unknown():
    record = summary(serve(requests_of([0], [4], [2]), Engine(), SECOND))
    assert record["energy_j"] is None and record["idle_energy_j"] is None
