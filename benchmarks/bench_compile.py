"""How long the first use after an install compiles, command by command, and what people are told of it.

    python benchmarks/bench_compile.py [--only simulate]

Each command runs in a process of its own with an empty cache. `told` is the sum of the estimates of the kernels that it
compiled, `spent` the CPU seconds that compiling them took, `largest` the kernel that took longest, with both. An
estimate counts all that a kernel may call, of which one use compiles a part: `SECONDS_PER_BYTE` of
`etude.kernels.first_use` is chosen so that kernels without such parts are told about right.
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
from etude.surface.cli import main
from etude.kernels import digest, dispatch, first_use

rows = []
compile_kernel = dispatch.Outer._compile_at_once

def measured(self, signature):
    start = time.process_time()
    found = compile_kernel(self, signature)
    told = digest.code_bytes(self.py_func) * first_use.SECONDS_PER_BYTE
    rows.append((time.process_time() - start, told, self.py_func.__name__))
    return found

dispatch.Outer._compile_at_once = measured
code = main(sys.argv[1:])
spent, told, name = max(rows)
whole = f"{sum(row[1] for row in rows):.1f} {sum(row[0] for row in rows):.1f}"
print(f"{len(rows)} {whole} {name} {told:.1f} {spent:.1f}", file=sys.stderr)
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
        print(f"{'command':28} {'kernels':>8} {'told s':>8} {'spent s':>8}  largest")
        for number, (name, command) in enumerate(COMMANDS.items()):
            if given.only in name:
                kernels, told, spent, *largest = run(command, folder, f"{folder}/cache{number}").split()
                print(f"{name:28} {kernels:>8} {told:>8} {spent:>8}  {' '.join(largest)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
