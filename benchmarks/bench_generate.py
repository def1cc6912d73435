"""How long generation takes: folded, expanded to `.et`, and generated and simulated.

    python benchmarks/bench_generate.py [--out FOLDER] [--keep]

GPT-3 175B on 1,024 ranks (tp 8, pp 8, dp 16, 8 micro-batches), for which the STG generator took 468 CPU s and wrote
1.21 GB; Llama-3 405B on 16,384 GPUs (tp 8, pp 16, dp 128), generated and simulated. Start-up and compilation are left
out: a small job is generated, written and simulated before. CPU seconds of this process, and its peak memory; of what
takes less than a second the least of ten times, since other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from etude.machine import open_system
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate
from etude.run.simulate.run import simulate
from etude.steps.step import grown
from etude.store import chakra

GPT3 = Plan(gpus=1024, tp=8, pp=8, global_batch=128)
LLAMA = Plan(gpus=16384, tp=8, pp=16, global_batch=2048, zero=1, schedule="interleaved:2")
STG_CPU_S = 467.7


def timed(what: str, work):  # type: ignore[no-untyped-def]
    best: list[tuple[float, float]] = []
    while not best or (best[0][0] < 1.0 and len(best) < 10):
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        best.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = min(best)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{what:62s} {cpu:7.2f} CPU s {wall:7.2f} s   peak {peak:6.0f} MB", flush=True)
    return result, cpu


def warm(folder: Path) -> None:
    small = generate(open_model("gpt2"), Plan(gpus=4, tp=2, pp=2, global_batch=2))
    (folder / "warm").mkdir()
    chakra.write_job(small.job, folder / "warm")
    simulate(small.job, open_system("dgx-h100"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.out))
    try:
        warm(folder)
        made: Generated
        made, cpu = timed("GPT-3 175B, 1,024 ranks, folded", lambda: generate(open_model("gpt3-175b"), GPT3))
        times = STG_CPU_S / cpu
        print(
            f"  {made.job.nodes:,} nodes, {len(made.job.traces)} distinct traces; STG took {times:,.0f} times as long"
        )
        (folder / "gpt3").mkdir()
        _, wrote = timed("  expanded: 1,024 .et files", lambda: chakra.write_job(made.job, folder / "gpt3"))
        size = sum(f.stat().st_size for f in (folder / "gpt3").iterdir())
        print(f"  {size / 1e9:.2f} GB; STG took {STG_CPU_S / (cpu + wrote):,.0f} times as long")
        made, one = timed("Llama-3 405B, 16,384 GPUs, generated", lambda: generate(open_model("llama3-405b"), LLAMA))
        there = grown(open_system("dgx-h100"), 16384)
        done, two = timed("  and simulated", lambda: simulate(made.job, there))
        print(
            f"  {made.job.nodes:,} nodes; {one + two:.2f} CPU s together; a step takes {done.makespan_ns / 1e9:.2f} s"
        )
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
