"""Single-GPU training steps of plain transformers in eager PyTorch, as `measure_steps.py` measures them, as cases."""

from __future__ import annotations

import csv
from pathlib import Path

from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate.model import Model
from etude.steps.measured.recipes import Said, completed
from etude.steps.measured.rows import Case


def eager_cases(path: Path) -> list[Case]:
    """Every training step of a file: all in bf16, fused AdamW, no norms of gradients, on an H200."""
    rows = list(csv.DictReader(path.open()))
    return [_case(number, row) for number, row in enumerate(rows, 1) if row["kind"] == "train"]


def _case(number: int, row: dict[str, str]) -> Case:
    shape = {k: int(row[k]) for k in ("layers", "hidden", "heads", "ffn", "vocab", "seq")}
    style = {"gated": row["act"] == "swiglu", "norm": row["norm"].replace("ln", "layer"), "positions": "none"}
    model = Model.from_dict({"name": f"{row['layers']} x {row['hidden']}", **shape, **style})
    system, stack = open_system("dgx-h200"), open_stack("eager")
    given = {"micro_batch": int(row["batch"]), "seq": int(row["seq"]), "recompute": "none"}
    plan, said = completed(Said(model=model, given=given, system=system), stack)
    return Case(row=number, model=model, plan=plan, system=system, stack=stack,
                step_s=float(row["train_step_ms_median"]) / 1e3, assumed=tuple(said))  # fmt: skip
