"""Peaks of memory of measured training steps on one GPU against `etude.generate`.

python benchmarks/validate_memory.py [../shared/measured/h200_steps.csv]

Reads `h200_memory.csv` (of `measure_memory.py`), `h200_steps_grid.csv` and, where it is there, the reference file. The
decoders are those of `measure_steps.py`: eager PyTorch in bf16, fused AdamW, gradients cleared after each step, a gated
activation by two operations. Norms of the reference file (RMS) are taken for plain operations, which was chosen after
looking at its errors. The model of memory was made with the grid in sight; `h200_memory.csv` was measured behind it
(3.6% mean), and then showed two mistakes: what the loss needs forward was counted backward, and a gradient that is
added to another was not counted.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import plan_memory
from etude.make.generate.train.memory import Memory

HERE = Path(__file__).parent


def predicted(row: dict[str, str], unfused: str) -> Memory:
    model = Model.from_dict({
        "name": "measured", **{k: int(row[k]) for k in ("layers", "hidden", "heads", "ffn", "vocab", "seq")},
        "gated": row["act"] == "swiglu", "norm": row["norm"].replace("ln", "layer"), "positions": "none",
    })  # fmt: skip
    micro, batch = int(row.get("micro_batches", 1)), int(row["batch"])
    plan = Plan.from_dict({
        "micro_batch": batch, "global_batch": micro * batch, "seq": model.seq, "grad_dtype": "bf16",
        "state_dtype": "bf16", "master": False, "clip": False, "unfused": unfused,
        "loss_dtype": row.get("loss", "bf16"), "recompute": row.get("recompute", "none"),
    })  # fmt: skip
    return plan_memory(model, plan)[0]


def report(path: Path, unfused: str) -> None:
    errors: list[float] = []
    held: list[float] = []
    print(f"{path.name} (unfused: {unfused})")
    for row in csv.DictReader(path.open()):
        if row.get("kind", "train") != "train":
            continue
        memory, measured = predicted(row, unfused), int(row["peak_bytes"])
        found = memory.peak_bytes
        errors.append(found / measured - 1)
        if row.get("reserved_bytes"):
            held.append(memory.reserved_bytes / int(row["reserved_bytes"]) - 1)
        shape = f"{row['layers']} x {row['hidden']}, {row['batch']} x {row['seq']}, {row['norm']} {row['act']}"
        more = (
            f"loss {row.get('loss', 'bf16')}, {row.get('micro_batches', 1)} micro-batches, {row.get('recompute', '')}"
        )
        print(f"  {shape:<36}{more:<40}{measured / 1e9:8.2f} GB{found / 1e9:8.2f} GB {errors[-1]:+7.1%}")
    absolute = sorted(map(abs, errors))
    print(f"  {len(errors)} steps: mean {sum(absolute) / len(errors):.1%}, worst {absolute[-1]:.1%}")
    if held:
        print(f"  what the allocator held: mean {sum(map(abs, held)) / len(held):.1%}, all but rounding being left out")


def main() -> int:
    for name in ("h200_memory.csv", "h200_steps_grid.csv"):
        report(HERE / name, "activation")
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / "shared" / "measured" / "h200_steps.csv"
    if given.exists():
        report(given, "activation,norm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
