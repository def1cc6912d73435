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
        # Passes of a second: 4 tokens in, then one out. 100 W idle on each of 2 ranks of 2 replicas, one of which is
        # idle throughout; 400 J and 100 J above that on each rank.
        (600.0, 2 * 2 * 100 * 2 + 2 * 400 + 2 * 100),
        # No more than 300 W beyond idle: the first pass draws that.
        (300.0, 2 * 2 * 100 * 2 + 2 * 300 + 2 * 100),
    ],
)
def test_energy_of_two_passes(most_w: float, joules: float):
    energy = ReplicaPower(WORK, most_w, 100.0, 1.0, 2)
    found = serve(requests_of([0], [4], [2]), Engine(), SECOND, replicas=2, energy=energy, keep_passes=True)
    record = summary(found)
    assert record["energy_j"] == pytest.approx(joules)
    assert record["idle_energy_j"] == pytest.approx(800)
    assert found.passes is not None
    assert sum(found.passes["energy_nj"].to_pylist()) / 1e9 == pytest.approx(joules - 800)


def test_energy_of_a_device_that_says_nothing_is_unknown():
    record = summary(serve(requests_of([0], [4], [2]), Engine(), SECOND))
    assert record["energy_j"] is None and record["idle_energy_j"] is None


def test_sampling_draws_as_copies_do_and_gaps_between_kernels_draw_nothing():
    from etude.machine import open_system
    from etude.make.generate import Plan
    from etude.make.generate.model import open_model
    from etude.world.serve.catalogue import pass_tables
    from etude.world.serve.pass_time import times_ns
    from etude.world.serve.stacks import ServingStack
    from etude.world.serve.steps import PassContent

    system, model = open_system("dgx-h100"), open_model("gpt2")
    tables = pass_tables(model, Plan(gpus=1), system)
    shape = [PassContent(0, 0.0, 4, 400, 4, 100)]

    def joules(**figures: float) -> float:
        return float(times_ns(tables.energy(system.device, ServingStack(**figures)), shape)[0]) / 1e9

    plain = joules()
    assert joules(kernel_ns=1e6, pass_ns=1e9, schedule_ns=1e9) == plain
    # 4 sequences, 50,257 words, 1 us each: 142 W of running kernels, and 110 pJ for each of 3.35 TB/s x 0.86.
    assert joules(word_ns=1000.0) - plain == pytest.approx(4 * 50257e-6 * (142 + 110e-12 * 3.35e12 * 0.86), rel=1e-3)
