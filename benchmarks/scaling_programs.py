"""Programs of `validate_dry_scaling.py`: `scaling_programs.py RANKS NAME` runs one as so many gloo ranks.

They are those of `conformance_programs.py`, and models of `program_times_cpu.py`, at sizes at which a step takes tens
of milliseconds on one core. With STEP_TIMES=FILE rank 0 writes when each optimizer step ended, in ns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import conformance_programs as programs
from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS = 40
SIZES: dict[str, dict[str, int]] = {
    "ddp": {"WIDE": 512, "BATCH": 64, "FIRST_BYTES": 4 << 20},
    "fsdp2": {"WIDTH": 768, "BATCH": 128},
    "tp": {"WIDTH": 512, "BATCH": 8, "LENGTH": 16},
    "one_f_one_b": {"WIDTH": 768, "BATCH": 64},
}


def gpt2() -> None:
    """`transformers` under `DistributedDataParallel`."""
    from program_times_cpu import training_step

    step = training_step("gpt2_ranks")
    for _ in range(STEPS):
        step()


def write_step_ends(place: str) -> None:
    """Writes what ended when, after each step of the first rank."""
    ends: list[int] = []

    def stepped(*_: object) -> None:
        ends.append(time.perf_counter_ns())
        if os.environ.get("RANK", "0") == "0":
            Path(place).write_text(json.dumps(ends))

    register_optimizer_step_post_hook(stepped)


if __name__ == "__main__":
    vars(programs).update(SIZES.get(sys.argv[2], {}) | {"STEPS": STEPS})
    programs.PROGRAMS["gpt2"] = gpt2
    if "STEP_TIMES" in os.environ:
        write_step_ends(os.environ["STEP_TIMES"])
    sys.exit(programs.main(int(sys.argv[1]), sys.argv[2]))
