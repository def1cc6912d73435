"""Runs programs of `foreign_programs.py` without numbers, as `etude collect --dry --device h200` does.

    python benchmarks/record_dry.py -o dry/ [--only llama gpt2] [--batch 1 2] [--steps 3] [--jobs 8]

Needs PyTorch and the programs' libraries, and no GPU. What each rank wrote is `NAME.rank.json.gz` (`NAME-b2` for twice
the batch); `validate_dry_memory.py` compares it with peaks that were measured.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from etude.base.errors import EtudeError
from etude.capture.dry.launch import DryRanks, DrySettings

HERE = Path(__file__).resolve().parent
DEVICE = {"name": "NVIDIA H200", "memory_bytes": 141_000_000_000, "units": 132}


def record(name: str, batch: int, out: Path, steps: int) -> None:
    stem = name if batch == 1 else f"{name}-b{batch}"
    command = [sys.executable, str(HERE / "dry_foreign_program.py"), name, str(batch)]
    with tempfile.TemporaryDirectory() as made:
        try:
            with DryRanks(command, Path(made), DrySettings(world=1, device=DEVICE, steps=steps)) as ranks:
                ranks.run([0])
        except EtudeError as problem:
            print(f"{stem:26} {problem}", flush=True)
            return
        shutil.move(Path(made) / "rank.0.json.gz", out / f"{stem}.rank.json.gz")
    print(f"{stem:26} written", flush=True)


def main() -> None:
    from foreign_programs import PROGRAMS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--steps", type=int, default=1, help="3 for `validate_dry_steps.py`")
    parser.add_argument("--jobs", type=int, default=8)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        for batch in given.batch:
            for name in given.only:
                pool.submit(record, name, batch, given.out, given.steps)


if __name__ == "__main__":
    main()
