"""Runs programs of `foreign_programs.py` without numbers, as `etude collect --dry --device h200` does.

    python benchmarks/record_dry.py -o dry/ [--only llama gpt2] [--batch 1 2] [--steps 3] [--jobs 8]

Needs PyTorch and the programs' libraries, and no GPU. What each rank wrote is `NAME.rank.json.gz` (`NAME-b2` for twice
the batch); `validate_dry_memory.py` compares it with peaks that were measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEVICE = {"name": "NVIDIA H200", "memory_bytes": 141_000_000_000, "units": 132}
SETTINGS = {"world": 1, "local_world": 8, "device": DEVICE, "warmup": 1, "answers": {}}


def record(name: str, batch: int, out: Path, steps: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "settings.json").write_text(json.dumps(SETTINGS | {"steps": steps}))
        words = [sys.executable, "-m", "etude.capture.dry", made, "python"]
        words += [str(HERE / "dry_foreign_program.py"), name, str(batch)]
        paths = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
        how = {"text": True, "capture_output": True, "timeout": 400, "check": False}
        done = subprocess.run(words, input='{"ranks": [0], "brief": []}\n', env=environment, **how)
        file = Path(made) / "rank.0.json.gz"
        stem = name if batch == 1 else f"{name}-b{batch}"
        written = file.exists()
        if written:
            shutil.move(file, out / f"{stem}.rank.json.gz")
        print(f"{stem:26} {'written' if written else done.stderr[-400:]}", flush=True)


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
