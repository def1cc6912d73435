"""Bounds of plans against what is simulated: a bound must never be above it.

    python benchmarks/search_bounds.py                    40 plans of each case
    python benchmarks/search_bounds.py --plans 8 --case gpt2/dgx-h100/flow

Plans are drawn from all axes that a search knows, by a seed; what is not a plan, or takes more micro-batches than are
simulated in a moment, is drawn again. Printed for each case: how many plans, the least, median and largest ratio of
bound to simulated step, how many bounds are above the step, and CPU seconds; at the end the same of all cases. The exit
code is 1 if a bound is above its step.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from etude.base.errors import EtudeError
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import least_step_time_ns, predict

CASES: tuple[tuple[str, str, str, int], ...] = (
    ("gpt2", "dgx-h100", "analytic", 16),
    ("gpt2", "dgx-h100", "flow", 8),
    ("gpt2", "tpu-v6e-pod", "flow", 16),
    ("gpt2", "tpu-v6e-pod", "links", 8),
    ("llama3-8b", "dgx-h100", "analytic", 32),
    ("llama3-8b", "dgx-a100", "links", 8),
    ("llama3-70b", "dgx-h100", "analytic", 64),
    ("mixtral-8x7b", "dgx-h100", "analytic", 32),
    ("mixtral-8x7b", "tpu-v6e-pod", "analytic", 16),
    ("t5-base", "dgx-a100", "analytic", 8),
)
"""Model, system, network, GPUs. Chosen before any of it was run."""
AXES: dict[str, list[Any]] = {
    "tp": [1, 1, 2, 4, 8], "pp": [1, 1, 2, 4], "cp": [1, 1, 1, 2], "zero": [0, 1, 2, 3], "micro_batch": [1, 2],
    "schedule": ["1f1b", "gpipe", "interleaved:2", "zb1p", "zbv", "dualpipe"], "tp_chunks": [1, 1, 4],
    "recompute": ["none", "selective:norm,activation", "full"], "prefetch": [1, 2], "reshard": [True, False],
    "order": ["tp-cp-dp-pp", "tp-cp-pp-dp"], "dp_shard": [0, 0, 8], "clip": [True, False],
    "overlap_grads": [True, True, False], "overlap_params": [True, True, False],
}  # fmt: skip
OF_EXPERTS: dict[str, list[Any]] = {"ep": [1, 2, 4, 8], "etp": [1, 1, 2]}
DRAWS = 200
"""For each plan that is asked for, at most."""


def drawn(model: str, gpus: int, count: int, seed: int) -> Iterator[Plan]:
    """Plans, each of them once."""
    draw, opened = random.Random(f"{model} {gpus} {seed}"), open_model(model)
    axes = {**AXES, **(OF_EXPERTS if opened.experts else {})}
    seen: set[Plan] = set()
    for _ in range(DRAWS * count):
        if len(seen) == count:
            return
        given = {name: draw.choice(values) for name, values in axes.items()}
        try:
            plan = Plan.from_dict({"gpus": gpus, "global_batch": 2 * gpus, "seq": draw.choice([256, 1024]), **given})
        except EtudeError:
            continue
        if plan not in seen and plan.micro_batches <= 16:
            seen.add(plan)
            yield plan


def ratios(model: str, system: str, network: str, gpus: int, *, count: int, seed: int = 0) -> list[float]:
    """Bound over simulated step of each plan; those that the model does not take are left out."""
    opened, machine, stack = open_model(model), open_system(system), open_stack("default")
    options = {} if network == "analytic" else {"network": network}
    found: list[float] = []
    for plan in drawn(model, gpus, 4 * count, seed):
        if len(found) == count:
            break
        try:
            least = least_step_time_ns(opened, plan, machine, stack=stack, network=network)
            step = predict(opened, plan, machine, stack=stack, check=False, **options).step_time_ns
        except EtudeError:
            continue
        found.append(least / step)
    return found


def line(name: str, found: list[float], cpu_s: float) -> str:
    above = sum(r > 1 for r in found)
    return (f"{name:42} {len(found):5} {min(found):7.3f} {statistics.median(found):7.3f} {max(found):7.4f} {above:6}"
            f" {cpu_s:7.1f}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--case", action="append", help="MODEL/SYSTEM/NETWORK")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(f"{'case':42} plans   least  median largest  above   CPU s")
    every: list[float] = []
    for model, system, network, gpus in CASES:
        name = f"{model}/{system}/{network}"
        if asked.case and name not in asked.case:
            continue
        begun = time.process_time()
        found = ratios(model, system, network, gpus, count=asked.plans, seed=asked.seed)
        every += found
        print(line(f"{name}, {gpus} GPUs", found, time.process_time() - begun), flush=True)
    print(line("all", every, time.process_time()))
    return int(any(r > 1 for r in every))


if __name__ == "__main__":
    sys.exit(main())
