"""Steps and memory of programs of `foreign_programs.py` on this machine's GPU, without any recording.

    python benchmarks/time_foreign.py -o programs/ [--only llama gpt2] [--batch 1 2]
    python benchmarks/record_dry.py -o programs/dry --steps 3          # the same programs without numbers
    python benchmarks/held_out_errors.py --only programs --programs programs/

`steps.csv` has a row for each program and batch: 20 steps without a profiler, twice, after three seconds of others (a
device's clock rises meanwhile), and the most memory that its allocator gave out and held. One program has the device
at a time. Programs that the table of operators was fitted to are left out unless they are named.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gc
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from record_foreign import TURN, timed_ns, warm

COLUMNS = (
    "program",
    "batch",
    "before_ns",
    "after_ns",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "device",
    "torch",
)


def measure(name: str, batches: list[int], turn: Path) -> None:
    """Prints a line of JSON for each batch."""
    import torch
    import torchvision  # noqa: F401
    import transformers  # noqa: F401
    from foreign_programs import PROGRAMS

    with turn.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        for batch in batches:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.manual_seed(0)
            step = PROGRAMS[name](batch)
            warm(torch, step)
            before, after = timed_ns(torch, step), timed_ns(torch, step)
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            row = (name, batch, before, after, *peaks, torch.cuda.get_device_name(), torch.__version__)
            print(json.dumps(dict(zip(COLUMNS, row, strict=True))), flush=True)
            del step


def main() -> int:
    from foreign_programs import FRESH, LAST, LATEST, PROGRAMS, SCRIPTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[*(one.__name__ for one in (*LATEST, *LAST, *FRESH)), *SCRIPTS])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.measure:
        measure(given.measure, given.batch, given.out / TURN)
        return 0
    if unknown := set(given.only) - set(PROGRAMS):
        raise SystemExit(f"there is no program {', '.join(sorted(unknown))}")

    def one(name: str) -> list[dict[str, object]]:
        words = [sys.executable, __file__, "-o", str(given.out), "--measure", name, "--batch", *map(str, given.batch)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            print(
                f"{name:24} x{row['batch']} {row['before_ns'] / 1e6:9.3f} {row['after_ns'] / 1e6:9.3f} ms", flush=True
            )
        return rows

    with (given.out / "steps.csv").open("w", newline="", encoding="utf-8") as file, ThreadPoolExecutor(3) as pool:
        lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        lines.writeheader()
        for rows in pool.map(one, given.only):
            lines.writerows(rows)
            file.flush()
    (given.out / TURN).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
