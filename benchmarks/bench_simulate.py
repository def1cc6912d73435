"""The simulator on jobs of production size, in CPU seconds and peak memory.

    python benchmarks/bench_simulate.py [--quick]

`simulate` alone is timed; the memory is that of the whole process, the job included. Each case is a process of its own
and runs once before on a small job, so that compiled kernels come from their cache. 4 million nodes over 1,024 ranks
(8 pipeline stages, tensor parallel by 8, data parallel by 16) and 164 million over 16,384, on the catalogue's DGX H100;
then 131,072 ranks with jitter, each on its own; a step of Llama 3 70B on 131,072 ranks with three slow ones, of two
jobs on as many, and on 1,048,576.
The last line says whether a folded and an unfolded run agree on every node.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import big_jobs

from etude import generate
from etude.machine import open_system
from etude.machine.system import System
from etude.model.job import Job

CASES: dict[str, tuple[bool, int, int, dict[str, Any]]] = {
    "1,024 ranks, 4 M nodes, unfolded": (False, 1_024, 4_000, {"fold": False}),
    "1,024 ranks, 4 M nodes, unfolded, overlap 1.1": (
        False,
        1_024,
        4_000,
        {"fold": False, "overlap": {"compute": 1.1, "communication": 1.1}},
    ),
    "1,024 ranks, 4 M nodes, unfolded, jitter": (False, 1_024, 4_000, {"jitter": {"compute": 0.05}}),
    "1,024 ranks, 4 M nodes, a trace each, folded on the way": (False, 1_024, 4_000, {}),
    "1,024 ranks, 4 M nodes, folded": (True, 1_024, 4_000, {}),
    "16,384 ranks, 164 M nodes, folded": (True, 16_384, 10_000, {}),
    "131,072 ranks, 12.6 M nodes, jitter": (True, 131_072, 96, {"jitter": {"compute": 0.05}}),
    "131,072 ranks of Llama 3 70B, 3 slow, folded": (True, 131_072, 0, {"slow_ranks": {3: 1.2, 17: 1.1, 42: 1.3}}),
    "131,072 ranks of two jobs of Llama 3 70B, folded": (True, 131_072, 0, {}),
    "1,048,576 ranks of Llama 3 70B, folded": (True, 1_048_576, 0, {}),
}
TWO_JOBS = "two jobs"


def machine(ranks: int) -> System:
    return open_system("dgx-h100").resized(max(ranks, 16))


def made(folded: bool, ranks: int, nodes: int) -> Job:
    """A job with so many nodes a rank; 0: Llama 3 70B, tensor and pipeline parallel by 8."""
    if not nodes:
        return generate("llama3-70b", gpus=ranks, tp=8, pp=8).job
    return big_jobs.folded_job(ranks, 8, nodes) if folded else big_jobs.unfolded_job(ranks, nodes, 8)


def one(name: str, small: int) -> None:
    from etude.run.simulate.options import Overlap
    from etude.run.simulate.run import simulate

    folded, ranks, nodes, options = CASES[name]
    ranks //= small
    if "overlap" in options:
        options["overlap"] = Overlap(**options["overlap"])
    simulate(big_jobs.folded_job(64, 2, 100), machine(64), **options)
    job = made(folded, ranks // 2 if TWO_JOBS in name else ranks, nodes)
    begin = time.process_time()
    found = both(job, machine(ranks)) if TWO_JOBS in name else simulate(job, machine(ranks), **options)
    took = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    print(f"{name:<58}{took:>8.2f}{peak:>10.0f}{found.simulated_ranks:>8,}{found.makespan_ns / 1e6:>12.3f}")


def both(job: Job, system: System) -> Any:
    """The job twice on one system, the second a ms later, together and each alone."""
    from etude.run.simulate.together import simulate_jobs

    return simulate_jobs([job, job], system, at_ns=[0, 1_000_000]).run


def agree(ranks: int = 128, nodes: int = 2_000) -> bool:
    from etude.run.simulate.run import simulate

    job = big_jobs.folded_job(ranks, 8, nodes)
    a, b = simulate(job, machine(ranks), fold=True), simulate(job, machine(ranks), fold=False)
    return all((x == y).all() for i in range(ranks) for x, y in zip(a.timing.block(i), b.timing.block(i), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the ranks")
    parser.add_argument("--astra", action="store_true", help="also the ASTRA-sim mode on the reference LLM traces")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    small = 8 if given.quick else 1
    if given.case:
        one(given.case, small)
        return 0
    print(f"{'':<58}{'CPU s':>8}{'peak MB':>10}{'ranks':>8}{'makespan ms':>12}")
    for name in CASES:
        sys.stdout.flush()
        quick = ["--quick"] if given.quick else []
        subprocess.run([sys.executable, str(Path(__file__)), "--case", name, *quick], check=True)
    print(f"folded and unfolded agree on every node: {'yes' if agree() else 'NO'}")
    if given.astra:
        print("\nASTRA-sim mode, beside ASTRA-sim itself (bench_astra.py):", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).with_name("bench_astra.py"))], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
