"""Peak memory of programs that were run without numbers, against the GPU.

    python benchmarks/validate_dry_memory.py dry/ peaks/

`dry/` is what `record_dry.py` wrote, `peaks/` what `measure_peaks.py` measured (neither is in the repository). Prints
what was allocated and reserved at most, what `etude collect --dry` says, and the median and the worst difference; of
programs that PyTorch compiles apart, which a dry run takes operator by operator.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from etude.capture.dry.memory import dry_memory
from etude.capture.dry.recorded_rank import read_dry_rank

STEP = "step_3"


def main(dry: Path, peaks: Path) -> None:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    print(f"{'program':25} {'allocated':>16} {'dry run':>16} {'':>8} {'reserved':>16} {'dry run':>16}")
    for file in sorted(dry.glob("*.rank.json.gz")):
        name = file.name.removesuffix(".rank.json.gz")
        rank = read_dry_rank(file)
        if rank.problem is not None:
            print(f"{name:25} stopped at {rank.problem['where']}: {rank.problem['line'][:70]}")
            continue
        measured = json.loads((peaks / f"{name}.peaks.json").read_text())["after"]
        real = measured.get(STEP) or measured["step_10"]
        made = dry_memory(rank, "h200")
        allocated = made.peak_allocated_bytes / real["peak_allocated_bytes"] - 1
        reserved = made.peak_reserved_bytes / real["peak_reserved_bytes"] - 1
        found["compiled" in name].append((allocated, reserved))
        print(f"{name:25} {real['peak_allocated_bytes']:>16,} {made.peak_allocated_bytes:>16,} {allocated:>+8.1%} "
              f"{real['peak_reserved_bytes']:>16,} {made.peak_reserved_bytes:>16,} {reserved:>+8.1%}")  # fmt: skip
    for compiled, rows in found.items():
        for i, what in enumerate(("allocated", "reserved")):
            off = [row[i] for row in rows]
            if off:
                print(f"{'compiled' if compiled else 'eager':9} {len(rows)} runs, {what}: median "
                      f"{statistics.median(map(abs, off)):.1%}, from {min(off):+.1%} to {max(off):+.1%}")  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
