"""Single-GPU training steps of plain transformers in eager PyTorch, as `measure_steps.py` measures them, as cases."""

from __future__ import annotations

import csv
from pathlib import Path

from published_rows import Case

from etude.generate.model.shape import Model
from etude.generate.plan import Plan

HOST_NS = 60_000
"""Host time of an op, forward and backward, to begin with: a property of the host, found for each file on its own."""


def cases_of(path: Path) -> list[Case]:
    """Every training step of a file: all in bf16, fused AdamW, no norms of gradients, on an H200."""
    return [_case(row) for row in csv.DictReader(path.open()) if row["kind"] == "train"]


def _case(row: dict[str, str]) -> Case:
    model = Model(
        name=f"{row['layers']} x {row['hidden']}",
        **{k: int(row[k]) for k in ("layers", "hidden", "heads", "ffn", "vocab", "seq")},  # type: ignore[arg-type]
        gated=row["act"] == "swiglu",
        norm=row["norm"].replace("ln", "layer"),
        positions="none",  # type: ignore[arg-type]
    )
    plan = Plan(
        micro_batch=int(row["batch"]),
        seq=int(row["seq"]),
        grad_dtype="bf16",
        state_dtype="bf16",
        master=False,
        clip=False,
        host_ns=HOST_NS,
    )
    return Case(
        model=model,
        plan=plan,
        system="dgx-h200",
        gpu="H200",
        stack="pytorch-eager",
        megatron=False,
        step_s=float(row["train_step_ms_median"]) / 1e3,
        assumed="",
        source="single-GPU steps",
        key=f"{model.name} {plan.micro_batch} {plan.seq}",
    )
