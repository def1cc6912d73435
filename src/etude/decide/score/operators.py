"""Operators: measured times of single ops, as `etude ops measure` of another tool, or Vidur's profiles."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost import ops
from etude.cost.calibrate import row_work
from etude.cost.compute import compute_time_ns
from etude.cost.ops import OpTable, Work
from etude.decide.score.kind import Asked, CsvRow, Item, Kind, Predicted, table_rows
from etude.decide.score.source import Source
from etude.machine import Device, device_names, open_device, open_system

DEVICE: Final = "h200"
PLAIN: Final = ("op", "shape", "flops", "bytes", "microseconds")
VIDUR: Final = ("device", "op", "tokens", "tp", "heads", "kv_heads", "hidden", "ffn", "gated", "median_us")


def predict(item: Item, asked: Asked) -> Predicted:
    row = item.value
    if set(PLAIN) <= row.keys():
        device, work, measured_us = asked.system or "", row_work(row), float(row["microseconds"])
        assumed = [] if device else [f"device {DEVICE}: the row names none"]
    else:
        device, work, measured_us = asked.system or "", vidur_work(row), float(row["median_us"])
        assumed = ["operands in bf16", "norms, sums and embeddings are not split over tensor-parallel ranks"]
        if not device and row["device"] not in device_names():
            raise UsageError(f"device `{row['device']}` is not in the catalogue")
    own = _device(device) if device else open_device(row.get("device") or DEVICE)
    time_ns = int(compute_time_ns(own, OpTable.of([work]))[0])
    if time_ns < 0:
        raise UsageError(f"the cost of `{row['op']}` is not known")
    measured = float(np.round(measured_us * 1000)) / 1e9
    return Predicted(measured={"time_s": measured}, predicted={"time_s": time_ns / 1e9}, assumed=assumed)


@cache
def _device(system: str) -> Device:
    return open_system(system).device


def vidur_work(row: CsvRow) -> Work:
    """The operator of a row of Vidur on one of its tensor-parallel ranks; norms, sums and embeddings are not split."""
    tokens, tp, hidden, heads = (int(row[name]) for name in ("tokens", "tp", "hidden", "heads"))
    size, kv_heads, ffn = hidden // heads, int(row["kv_heads"]), int(row["ffn"]) // tp
    gated = row["gated"] == "True"
    projected = (heads + 2 * kv_heads) // tp * size
    match row["op"]:
        case "attn_pre_proj":
            return ops.matmul(tokens, projected, hidden)
        case "attn_post_proj":
            return ops.matmul(tokens, hidden, heads // tp * size)
        case "mlp_up_proj":
            return ops.matmul(tokens, ffn * (2 if gated else 1), hidden)
        case "mlp_down_proj":
            return ops.matmul(tokens, hidden, ffn)
        case "mlp_act":
            # the gated one is a kernel of its own, with a block for each token
            return ops.activation(tokens * ffn, inputs=2 if gated else 1, row_width=ffn if gated else 0)
        case "input_layernorm" | "post_attention_layernorm":
            return ops.normalisation(tokens, hidden)
        case "attn_rope":
            return ops.elementwise(tokens * (heads + kv_heads) // tp * size)
        case "add":
            return ops.elementwise(tokens * hidden, inputs=2)
        case "emb":
            return ops.embedding(tokens, hidden)
    raise UsageError(f"operator `{row['op']}` is not known")


def _holds(source: Source) -> bool:
    return source.has(*PLAIN) or source.has(*VIDUR)


KIND: Final = Kind(
    name="operators",
    doc="CSV of single operators: op, shape, flops, bytes, microseconds; or Vidur's device, op, tokens, tp, ...",
    holds=_holds,
    rows=table_rows,
    predict=predict,
    reads=frozenset({"system"}),
)
