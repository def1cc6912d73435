"""Two source trees against each other: the same commands, in turns, CPU time of the process and its children.

    python benchmarks/compare_trees.py OLD NEW [--runs 5] [--only simulate]

OLD and NEW hold src/etude. A first run of each command in each tree compiles kernels and is not counted. The table has
the median CPU seconds of both, their ratio (below 1: NEW is faster), and whether both printed the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SHARED = Path(os.environ.get("ETUDE_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
TORCH = SHARED / "traces" / "h200"

PREPARE = {
    "gpt": "generate gpt3-175b --gpus 256 --tp 8 --pp 8 --global-batch 32 --to et -o gpt",
    "small": "generate llama3-8b --gpus 32 --tp 4 --pp 2 --global-batch 64 -o small",
}
COMMANDS = {
    "read .et, 256 ranks (info)": "info gpt --json",
    "read and write .et (convert)": "convert gpt OUT --to et",
    "to Parquet (convert)": "convert gpt OUT --to parquet",
    "check, 256 ranks": "check gpt",
    "link, 311 MB of JSON": f"link {TORCH / 'big_et.json.gz'} {TORCH / 'big_kineto.json.gz'} -o OUT.et",
    "link --as-official": f"link {TORCH / 'big_et.json.gz'} {TORCH / 'big_kineto.json.gz'} -o OUT.et --as-official",
    "simulate, every rank, analytic": "simulate gpt --system dgx-h100 --no-fold --json",
    "simulate, links": "simulate small --system dgx-h100 --network links --json",
    "simulate, flow": "simulate small --system dgx-h100 --network flow --json",
    "generate 16,384 ranks": "generate llama3-405b --gpus 16384 --tp 8 --pp 16 --global-batch 2048 -o OUT",
    "predict 16,384 ranks": "predict llama3-405b --gpus 16384 --tp 8 --pp 16 --global-batch 2048 --system dgx-h100 "
    "--no-memory-check --json",
    "breakdown of a profiler's trace": f"breakdown {TORCH / 'big_kineto.json.gz'} --json",
    "critical path of it": f"critical-path {TORCH / 'big_kineto.json.gz'} --json",
    "report of it": f"report {TORCH / 'big_kineto.json.gz'} -o OUT.html",
    "timeline of it": f"timeline {TORCH / 'big_kineto.json.gz'} -o OUT.pftrace",
}


@dataclass
class Timed:
    cpu_s: float
    printed: str


def run(tree: Path, command: str, folder: Path, out: str) -> Timed:
    words = [word.replace("OUT", out) for word in command.split()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "etude", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{tree}: etude {' '.join(words)}: exit {done.returncode}\n{done.stderr.decode()}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Timed(cpu, hashlib.sha256(done.stdout).hexdigest())


def compare(trees: tuple[Path, Path], name: str, command: str, runs: int, folder: Path) -> None:
    number = 0
    times: dict[Path, list[float]] = {tree: [] for tree in trees}
    printed: dict[Path, str] = {}
    for turn in range(runs + 1):
        for tree in trees if turn % 2 else trees[::-1]:
            number += 1
            found = run(tree, command, folder, f"out{number}")
            subprocess.run(f"rm -rf out{number}*", shell=True, cwd=folder, check=False)
            printed[tree] = found.printed
            if turn:
                times[tree].append(found.cpu_s)
    old, new = (statistics.median(times[tree]) for tree in trees)
    same = "same" if printed[trees[0]] == printed[trees[1]] else "differs"
    print(f"{name:36} {old:8.2f} {new:8.2f} {new / old:6.2f}   {same}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="commands whose name has this in it")
    given = parser.parse_args()
    trees = (given.old.resolve(), given.new.resolve())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for command in PREPARE.values():
            run(trees[0], command, folder, "")
        print(f"{'command':36} {'old s':>8} {'new s':>8} {'ratio':>6}   printed")
        for name, command in COMMANDS.items():
            if given.only in name:
                compare(trees, name, command, given.runs, folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
