"""Other plans for slow and for fewer nodes."""

import numpy as np
import pytest

from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.world.fleet.costs import REPLAN, predicted_costs
from etude.world.fleet.replan import (
    StatePart,
    Weights,
    coordinates,
    layers_of,
    missing_bytes,
    moved_bytes,
    part_of,
    plans_for,
    stages_for,
    weights_of,
)

ONE = Weights(layer=10.0, ends=3.0)


def plan(**given):
    return Plan.from_dict({"micro_batch": 1, "seq": 512, "zero": 0, **given}, "plan")


def cells(part: StatePart, tp: int = 24) -> set[tuple[str, int]]:
    """A part of the state as a set of (layer, slice), with 24 slices for each."""
    rows = [f"layer {k}" for k in range(part.first, part.end)]
    rows += ["embedding"] * part.embedding + ["head"] * part.head
    return {(row, k) for row in rows for k in range(round(part.low * tp), round(part.high * tp))}


def test_ranks_are_numbered_by_the_order_of_axes():
    wide = plan(gpus=16, tp=2, pp=2, global_batch=8)
    assert coordinates(wide, 5) == {"tp": 1, "cp": 0, "dp": 2, "pp": 0}
    assert coordinates(wide, 9) == {"tp": 1, "cp": 0, "dp": 0, "pp": 1}
    assert layers_of(wide, 12) == (6, 6) and layers_of(wide.replace(stages=(8, 4)), 12) == (8, 4)
    assert part_of(wide, 9, 12) == StatePart(6, 12, 0.5, 1.0, False, True)


def test_what_is_missing_is_counted_slice_by_slice():
    plans = [plan(gpus=8, tp=t, pp=p, global_batch=16) for t in (1, 2, 4) for p in (1, 2)]
    plans += [plan(gpus=8, tp=2, pp=2, global_batch=16, stages=(7, 5))]
    sizes = {"embedding": 3.0, "head": 3.0}
    for before in plans:
        for after in plans:
            for rank in range(8):
                has, needs = part_of(before, rank, 12), part_of(after, rank, 12)
                lack = cells(needs) - cells(has)
                expected = sum(sizes.get(row, 10.0) / 24 for row, _ in lack)
                assert missing_bytes(needs, has, ONE) == pytest.approx(expected)


def test_the_same_plan_moves_nothing_and_nodes_take_the_places_they_have_most_of():
    staged = plan(gpus=16, tp=4, pp=2, global_batch=16)
    assert moved_bytes(staged, staged, 12, ONE, 4) == [0.0] * 16
    # one of two nodes of the last stage is gone: of three nodes two are enough for one replica, and nothing moves
    fewer = plan(gpus=8, tp=4, pp=2, global_batch=8)
    assert moved_bytes(staged, fewer, 12, ONE, 4, lost=1) == [0.0] * 8
    # one stage instead: each rank lacks the other six layers and one end, a quarter of them
    flat = plan(gpus=12, tp=4, pp=1, global_batch=12)
    assert moved_bytes(staged, flat, 12, ONE, 4, lost=1) == [(6 * 10 + 3) / 4] * 12


def test_layers_leave_a_slow_stage():
    deep = plan(gpus=8, tp=2, pp=4, global_batch=8)
    assert stages_for(deep, 32, 1, 2.0)[0].stages == (9, 5, 9, 9)  # 5 twice as slow are 10; with 6 it is 12
    assert stages_for(deep, 32, 3, 4.0)[0].stages == (10, 10, 10, 2)
    assert stages_for(plan(gpus=8, tp=2, global_batch=8), 32, 0, 2.0) == []


def test_plans_for_fewer_devices_keep_the_batch_and_use_what_is_there():
    wide = plan(gpus=64, tp=2, pp=2, global_batch=128)
    found = plans_for(wide, 56, 8)
    assert all(one.gpus <= 56 and one.batch >= 128 for one in found)
    assert {(2, 2, 14), (4, 1, 14), (1, 4, 14), (2, 7, 4), (4, 7, 2)} <= {(one.tp, one.pp, one.dp) for one in found}
    assert plans_for(wide, 64, 8)[0] is wide


@pytest.fixture(scope="module")
def of():
    wide = Plan.from_dict({"gpus": 32, "tp": 2, "pp": 2, "micro_batch": 1, "seq": 512, "global_batch": 32}, "plan")
    return predicted_costs(open_model("gpt2"), wide, open_system("dgx-h100"), energy=False)


def test_on_healthy_devices_replan_finds_the_fastest_and_that_is_the_plan_if_it_is(of):
    best = of.planned()[0]
    tp, pp = int(best.name.split()[1]), int(best.name.split()[3])
    own = Plan.from_dict({"gpus": 32, "tp": tp, "pp": pp, "micro_batch": 1, "seq": 512, "global_batch": 32}, "plan")
    again = predicted_costs(open_model("gpt2"), own, open_system("dgx-h100"), energy=False)
    found = again.planned()
    assert min(one.step_ns for one in found) == found[0].step_ns
    if found[0].name == best.name:
        assert found[0].step_ns == again.healthy.step_ns and again.at(REPLAN, 4) is again.healthy


def test_a_degraded_plan_says_what_it_moves(of):
    fewer = of.at(REPLAN, 3)
    assert fewer is not None and fewer.gpus <= 24 and fewer.step_ns > 0
    assert of.move_ns(fewer) == round(fewer.moved_bytes * 8 / of.node_bytes_per_s * 1e9)
    weights = weights_of(open_model("gpt2"), Plan.from_dict({"gpus": 32, "tp": 2, "pp": 2}, "plan"), 7.0)
    assert 12 * weights.layer + 2 * weights.ends == pytest.approx(of.state_bytes, rel=0.01)


def test_a_stage_with_a_slow_node_is_never_slower_than_before():
    deep = Plan.from_dict({"gpus": 32, "tp": 8, "pp": 4, "micro_batch": 1, "seq": 512, "global_batch": 16}, "plan")
    of = predicted_costs(open_model("llama3-8b"), deep, open_system("dgx-h100"), energy=False)
    for node in range(4):
        found = of.slowed(3.0, node)
        assert found is None or (found.step_ns < 3 * of.healthy.step_ns and found.absorbs == 3.0)
        assert found is None or np.isfinite(found.moved_bytes)
    assert of.slowed(1.0, 0) is None
