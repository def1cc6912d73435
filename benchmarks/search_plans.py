"""The default search of plans against brute force over other and more axes, and one worker against two.

    python benchmarks/search_plans.py [--case llama3-8b] [-j 2] [--parallel]

Brute force simulates every plan of its space that fits, without bounds. Its space has values that the search does not
have (more pieces of tensor-parallel layers, uneven stages, gpipe) and not all that it has. Printed
for each case: the best of both, their ratio (above 1: the search is faster), CPU seconds of the search, and what was
tried and pruned.
"""

import argparse
import multiprocessing
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from etude.decide.search.crew import crew
from etude.decide.search.plans import search_plans, space_of
from etude.decide.search.plans.candidates import candidates
from etude.decide.search.plans.tasks import REFUSED, shared_of, task
from etude.decide.search.request import SearchRequest

CASES: dict[str, tuple[int, dict[str, list[Any]]]] = {
    "llama3-8b": (16, {
        "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "zero": [0, 1, 2, 3], "micro_batch": [1, 2], "tp_chunks": [1, 2, 4],
        "schedule": ["1f1b", "gpipe", "zbv"], "recompute": ["none", "full"],
    }),
    "mixtral-8x7b": (32, {
        "tp": [1, 2, 4], "pp": [1, 2, 4, 8], "ep": [4, 8], "zero": [1, 2, 3], "tp_chunks": [1, 2, 4],
        "schedule": ["1f1b", "zbv"], "stages": ["even", "last-1"],
    }),
    "llama3-70b": (64, {
        "tp": [2, 4, 8], "pp": [1, 2, 4], "zero": [1, 2, 3], "micro_batch": [1, 2], "tp_chunks": [1, 2, 4],
        "schedule": ["1f1b", "zbv"], "recompute": ["none", "selective:norm,activation", "full"],
    }),
}  # fmt: skip
"""Model -> GPUs, axes of brute force. Chosen before any of it was run."""


def brute_force(model: str, gpus: int, axes: dict[str, list[Any]], workers: int) -> tuple[int, int, int]:
    """(ns of the best, plans simulated, combinations)."""
    space = space_of(model=model, system="dgx-h100", fixed={"gpus": gpus}, over=axes)
    every = candidates(space.opened, space.axes, space.fixed, space.system)
    plans, limit = list(every.found.values()), space.memory_limit(space.system)
    with crew(task, shared_of(space), SearchRequest(workers=workers)) as workers_of:

        def points(what: str, some: list[Any]) -> list[dict[str, Any]]:
            return workers_of.ask([{"what": what, "system": c.system, "plan": c.text()} for c in some])

        memory = zip(plans, points("memory", plans), strict=True)
        fitting = [c for c, found in memory if REFUSED not in found and found["bytes"] <= limit]
        steps = [row["step_time_ns"] for row in points("score", fitting) if REFUSED not in row]
    return min(steps), len(steps), every.space


def cpu_s(*whose: int) -> float:
    used = [resource.getrusage(who) for who in whose or (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def searched(model: str, gpus: int, workers: int) -> tuple[Any, float, float]:
    """(what was found, CPU s, wall s)."""
    before, begin = cpu_s(), time.perf_counter()
    space = space_of(model=model, system="dgx-h100", fixed={"gpus": gpus}, over={})
    found = search_plans(space, SearchRequest(workers=workers))
    return found, cpu_s() - before, time.perf_counter() - begin


def alone(model: str, gpus: int, workers: int) -> dict[str, Any]:
    """The search in a Python of its own, so that none finds what another has made: record, wall, and CPU seconds of the
    process that asks (`own`) and of its workers (`theirs`), without starting Python."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_alone, model, gpus, workers).result()


def _alone(model: str, gpus: int, workers: int) -> dict[str, Any]:
    before = cpu_s(resource.RUSAGE_SELF)
    found, _, wall = searched(model, gpus, workers)
    own, theirs = cpu_s(resource.RUSAGE_SELF) - before, cpu_s(resource.RUSAGE_CHILDREN)
    return {"record": found.record(), "wall": wall, "own": own, "theirs": theirs}


def parallel(model: str, gpus: int, workers: int) -> None:
    one, many = alone(model, gpus, 1), alone(model, gpus, workers)
    same = "the same answer" if one["record"] == many["record"] else "ANOTHER ANSWER"
    print(f"{model} on {gpus} H100: -j 1 {one['wall']:.1f} s, -j {workers} {many['wall']:.1f} s, {same}", flush=True)
    # The wall of a loaded machine says little, and CPU seconds of two runs differ with the load: the last figure is of
    # the second run alone.
    own, theirs = many["own"], many["theirs"]
    least = own + theirs / workers
    print(f"  CPU s: -j 1 {one['own']:.1f}; -j {workers} {own:.1f} and {theirs:.1f} of its workers, at least "
          f"{least:.1f} s of a wall: {least / (own + theirs):.2f} of their sum", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parallel", action="store_true", help="one worker against -j, by the wall and by CPU seconds")
    given = parser.parse_args()
    for model in given.case or CASES:
        gpus, axes = CASES[model]
        if given.parallel:
            parallel(model, gpus, given.j)
            continue
        found, cpu, wall = searched(model, gpus, 1)
        best = found.best
        print(
            f"{model} on {gpus} H100: search {best['step_time_ns'] / 1e6:.3f} ms, {cpu:.1f} CPU s, {wall:.1f} s",
            flush=True,
        )
        print(f"  {best['flags']}", flush=True)
        told = ", ".join(f"{count:,} {why}" for why, count in found.pruned.items())
        print(f"  {found.space:,} combinations: {found.tried} tried, {told}", flush=True)
        before = cpu_s()
        least, tried, size = brute_force(model, gpus, axes, given.j)
        ratio = least / best["step_time_ns"]
        print(f"  brute force {least / 1e6:.3f} ms: {tried:,} of {size:,} combinations fit, "
              f"{cpu_s() - before:.0f} CPU s; ratio {ratio:.4f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
