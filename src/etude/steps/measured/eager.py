"""Single-GPU training steps of plain decoders in eager PyTorch, as `benchmarks/measure_steps.py` measures them.

Columns are kind, layers, hidden, heads, ffn, vocab, norm, act, batch, seq, train_step_ms_median, peak_bytes; all in
bf16, fused AdamW, no norms of gradients.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.base.shapes import names_in
from etude.cost.stacks import Stack, open_stack
from etude.machine import System, open_system
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.train import plan_memory
from etude.steps.measured.recipes import RunFacts, completed
from etude.steps.measured.rows import Case

COLUMNS: Final = names_in("""
    kind layers hidden heads ffn vocab norm act batch seq train_step_ms_median
""")
SYSTEM: Final = "dgx-h200"
STACK: Final = "eager"
UNFUSED: Final = "activation"
"""Of the memory: a gated activation is two operations there."""


def eager_cases(path: Path) -> list[Case]:
    """Every training step of a file, on an H200."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    return [eager_case(row, number) for number, row in enumerate(rows, 1) if row["kind"] == "train"]


def eager_case(row: Mapping[str, str], number: int, stack: Stack | None = None, system: System | None = None) -> Case:
    """A row as a case; `stack` and `system` instead of eager PyTorch and an H200."""
    if row["kind"] != "train":
        raise UsageError(f"a row of kind `{row['kind']}` is not a training step")
    shape = {k: int(row[k]) for k in ("layers", "hidden", "heads", "ffn", "vocab", "seq")}
    style = {"gated": row["act"] == "swiglu", "norm": row["norm"].replace("ln", "layer"), "positions": "none"}
    model = Model.from_dict({"name": f"{row['layers']} x {row['hidden']}", **shape, **style})
    said = [] if system else [f"system {SYSTEM}: the row names no GPU"]
    said += [] if stack else [f"stack {STACK}: the row names none"]
    system, stack = system or open_system(SYSTEM), stack or open_stack(STACK)
    given = {"micro_batch": int(row["batch"]), "seq": int(row["seq"]), "recompute": "none"}
    plan, assumed = completed(RunFacts(model=model, given=given, system=system), stack)
    said += ["precision bf16, no recomputation, no positions", *assumed]
    return Case(
        row=number,
        model=model,
        plan=plan,
        system=system,
        stack=stack,
        step_s=float(row["train_step_ms_median"]) / 1e3,
        assumed=tuple(said),
    )


def peak_memory_bytes(case: Case) -> int:
    """Peak of the memory of an eager step, a gated activation being two operations."""
    plan = Plan.from_dict({
        "micro_batch": case.plan.micro_batch, "global_batch": case.plan.micro_batch, "seq": case.plan.seq,
        "grad_dtype": "bf16", "state_dtype": "bf16", "master": False, "clip": False, "unfused": UNFUSED,
        "loss_dtype": "bf16", "recompute": "none",
    })  # fmt: skip
    return plan_memory(case.model, plan)[0].peak_bytes
