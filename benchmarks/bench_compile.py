"""How long the first use after an install compiles, command by command, and what people are told of it.

    python benchmarks/bench_compile.py [--only simulate]

Each command runs in a process of its own with an empty cache. `told` is the sum of the estimates of the kernels that it
compiled, `spent` the CPU seconds that compiling them took. Their ratio is what `SECONDS_PER_BYTE` of
`etude.kernels.first_use` was chosen by.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

SAMPLE = "generate llama3-8b --gpus 8 --tp 2 --pp 2 --to et -o {out}/job --force"
COMMANDS = {
    "info": "info {out}/job",
    "convert": "convert {out}/job {out}/again --to et --force",
    "simulate": "simulate {out}/job --system dgx-h100 --json",
    "simulate --network flow": "simulate {out}/job --system dgx-h100 --network flow --json",
    "critical-path": "critical-path {out}/job --system dgx-h100 --json",
    "report": "report {out}/job --system dgx-h100 -o {out}/report.html --force",
}
INSIDE = """
import sys, time
from etude.cli import main
from etude.cli import running
from etude.kernels import first_use

told, spent = [], [0.0]
waited_for = first_use._waited_for

def measured(work):
    before = len(told), time.process_time()
    found = waited_for(work)
    if len(told) > before[0]:
        spent[0] += time.process_time() - before[1]
    return found

first_use._waited_for = measured
running.FirstUse.__call__ = lambda self, name, seconds: told.append(seconds)
code = main(sys.argv[1:])
print(f"{len(told)} {sum(told):.1f} {spent[0]:.1f}", file=sys.stderr)
sys.exit(code)
"""


def run(command: str, folder: str, cache: str) -> str:
    words = command.format(out=folder).split()
    done = subprocess.run(
        [sys.executable, "-c", INSIDE, *words],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stderr.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="commands whose name has this in it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(SAMPLE, folder, f"{folder}/cache")
        print(f"{'command':28} {'kernels':>8} {'told s':>8} {'spent s':>8}")
        for number, (name, command) in enumerate(COMMANDS.items()):
            if given.only in name:
                kernels, told, spent = run(command, folder, f"{folder}/cache{number}").split()
                print(f"{name:28} {kernels:>8} {told:>8} {spent:>8}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
