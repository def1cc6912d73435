"""Power and energy of an engine that serves a model at a steady batch: one decode pass, and its part of the prompts.

A row has `model`, `gpu`, `num_gpus`, `tp`, `ep`, `weight_precision`, `task`, `avg_batch_size` and `avg_output_len`.
Nothing that was measured of time or power is read. A pass has a token of each sequence, with a context of the prompt
and half of the answer; sequences end and begin, so that with each pass goes the reading of batch / answer prompts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from etude.analyse.serving import passes
from etude.cost.compute import compute_time_ns
from etude.cost.energy import costs_of, flop_pj, idle_w, limit_w
from etude.cost.ops import DTYPE_NUMBER, MATRIX, OpClass, OpTable
from etude.cost.traces import ops_of
from etude.errors import UsageError
from etude.generate import Plan
from etude.generate.model import Model
from etude.generate.serving import Serving, serve
from etude.machine.system import Device, System
from etude.model.run import RunPart
from etude.model.schema import Kind
from etude.predict.energy.engine import Engine, open_engine
from etude.predict.measured.gpus import gpu_system
from etude.predict.measured.row_models import row_model
from etude.predict.serving import predict_serving

PROMPTS: Final = {"lm-arena-chat": 100, "gpqa": 250, "sourcegraph-fim": 3000}
"""Tokens of a prompt by task: assumed, since the tables do not say them."""
PACKED: Final = {"fp8": 1.0, "mxfp4": 4.25 / 8}
"""Bytes of a weight of an expert; 2 in any other precision."""
_SUFFIX: Final = re.compile(r"-(instruct|thinking|it|chat|fp8|bf16|\d{4}|\d+e)(?=-|$)", re.IGNORECASE)
_ACTIVE: Final = re.compile(r"-17b-(?=128e|16e)", re.IGNORECASE)


KEYS: Final = ("model", "gpu", "num_gpus", "tp", "ep", "weight_precision", "task", "avg_batch_size", "avg_output_len")


@dataclass(frozen=True, slots=True)
class PassWork:
    """Of one rank in a pass: times, apart by what an engine's factors are for, and what costs energy."""

    tokens: int
    kernels_ns: float
    experts_ns: float
    """Of products of experts."""
    network_ns: float
    flops: Mapping[str, float]
    """Of the matrix units, by data type."""
    vector_flops: float
    size_bytes: float

    def flop_j(self, device: Device) -> float:
        matrix = sum(flop_pj(device, dtype) * flops for dtype, flops in self.flops.items())
        return (matrix + costs_of(device).vector_pj * self.vector_flops) * 1e-12

    def energy_j(self, device: Device) -> float:
        """Beyond what runs whatever is computed."""
        return self.flop_j(device) + costs_of(device).byte_pj * self.size_bytes * 1e-12


@dataclass(frozen=True, slots=True)
class Served:
    """An engine at work on so many devices."""

    pass_ns: float
    device_w: float
    devices: int
    batch: float

    def figures(self) -> dict[str, float]:
        power = self.device_w * self.devices
        return {
            "mean_w": power,
            "pass_ms": self.pass_ns / 1e6,
            "energy_per_token_j": power * self.pass_ns / 1e9 / self.batch,
        }


def served_row(row: Mapping[str, str], engine: Engine | None = None, device: Device | None = None) -> Served:
    """Power and pass of a row; `engine` and `device` in the place of those of the catalogue, for fits."""
    task = row.get("task", "lm-arena-chat")
    if task not in PROMPTS:
        raise UsageError(f"task `{task}` has more than text", hint=f"known: {', '.join(PROMPTS)}")
    reads, makes = row_work(tuple(sorted((k, row.get(k) or "") for k in KEYS)))
    system = gpu_system(row["gpu"])
    device, by = device or system.device, engine or open_engine("vllm", row["gpu"])
    quantised = row.get("weight_precision", "") == "fp8"
    batch = float(row["avg_batch_size"])
    share = batch / float(row["avg_output_len"]) * PROMPTS[task] / reads.tokens
    own = by.kernels * makes.kernels_ns + (by.quantised if quantised else by.kernels) * makes.experts_ns
    prompts = by.prompt * by.kernels * share * (reads.kernels_ns + reads.experts_ns)
    pass_ns = own + prompts + by.network * makes.network_ns + by.pass_ns + by.sequence_ns * batch
    costs, packed = costs_of(device), row.get("weight_precision", "") in PACKED
    joules = makes.energy_j(device) + share * reads.flop_j(device)
    joules += costs.active_w * pass_ns / 1e9 + costs.communication_w * makes.network_ns / 1e9
    joules += costs.quantised_w * makes.experts_ns / 1e9 if packed else 0.0
    watts = min(idle_w(device) + joules / pass_ns * 1e9, limit_w(device))
    return Served(pass_ns, watts, int(row.get("num_gpus") or 1), batch)


@cache
def row_work(key: tuple[tuple[str, str], ...]) -> tuple[PassWork, PassWork]:
    """What a rank does to read the prompts of a whole batch, and in a decode pass."""
    row = dict(key)
    system, model = gpu_system(row["gpu"]), _model(row["model"])
    batch = max(round(float(row["avg_batch_size"])), 1)
    context = round(PROMPTS[row["task"] or "lm-arena-chat"] + float(row["avg_output_len"]) / 2)
    serving = Serving.from_dict({"prefill": context, "decode": 1, "batch": batch})
    run = predict_serving(serve(model, _plan(row, model), serving), system).simulated
    part = next(iter(run.parts()))
    ends = passes(part)
    weight = PACKED.get(row["weight_precision"], 2.0)
    reads = _work(part, int(ends.step[0]), batch * context, weight, system)
    return reads, _work(part, int(ends.step[-1]), batch, weight, system)


def _model(name: str) -> Model:
    """Of the catalogue, whatever it was trained to do: `Llama-4-Scout-17B-16E-Instruct` is `llama4-scout`."""
    said: list[str] = []
    short = re.sub(r"(?i)llama-4", "llama4", _SUFFIX.sub("", _ACTIVE.sub("-", name.rpartition("/")[2])))
    short = re.sub(r"(?i)^nvidia-|-17b$", "", short)
    return row_model({"model": re.sub(r"(?i)gemma-3", "gemma3", short)}, said)


def _plan(row: Mapping[str, str], model: Model) -> Plan:
    """Tensor parallel over all devices; experts spread where the row says so, else split."""
    devices, ep = int(row["num_gpus"] or 1), int(float(row["ep"] or 1))
    given: dict[str, Any] = {"gpus": devices, "tp": devices}
    if model.experts and devices > 1:
        given |= {"ep": ep} if ep > 1 else {"etp": devices}
    if row["weight_precision"] == "fp8":
        given["precision"] = "fp8"
    return Plan.from_dict(given)


def _work(part: RunPart, step: int, tokens: int, weight: float, system: System) -> PassWork:
    trace = part.trace
    rows = np.flatnonzero((trace.step == step) & (trace.cpu != 1))
    talks = rows[trace.kind[rows] == Kind.COLL]
    ops = ops_of(trace).take(rows)
    ops = _packed(ops.take(ops.op_class != int(OpClass.NONE)), weight)
    time_ns = compute_time_ns(system.device.busy(), ops)
    experts = ops.op_class == int(OpClass.GROUPED_GEMM)
    matrix = np.isin(ops.op_class, [int(c) for c in (*MATRIX, OpClass.OTHER)])
    flops = np.maximum(ops.flops, 0).astype(np.float64)
    names = {number: name or "bf16" for name, number in DTYPE_NUMBER.items()}
    by_type: dict[str, float] = {}
    for number in np.unique(ops.dtype[matrix]).tolist():
        chosen = matrix & (ops.dtype == number)
        by_type[names[number]] = by_type.get(names[number], 0.0) + float(flops[chosen].sum())
    return PassWork(
        tokens=tokens,
        kernels_ns=float(time_ns[~experts].sum()),
        experts_ns=float(time_ns[experts].sum()),
        network_ns=float((part.end_ns - part.start_ns)[talks].sum()),
        flops=by_type,
        vector_flops=float(flops[~matrix].sum()),
        size_bytes=float(np.maximum(ops.size_bytes, 0).sum()),
    )


def _packed(ops: OpTable, weight: float) -> OpTable:
    """Products of experts with their weights at so many bytes each."""
    grouped = ops.op_class == int(OpClass.GROUPED_GEMM)
    wide = np.where(ops.dtype == DTYPE_NUMBER["fp8"], 1.0, 2.0)
    less = np.where(grouped, ops.batch * ops.n * ops.k * (wide - weight), 0.0)
    return replace(ops, size_bytes=np.maximum(ops.size_bytes - less.astype(np.int64), 0))
