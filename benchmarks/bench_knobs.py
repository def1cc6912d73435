"""How long a knob takes: CPU seconds of the first state of a job, of a new machine, and of new edits.

python benchmarks/bench_knobs.py --gpus 64
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import etude


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1)
    asked = parser.parse_args()
    from etude.steps.asked.runs import RunSource
    from etude.tell.studio.change import WhatIfs
    from etude.tell.studio.session import StudioRun

    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "job"
        made = etude.generate("llama3-8b", gpus=asked.gpus, tp=4, pp=4, global_batch=asked.gpus * 2, steps=asked.steps)
        etude.convert(made.job, place, to="parquet")
        one = StudioRun.of(RunSource(place, "dgx-h100"))
        found = WhatIfs(one)
        found.result({"bandwidth": 3, "kernels": 3})  # compiles
        found = WhatIfs(one)
        for what, state in (
            ("first", {}),
            ("machine", {"bandwidth": 2}),
            ("slow rank", {"slow": 1.2}),
            ("edits", {"kernels": 2}),
            ("machine, edits kept", {"kernels": 2, "bandwidth": 2}),
            ("again", {"bandwidth": 2}),
        ):
            begun, wall = time.process_time(), time.perf_counter()
            found.result(state)
            cpu, wall = time.process_time() - begun, time.perf_counter() - wall
            print(f"{what}: {cpu:.2f} CPU s, {wall:.2f} s; {made.job.nodes:,} nodes")


if __name__ == "__main__":
    main()
