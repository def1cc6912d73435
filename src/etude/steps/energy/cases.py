"""Power of an op, a pass or a step that runs again and again on one device, as energy counters measure it.

A row has a `name` and a `kind`: `gemm_bf16_8192` (gemm_bf16, gemm_fp8, ...), `copy_256MiB`, `add_256M` (elementwise),
`softmax_65536x4096`, `attn_1x32x16384`, `llama8b_decode_b16`, `llama8b_prefill_2048`, `train_gpt_m_b8`, `idle_start`.
`detail` may say a shape or the context, `duty` the part of the time in which it runs, `clock_mhz` or `cap_w` what the
clock was locked at or the power limited to. Nothing measured is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from etude.analyse.energy import energy
from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.cost.compute import compute_time_ns
from etude.cost.energy import at_work_w, costs_of, idle_w, limit_w, time_at_clock
from etude.cost.ops import OpClass, OpTable, Work
from etude.cost.stacks import open_stack
from etude.cost.traces import ops_of
from etude.machine import System
from etude.machine.system import Device
from etude.make.generate import Plan
from etude.make.generate.model import Model, open_model
from etude.make.generate.serving import Serving, serve
from etude.model.schema import Kind
from etude.steps.energy.clock import STEP, ratio_of
from etude.steps.measured import RunFacts, completed
from etude.steps.step import predict

MODELS: Final = {"llama1b": "llama3.2-1b", "llama8b": "llama3-8b"}
"""Names of catalogue models in the rows."""
GPT: Final = {"vocab": 32000, "norm": "layer", "positions": "learned", "bias": True, "tied": True, "seq": 1024}
SHAPES: Final = {
    "gpt_s": {"layers": 8, "hidden": 768, "heads": 12, "ffn": 3072, "seq": 512},
    "gpt_m": {"layers": 12, "hidden": 2048, "heads": 16, "ffn": 8192},
}
"""Models that only the rows have."""
SEQ: Final = {"gpt_s": 512, "gpt_m": 1024}
PROGRAMS: Final = ("decode", "prefill", "train_step")
"""Kinds of rows with many ops."""
FLASH_2: Final = 0.35
"""Fraction of the peak that FlashAttention-2 reaches on Hopper, as published."""
TILE: Final = 64
"""Queries of a tile of FlashAttention-2."""
SINGLE: Final = 0.47
"""The same for tiles of one query: fitted to one measured pass."""
PADDED: Final = 0.4
"""Energy of a FLOP on padding zeros, relative to another."""
FUSED: Final = "flash_attn::varlen_fwd"
EAGER_NS: Final = 19_000
"""Host time of an op of a pass without a CUDA graph: one measured pass of 178 ops."""


@dataclass(frozen=True, slots=True)
class EnergyCase:
    """A repeated workload: time of one call, and its energy above idle."""

    time_ns: float
    work_j: float

    @property
    def work_w(self) -> float:
        return self.work_j / self.time_ns * 1e9


@dataclass(frozen=True, slots=True)
class CasePower:
    mean_w: float
    energy_j_per_call: float
    call_ns: float
    """0 for an idle device."""


def case_power(row: Mapping[str, str], on: System) -> CasePower:
    """Power of a row, at its `clock_mhz` or under its `cap_w` if given; the energy of an idle row is 0."""
    if "zeros" in row.get("name", "") + row.get("detail", ""):
        raise UsageError("power by the values of data is not modelled", where=row.get("name", ""))
    clock, cap = row.get("clock_mhz") or "", float(row.get("cap_w") or 0.0)
    ratio = ratio_of(f"{clock}MHz", on.device) if clock else 1.0
    if row.get("kind") == "idle":
        return CasePower(idle_w(on.device, ratio), 0.0, 0.0)
    if (clock or cap) and row.get("kind") in PROGRAMS:
        raise UsageError("rows at another clock or under a cap must be single ops")
    found = priced(row, on, ratio)
    while cap and ratio > costs_of(on.device).least_ratio and idle_w(on.device, ratio) + found.work_w > cap:
        ratio -= STEP
        found = priced(row, on, ratio)
    duty, idle = float(row.get("duty") or 1.0), idle_w(on.device, ratio)
    mean = idle + min(found.work_w, limit_w(on.device) - idle) * duty
    return CasePower(mean, mean * found.time_ns / duty / 1e9, found.time_ns / duty)


def priced(row: Mapping[str, str], on: System, ratio: float = 1.0) -> EnergyCase:
    """Time and work of one call, at a clock over the nominal one if it is an op."""
    kind, name = row.get("kind", ""), row.get("name", "")
    if kind in ("decode", "prefill"):
        return _pass(name, kind, row.get("detail", ""), on)
    if kind == "train_step":
        return _step(name, on)
    ops = OpTable.of([_op(kind, name, row.get("detail", ""))])
    own, factor = time_at_clock(on.device, ops, ratio)
    time_ns = np.ceil(own * factor).astype(np.int64)
    return EnergyCase(
        float(time_ns[0]), float(at_work_w(on.device, ops, time_ns, ratio=ratio)[0]) * float(time_ns[0]) / 1e9
    )


def _op(kind: str, name: str, detail: str) -> Work:
    family, _, dtype = kind.partition("_")
    if family == "gemm":
        shape = re.search(r"(\d+)x(\d+)x(\d+)", detail)
        single = re.search(r"_(\d{3,})(?:_|$)", name)
        sizes = [int(n) for n in shape.groups()] if shape else [int(single[1])] * 3 if single else []
        if sizes:
            return work.matmul(sizes[0], sizes[1], sizes[2], dtype=dtype or "bf16")
    numbers = [int(n) for n in re.findall(r"\d+", name)]
    mega = 1 << 20
    if family == "copy" and numbers:
        return work.copy(numbers[0] * mega // 2)
    if family == "elementwise" and numbers:
        return work.elementwise(numbers[0] * mega, inputs=2)
    if family == "activation" and numbers:
        return work.activation(numbers[0] * mega)
    if family == "softmax" and len(numbers) == 2:
        return work.softmax(numbers[0], numbers[1])
    if family == "attention" and len(numbers) == 3:
        return work.attention(numbers[2], numbers[2], heads=numbers[1], head_size=128, batch=numbers[0])
    raise UsageError(f"`{name}` of kind `{kind}` cannot be read", hint="gemm_bf16_8192, copy_256MiB, add_256M, ...")


@cache
def _model(name: str) -> Model:
    if name in MODELS:
        return open_model(MODELS[name])
    if name in SHAPES:
        return Model.from_dict({"name": name, **GPT, **SHAPES[name]})
    return open_model(name)


def _pass(name: str, kind: str, detail: str, on: System) -> EnergyCase:
    found = re.fullmatch(r"(.+)_(?:decode_b|prefill_)(\d+)", name)
    if found is None:
        raise UsageError(f"`{name}` is not MODEL_decode_bBATCH or MODEL_prefill_TOKENS")
    count, context = int(found[2]), re.search(r"context (\d+)", detail)
    keys = int(context[1]) if context else 1024
    serving = {"prefill": keys - 1, "decode": 1, "batch": count} if kind == "decode" else {"prefill": count}
    model = _model(found[1])
    trace = serve(model, Plan(gpus=1), Serving.from_dict(serving)).job.traces[0]
    rows = np.flatnonzero((trace.step == trace.step.max()) & (trace.kind == Kind.COMP))
    codes, words = trace.coded("name", rows)
    ops, fused = ops_of(trace).take(rows), np.array([*(word == FUSED for word in words), False])[codes]
    queries, batch = (1, count) if kind == "decode" else (count, 1)
    device = _flash_2(on.device.busy(), FLASH_2 if queries > 1 else SINGLE)
    real = _attention(model, queries, keys if kind == "decode" else count, batch)
    time_ns = compute_time_ns(device, ops)
    # FlashAttention-2 computes a whole tile even for a single query.
    tiled = _attention(model, max(queries, TILE), real.n, batch, causal=queries > 1)
    once = OpTable.of([replace(tiled, op_class=OpClass.ATTENTION), real])
    time_ns[fused] = compute_time_ns(device, once).max()
    flops = np.where(fused, real.flops + int(PADDED * (tiled.flops - real.flops)), ops.flops)
    joules = float((at_work_w(device, replace(ops, flops=flops), time_ns) * time_ns).sum()) / 1e9
    host = len(ops) * EAGER_NS if kind == "prefill" else 0
    return EnergyCase(max(float(time_ns.sum()), host), joules)


def _attention(model: Model, queries: int, keys: int, batch: int, *, causal: bool = True) -> Work:
    heads, head = model.heads, model.head
    return work.attention(queries, keys, heads=heads, kv_heads=model.kv, head_size=head, batch=batch, causal=causal)


def _flash_2(device: Device, part: float) -> Device:
    """The device with FlashAttention-2, used by the engine of these passes: on Hopper slower than the vendor's."""
    own = replace(device.ops["attention"], flop_efficiency=part)
    return replace(device, ops={**device.ops, "attention": own})


def _step(name: str, on: System) -> EnergyCase:
    found = re.fullmatch(r"train_(.+)_b(\d+)(?:_t(\d+))?", name)
    if found is None:
        raise UsageError(f"`{name}` is not train_MODEL_bBATCH")
    model, stack = _model(found[1]), open_stack("eager")
    given = {"gpus": 1, "micro_batch": int(found[2]), "seq": int(found[3] or SEQ.get(found[1], 1024))}
    plan, _ = completed(RunFacts(model=model, given=given, system=on), stack)
    step = predict(model, plan, on, stack=stack)
    taken = energy(step.simulated, device=on.device, end_ns=step.time_ns)
    return EnergyCase(float(step.time_ns), taken.curve.energy_j - idle_w(on.device) * step.time_ns / 1e9)
