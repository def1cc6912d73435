"""Overlapping collectives of gloo, recorded again and again: how many recordings link, check cleanly and simulate.

    python benchmarks/async_order.py [--recordings 20] [--ranks 2] [--collectives 40] [--rounds 5]

A round is `hs = [dist.all_reduce(torch.ones(1000 + k), async_op=True) for k in range(40)]` and the waits for them: two
threads of gloo begin the works in whatever order they come. Sizes differ, so a wrong order is seen. Prints of each
recording how many works began out of turn, and what is wrong with it; then how many are clean.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from etude.capture.ingest.causal import to_job
from etude.capture.ingest.runs import find_run, link_run
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import Kind
from etude.surface.cli import main as etude_main

PROGRAM = """
import sys, torch, torch.distributed as dist
from etude.capture.collect import torch as collect
folder, (recordings, collectives, rounds) = sys.argv[1], map(int, sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
for number in range(recordings):
    dist.barrier()
    with collect.trace(f"{folder}/{number}"):
        for _ in range(rounds):
            hs = [dist.all_reduce(torch.ones(1000 + k), async_op=True) for k in range(collectives)]
            for h in hs:
                h.wait()
dist.destroy_process_group()
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="How many recordings of overlapping collectives are clean.")
    for name, default in (("recordings", 20), ("ranks", 2), ("collectives", 40), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), asked.ranks, asked.recordings, asked.collectives, asked.rounds)
        wanted = [4 * (1000 + k) for k in range(asked.collectives)] * asked.rounds
        clean = [is_clean(Path(folder) / str(number), wanted) for number in range(asked.recordings)]
    print(f"{sum(clean)} of {asked.recordings} recordings are clean")
    return 0 if all(clean) else 1


def record(folder: Path, ranks: int, *counts: int) -> None:
    """One process a rank, which makes all recordings."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", PROGRAM, str(folder), *map(str, counts)]
    world = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    started = [subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank)}) for rank in range(ranks)]
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit("the program failed")


def is_clean(folder: Path, wanted: list[int]) -> bool:
    """Whether a recording links, checks without a finding, has its collectives in the order of the program (bytes as
    `wanted`), and simulates."""
    name, ranks = find_run(folder)
    job = to_job(name, link_run(ranks))
    problems = [found.what for found in check(job)]
    problems += [f"rank {rank}: another order" for rank in job.ranks.tolist() if sizes(job, rank) != wanted]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = etude_main(["simulate", str(folder), "--system", "dgx-h100", "--json"])
    problems += ["not simulated"] if code else []
    print(f"recording {folder.name}: {out_of_turn(job)} works begun out of turn; {'; '.join(problems) or 'clean'}")
    return not problems


def sizes(job: Job, rank: int) -> list[int]:
    trace = job.trace(rank)
    return [int(size) for size in trace.in_bytes[trace.kind == Kind.COLL]]


def out_of_turn(job: Job) -> int:
    """Collectives of all ranks that began before one that was called earlier."""
    found = 0
    for number, start in enumerate(job.timing.start_ns if job.timing is not None else ()):
        began = start[job.trace(int(job.ranks[number])).kind == Kind.COLL]
        found += int((began[1:] < np.maximum.accumulate(began)[:-1]).sum())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
