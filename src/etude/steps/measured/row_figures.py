"""The measured figure of a row as seconds of a step: from times, tokens, samples, FLOP/s or utilisation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from etude.base.errors import UsageError
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model

SECONDS: Final = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
FLOPS: Final = {"gflop/s": 1e9, "tflop/s": 1e12, "tflops": 1e12, "pflop/s": 1e15, "pflops": 1e15}
TOKENS: Final = ("tok/s", "tokens/s", "token/s", "tokens/sec", "tok/sec", "tps")
SAMPLES: Final = ("samples/s", "sample/s", "seq/s", "sequences/s", "samples/sec", "seqs/s", "images/s")
PER_GPU: Final = r"(per|/|a)\s*-?(gpu|device|chip|accelerator)"


def whole(row: Mapping[str, str], name: str) -> int:
    """A count that a row gives; 0: it gives none. What is not a whole number is refused, not rounded."""
    text = row.get(name) or "0"
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = 0.5
    if not value.is_integer() or value < 0:
        raise UsageError(f"`{text}` of `{name}` is not a whole number")
    return int(value)


def out_of_scope(row: Mapping[str, str]) -> bool:
    """Whether a row is about serving or bandwidth, not a training step."""
    metric, unit = (row.get("measured_metric") or "").lower(), (row.get("unit") or "").strip().lower()
    other = ("bandwidth", "serving", "latency", "ttft", "tpot", "inference", "decode", "prefill")
    return any(word in metric for word in other) or bool(re.fullmatch(r"[kmgt]i?b/s", unit))


def step_seconds(row: Mapping[str, str], m: Model, plan: Plan, system: System) -> float:
    """Seconds of a step of this plan from the row's figure."""
    try:
        value = float((row.get("value") or "").replace(",", ""))
    except ValueError:
        raise UsageError(f"the value `{row.get('value')}` is not a number") from None
    if not value > 0:
        raise UsageError(f"the value {value:g} is not positive")
    metric = (row.get("measured_metric") or "").lower()
    unit = (row.get("unit") or "").strip().lower()
    each = bool(re.search(PER_GPU, f"{metric} {unit}"))
    unit = re.sub(rf"\s*{PER_GPU}.*$", "", unit)
    ranks = plan.gpus if each else 1
    if unit in SECONDS and not metric.startswith(("time to train", "total")):
        return value * SECONDS[unit]
    if unit in TOKENS:
        return plan.batch * plan.seq / (value * ranks)
    if unit in SAMPLES:
        return plan.batch / (value * ranks)
    if unit in FLOPS:
        ranks = 1 if "total" in metric or "aggregate" in metric else plan.gpus
        return step_flops(m, plan, hardware=_hardware(metric)) / (value * FLOPS[unit] * ranks)
    if unit == "%" and ("mfu" in metric or "hfu" in metric or "utili" in metric):
        rate = value / 100 * system.device.peak(str(plan.precision)) * plan.gpus
        return step_flops(m, plan, hardware=_hardware(metric)) / rate
    if unit in ("gpu-hours", "gpu hours") and (found := re.search(r"per (\d*)\s*([tb])\b", metric)):
        tokens = float(found[1] or 1) * {"t": 1e12, "b": 1e9}[found[2]]
        return value * 3600 * plan.batch * plan.seq / (tokens * plan.gpus)
    raise UsageError(f"`{row.get('measured_metric')}` in `{row.get('unit')}` is not the time of a step")


def _hardware(metric: str) -> bool:
    """Whether the metric counts all executed FLOPs, including recomputation."""
    return "hardware" in metric or "hfu" in metric or "recompute" in metric


def step_flops(m: Model, plan: Plan, *, hardware: bool) -> float:
    """Products of a step as papers count them: 6 for each weight of a product and token, attention over all pairs
    (Korthikanti et al. 2022); 4 for weights that adapters leave frozen. `hardware`: layers that are recomputed count a
    forward pass more."""
    each = 4.0 if plan.frozen else 6.0
    tokens = plan.batch * plan.seq
    heads = m.heads * m.head
    pairs = 12.0 * m.layers * heads * plan.seq
    layers = each * sum(_layer_weights(m, layer) for layer in range(m.layers))
    if hardware and plan.recomputes_layers:
        layers, pairs = layers * (each + 2) / each, pairs * 4 / 3
    elif hardware and plan.twice:
        pairs = pairs * 4 / 3
    return float(tokens * (layers + pairs + each * m.vocab * m.hidden))


def attention_weights(m: Model) -> int:
    """Weights of the products of a layer's attention."""
    if not m.kv_rank:
        return m.hidden * m.head * (2 * m.heads + 2 * m.kv)
    head = m.rope_size + m.nope_size
    queries = m.hidden * m.q_rank + m.q_rank * m.heads * head if m.q_rank else m.hidden * m.heads * head
    keys = m.hidden * (m.kv_rank + m.rope_size) + m.kv_rank * m.heads * (m.nope_size + m.value_size)
    return queries + keys + m.heads * m.value_size * m.hidden


def _layer_weights(m: Model, layer: int) -> int:
    """Weights of the products that a token passes through in a layer."""
    matrices, attention = 3 if m.gated else 2, attention_weights(m)
    if not m.has_experts(layer):
        return attention + matrices * m.hidden * m.ffn
    width = (m.expert_ffn or m.ffn) * m.top_k + m.shared_ffn
    return attention + matrices * m.hidden * width + m.hidden * m.experts
