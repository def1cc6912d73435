"""What a first use and a small command take: CPU and wall seconds, with an empty cache of kernels and with a full one.

    python benchmarks/bench_first_use.py [--against ../before/src] [--only info] [--no-demo] [--pieces numba,run,inner]

`cold` is a process with an empty cache, `warm` the least CPU time of `--times` processes after it. With `--against`
each command runs with the sources of another tree, too, in turn with this one, and `ratio` is its CPU time by ours: on
a machine with other work CPU seconds grow with the load, and their ratio does not. `kernels` are those that the
process compiled. `--pieces` runs each command also with some of what `etude.kernels` changes of Numba (ETUDE_KERNELS:
`numba` is none of it), and the ratio is that of the whole. Bytecode of all trees is compiled beforehand, as that of an
installed package is.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "src"
PREPARED = (
    "generate llama3-8b --gpus 2 --tp 2 --to et -o {out}/small --force",
    "convert {out}/small {out}/astra --to astra --system dgx-h100 --force",
    "link {sample} -o {out}/job --force",
)
COMMANDS = {
    "info": "info {out}/small",
    "check": "check {out}/small",
    "breakdown": "breakdown {out}/job",
    "link": "link {sample} -o {out}/job --force",
    "serve": "serve gpt2 --system dgx-h100 --rate 4 --count 50",
    "simulate": "simulate {out}/small --system dgx-h100 --json",
    "astra": "simulate astra {out}/astra/llama3-8b --network {out}/astra/network.yml --system {out}/astra/system.json "
    "--remote-memory {out}/astra/memory.json --groups {out}/astra/llama3-8b.json",
    "demo": "demo -o {out}/demo",
}


class Tree:
    """Sources, and a cache of kernels of their own."""

    def __init__(self, sources: Path, folder: Path, pieces: str = "") -> None:
        self.sources, self.folder, self.pieces = sources, folder, pieces
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        compileall.compile_dir(sources, quiet=2)

    def run(self, command: str) -> tuple[float, float, int]:
        """(CPU s, wall s, kernels compiled) of one command in a process of its own."""
        words = command.format(out=self.out, sample=self.sources / "etude" / "capture" / "sample").split()
        environment = os.environ | {
            "PYTHONPATH": str(self.sources),
            "NUMBA_CACHE_DIR": str(self.folder / "cache"),
            "ETUDE_KERNELS": self.pieces,
        }
        known = self.kernels()
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "etude", *words], env=environment, capture_output=True, text=True, check=False
        )
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return cpu, wall, self.kernels() - known

    def kernels(self) -> int:
        """In the cache: those that only kernels call, kept by Numba, and those that Python calls."""
        return sum(1 for path in (self.folder / "cache").rglob("*") if path.suffix in (".nbc", ".etk"))

    def forget(self) -> None:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)


def measured(trees: list[Tree], command: str, times: int) -> list[list[tuple[float, float, int]]]:
    """For each tree its cold run and its warm one."""
    for tree in trees:
        tree.forget()
    cold = [tree.run(command) for tree in trees]
    warm = [[tree.run(command) for tree in trees] for _ in range(times)]
    return [[cold[i], min(row[i] for row in warm)] for i in range(len(trees))] if times else [[one] for one in cold]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the `src` of another tree")
    parser.add_argument("--only", default="", help="commands, separated by commas")
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo, which takes longest")
    parser.add_argument("--pieces", default="", help="settings of ETUDE_KERNELS to compare with, separated by commas")
    parser.add_argument("--times", type=int, default=3, help="warm runs of each command")
    given = parser.parse_args()
    chosen = (
        given.only.split(",") if given.only else [name for name in COMMANDS if not (given.no_demo and name == "demo")]
    )
    with tempfile.TemporaryDirectory() as folder:
        sources = [HERE] + ([given.against.resolve()] if given.against else [])
        trees = [Tree(source, Path(folder) / str(number)) for number, source in enumerate(sources)]
        trees += [Tree(HERE, Path(folder) / pieces, pieces) for pieces in given.pieces.split(",") if pieces]
        for tree in trees:
            for command in PREPARED:
                tree.run(command)
        others = "".join(f" {tree.pieces or 'before':>8} {'ratio':>6}" for tree in trees[1:])
        print(f"{'command':12} {'':5} {'kernels':>8} {'CPU s':>8} {'wall s':>8}{others}")
        for name in chosen:
            found = measured(trees, COMMANDS[name], 0 if name == "demo" else given.times)
            for at, kind in enumerate(("cold", "warm")[: len(found[0])]):
                cpu, wall, kernels = found[0][at]
                compared = "".join(f" {one[at][0]:>8.2f} {one[at][0] / cpu:>6.2f}" for one in found[1:])
                print(f"{name:12} {kind:5} {kernels:>8} {cpu:>8.2f} {wall:>8.2f}{compared}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
