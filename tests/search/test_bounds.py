"""Bounds of drawn plans are below what is simulated; `benchmarks/search_bounds.py` does the same with hundreds."""

import random
from typing import Any

import pytest

from etude.base.errors import EtudeError
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import least_step_time_ns, predict

AXES: dict[str, list[Any]] = {
    "tp": [1, 2, 4], "pp": [1, 2, 4], "zero": [0, 1, 2, 3], "micro_batch": [1, 2], "tp_chunks": [1, 4],
    "schedule": ["1f1b", "interleaved:2", "zb1p", "zbv"], "recompute": ["none", "full"], "reshard": [True, False],
    "overlap_grads": [True, False], "clip": [True, False],
}  # fmt: skip
CASES = [
    ("gpt2", "dgx-a100", "analytic"), ("gpt2", "tpu-v6e-pod", "flow"), ("gpt2", "dgx-h100", "links"),
    ("mixtral-8x7b", "dgx-h100", "analytic"),
]  # fmt: skip
COUNT = 6


@pytest.mark.parametrize(("name", "system", "network"), CASES)
def test_no_bound_of_a_drawn_plan_is_above_its_step(name: str, system: str, network: str) -> None:
    model, machine, stack = open_model(name), open_system(system), open_stack("default")
    options = {} if network == "analytic" else {"network": network}
    draw, found = random.Random(f"{name} {system} {network}"), list[float]()
    while len(found) < COUNT:
        given = {axis: draw.choice(values) for axis, values in AXES.items()}
        try:
            plan = Plan.from_dict({"gpus": 8, "global_batch": 16, "seq": 128, **given})
            step = predict(model, plan, machine, stack=stack, check=False, **options).step_time_ns
        except EtudeError:
            continue
        found.append(least_step_time_ns(model, plan, machine, stack=stack, network=network) / step)
    assert all(0 < ratio <= 1 for ratio in found), found
