"""What a dry run of a large program costs, and what it predicts: `etude predict --program` of `large_program.py`, as a
user would type it.

    python benchmarks/dry_at_scale.py                   # 512 ranks of 8 layers
    python benchmarks/dry_at_scale.py --all             # also Llama 3 405B on 16,384 ranks (minutes)

A Llama of 405 billion parameters was trained on 16,384 H100 at 41% of their peak (arXiv 2407.21783, table 4): tensor
parallel 8, 16 stages, 128 replicas, 16 sequences of 8,192 tokens each. The case beside it shards over 2,048 ranks in
place of stages, with the same number of tokens in a step.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Case(NamedTuple):
    name: str
    world: int
    options: str
    most_s: int
    """CPU seconds that are allowed, 0: only the time from begin to end."""
    published: str = ""


SMALL = Case("8 layers of 4,096, FSDP2 64 x TP 8", 512, "--layers 8 --hidden 4096 --heads 32 --ffn 14336", 60)
LARGE = Case("405B, FSDP2 2,048 x TP 8", 16_384, "", 0, "41% with 16 stages in place of shards over all")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also Llama 3 405B on 16,384 ranks")
    cases = [SMALL, LARGE] if parser.parse_args().all else [SMALL]
    print("program | ranks | run | CPU s | s | largest process | step | MFU | published | peak memory of a rank")
    return sum([not shown(case) for case in cases])


def shown(case: Case) -> bool:
    """Runs a case and prints its row; whether it stayed within what is allowed."""
    program = f"{HERE / 'large_program.py'} {case.options}"
    words = ["predict", "--program", program, "--world", str(case.world), "--system", "dgx-h100", "--json"]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, "-m", "etude", *words], stdout=subprocess.PIPE, text=True, check=False)
    wall, used = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(f"{case.name}: exit code {done.returncode}")
        return False
    found = json.loads(done.stdout)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{case.name} | {case.world:,} | {found['ranks_run']} | {cpu:.0f} | {wall:.0f} | "
        f"{used.ru_maxrss / 2**20:.1f} GiB | "
        f"{found['step_ns'] / 1e6:,.0f} ms | {found['mfu']:.1%} | {case.published or 'none'} | "
        f"{found['peak_allocated_bytes'] / 1e9:.1f} GB",
        flush=True,
    )
    return cpu <= case.most_s if case.most_s else wall <= 300


if __name__ == "__main__":
    sys.exit(main())
