"""The engine of two source trees against each other: the same jobs, in turns, CPU seconds and every node's times.

    python benchmarks/compare_engines.py OLD NEW [--runs 5]

OLD and NEW hold src/etude. Each turn is a process of its own for each tree, which generates the jobs, runs each once to
compile kernels, and times three more: every rank of 64 with closed forms, and of 16 on `links` and `flow`. The table
has the median of the CPU seconds of both trees and the best, with their ratios (below 1: NEW is faster; the best
says more where cores change their clock), and whether start and end of every node of every rank are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CASES = {
    "analytic, 64 ranks": ("--gpus 64 --tp 4 --pp 4 --global-batch 64", {"network": "analytic", "fold": False}),
    "links, 16 ranks": ("--gpus 16 --tp 4 --pp 2 --global-batch 16", {"network": "links"}),
    "flow, 16 ranks": ("--gpus 16 --tp 4 --pp 2 --global-batch 16", {"network": "flow"}),
}


def measure() -> None:
    """In a process of one tree: {case: [CPU seconds of each run, digest of all times]} as JSON."""
    import hashlib
    import tempfile
    import time

    import etude
    from etude.machine import open_system
    from etude.run.simulate.run import simulate
    from etude.surface.cli import main

    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, (plan, options) in CASES.items():
            folder = f"{place}/{len(found)}"
            sys.stdout, kept = open(os.devnull, "w"), sys.stdout  # noqa: SIM115
            assert main(["generate", "llama3-8b", *plan.split(), "-o", folder]) == 0
            sys.stdout = kept
            job, on = etude.open(folder), open_system("dgx-h100")
            simulate(job, on, **options)
            taken = []
            for _ in range(3):
                start = time.process_time()
                run = simulate(job, on, **options)
                taken.append(time.process_time() - start)
            digest = hashlib.sha256()
            for i in range(len(job.ranks)):
                for times in run.timing.block(i):
                    digest.update(times.tobytes())
            found[name] = [taken, digest.hexdigest()]
    print(json.dumps(found))


def turn(tree: Path) -> dict[str, tuple[list[float], str]]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr}")
    return json.loads(done.stdout)


def compare(trees: tuple[Path, Path], runs: int) -> None:
    found: dict[Path, list[dict[str, tuple[list[float], str]]]] = {tree: [] for tree in trees}
    for number in range(runs):
        for tree in trees if number % 2 else trees[::-1]:
            found[tree].append(turn(tree))
    heads = f"{'median s':>8} {'new':>8} {'ratio':>6} {'best s':>8} {'new':>8} {'ratio':>6}"
    print(f"{'case':24} {heads}   times of all nodes")
    for case in CASES:
        taken = [[second for one in found[tree] for second in one[case][0]] for tree in trees]
        same = len({one[case][1] for tree in trees for one in found[tree]}) == 1
        row = f"{case:24}"
        for figure in (statistics.median, min):
            old, new = map(figure, taken)
            row += f" {old:8.3f} {new:8.3f} {new / old:6.2f}"
        print(f"{row}   {'same' if same else 'differ'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure()
    elif len(given.trees) == 2:
        compare((given.trees[0].resolve(), given.trees[1].resolve()), given.runs)
    else:
        parser.error("two trees")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
