"""Placements of ranks: the order of the numbers, five random ones and the best that is found, on links.

    python benchmarks/search_placement.py              five fabrics of 16 devices, greedy with 60 simulations each
    python benchmarks/search_placement.py --all 8      a ring of 8: every placement by itself against each method

With --all rank 0 sits on device 0 or 1 and the others everywhere, since an even ring that is turned by two is the same;
of two that mirror each other one is taken: 7! = 5,040 of 8! placements. Brute force knows
nothing of bounds.

Columns: ms of the job by number, of five random placements from the best to the worst, of the best found and where it
came from, and CPU seconds of the search. Wan 2.1 14B, two layers, one denoising pass, tp 4 x cp 4.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import permutations

import numpy as np

from etude.decide.search.placements.best import best_placement
from etude.decide.search.short_models import shortened
from etude.machine.open import open_device
from etude.machine.system import CollectiveSettings, Level, LevelKind, Protocol, System
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.run.simulate import simulate

FABRICS = {
    "ring 16": ("ring", (16,)),
    "torus 4x4": ("ring", (4, 4)),
    "mesh 4x4": ("mesh", (4, 4)),
    "mesh 8x2": ("mesh", (8, 2)),
    "switch 16": ("switch", (16,)),
}


def fabric(kind: str, sizes: tuple[int, ...]) -> System:
    levels = tuple(
        Level(
            name=f"l{i}", kind=LevelKind(kind), size=size, bandwidth_bytes_per_s=100e9, latency_ns=1000, efficiency=0.9
        )
        for i, size in enumerate(sizes)
    )
    settings = CollectiveSettings(protocols={"simple": Protocol(launch_ns=5000)}, message_ns=300, p2p_launch_ns=5000)
    return System(name=kind, device=open_device("tpu-v5e"), levels=levels, collectives=settings)


def on_a_ring(size: int) -> Iterator[tuple[int, ...]]:
    """One of the placements on a ring that are the same when it is turned by two or mirrored; `size` is even."""
    for first in (0, 1):
        for rest in permutations([device for device in range(size) if device != first]):
            if rest < tuple((2 * first - device) % size for device in rest):
                yield (first, *rest)


def exhaustive(size: int) -> None:
    """Pipeline stages of two tensor-parallel ranks on a ring: the best of all, and what each method finds."""
    system = fabric("ring", (size,))
    model = open_model("gpt2").replace(layers=4, seq=8, hidden=64, heads=4, ffn=256, vocab=128)
    made = generate(model, Plan(gpus=size, tp=2, pp=size // 2, seq=8, global_batch=1, train="forward"))
    begun = time.process_time()
    times = [
        simulate(made.job, system.replace(placement=seats), network="flow").makespan_ns for seats in on_a_ring(size)
    ]
    took = time.process_time() - begun
    print(f"brute force: {len(times):,} simulated, {min(times):,} to {max(times):,} ns, {took:.1f} CPU s")
    for method in ("all", "greedy", "anneal"):
        begun = time.process_time()
        found = best_placement(made, system, method=method, tries=300)
        best, took = found.best["time_ns"], time.process_time() - begun
        told = ", ".join(f"{count:,} {why}" for why, count in found.pruned.items())
        print(
            f"{method}: {best:,} ns, {best / min(times):.4f} of it; {found.tried:,} simulated, {told}; {took:.1f} CPU s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--network", default="flow", choices=["flow", "links"])
    parser.add_argument("--method", default="greedy", choices=["greedy", "anneal"])
    parser.add_argument("--all", type=int, choices=[4, 6, 8], help="brute force on a ring of so many instead")
    asked = parser.parse_args()
    if asked.all:
        exhaustive(asked.all)
        return
    plan = Plan(gpus=16, tp=4, cp=4, seq=75600, global_batch=1, train="forward")
    made = generate(shortened(open_model("wan2.1-14b"), 2), plan)
    print(
        "fabric      by number   random (5)       best  over number  over random  from                   tried  CPU s"
    )
    for name, (kind, sizes) in FABRICS.items():
        system, rng = fabric(kind, sizes), np.random.default_rng(0)
        seats = [tuple(rng.permutation(16).tolist()) for _ in range(5)]
        drawn = sorted(
            simulate(made.job, system.replace(placement=s), network=asked.network).makespan_ns / 1e6 for s in seats
        )
        begun = time.process_time()
        found = best_placement(made, system, network=asked.network, tries=asked.tries, method=asked.method)
        took, best = time.process_time() - begun, found.best["time_ns"] / 1e6
        print(
            f"{name:10} {found.more['default']['time_ns'] / 1e6:10.1f} {drawn[0]:7.1f}-{drawn[-1]:<7.1f} {best:8.1f}"
            f" {found.more['gain']:12.2f} {drawn[0] / best:6.2f}-{drawn[-1] / best:<5.2f} {found.best['from']:21}"
            f" {found.tried:5d} {took:6.1f}"
        )


if __name__ == "__main__":
    main()
