"""shapes_of(trace): the nodes of a trace as ops of the database, by their names, shapes, types and phase."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np

from etude.cost.aten_inputs import dtype_of
from etude.cost.aten_inputs import shapes_of as listed_shapes
from etude.cost.aten_matrix import VARLEN
from etude.cost.opdb.schema import DIMS, Shapes
from etude.kernels.arrays import I64
from etude.model.schema import Kind
from etude.model.trace import Trace

Found = tuple[str, dict[str, int]]
Rule = Callable[[list[list[int]], list[list[int]], str], Found]
"""(shapes in, shapes out, phase) -> op and dimensions."""

WEIGHT, INPUT, DECODE, MIXED = "backward-weight", "backward-input", "decode", "mixed"
_AT: Final = {name: number for number, name in enumerate(DIMS)}


def _product(place: int = 0) -> Rule:
    def found(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
        (m, k), (_, n) = ins[place], ins[place + 1]
        if phase == WEIGHT:
            return "linear_weight", {"tokens": k, "n": n, "k": m}
        return ("linear_input" if phase == INPUT else "linear"), {"tokens": m, "n": n, "k": k}

    return found


def _linear(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
    *rows, k = ins[0]
    return "linear", {"tokens": prod(rows), "n": ins[1][0], "k": k}


def _grouped(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
    (experts, m, k), (_, _, n) = ins[0], ins[1]
    if phase == WEIGHT:
        return "grouped_weight", {"tokens": k, "n": n, "k": m, "experts": experts}
    return ("grouped_input" if phase == INPUT else "grouped"), {"tokens": m, "n": n, "k": k, "experts": experts}


def _attention(backward: bool) -> Rule:
    def found(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
        (batch, heads, tokens, size), (_, kv_heads, keys, _) = ins[backward], ins[backward + 1]
        dims = {"batch": batch, "heads": heads, "tokens": tokens, "head_size": size, "kv_heads": kv_heads, "keys": keys}
        return "attention_backward" if backward else "attention", dims

    return found


def _served(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
    """A pass of serving. The lengths of different prompts are not in its shapes: such a pass is not an op of the
    database. A mixed pass attends twice, for its prompts and for its output tokens, with one query per sequence."""
    (queries, heads, size), (held, kv_heads, _), (_, _, out), (ends,) = ins
    dims = {"heads": heads, "kv_heads": kv_heads, "head_size": size}
    if size != out or phase not in (DECODE, "prefill", MIXED):
        return "", {}
    if phase == MIXED and queries == ends - 1:
        phase = DECODE
    if phase == DECODE:
        return "attention_serve", {**dims, "batch": queries, "batch_keys": held // max(queries, 1)}
    return "attention_serve", {**dims, "tokens": queries, "keys": held - queries}


def _rows(op: str, place: int = 0) -> Rule:
    def found(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
        *rows, n = ins[place]
        return op, {"tokens": prod(rows), "n": n}

    return found


def _embedding(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
    return "embedding", {"tokens": prod(ins[1]), "n": ins[0][-1]}


def _embedding_backward(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
    *rows, n = ins[0]
    return "embedding_backward", {"tokens": prod(rows), "n": n, "k": outs[0][0]}


def _flat(op: str) -> Rule:
    def found(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
        return op, {"elements": prod(ins[0]), "inputs": sum(bool(shape) for shape in ins)}

    return found


def _adamw(ins: list[list[int]], outs: list[list[int]], phase: str) -> Found:
    return "adamw", {"elements": sum(prod(shape) for shape in ins[:1])}


_SDPA: Final = "aten::_scaled_dot_product"
_BACKENDS: Final = ("flash", "efficient", "cudnn")
RULES: Final[dict[str, Rule]] = {
    "aten::mm": _product(),
    "aten::addmm": _product(1),
    "aten::linear": _linear,
    "aten::_grouped_mm": _grouped,
    **{f"{_SDPA}_{name}_attention": _attention(False) for name in _BACKENDS},
    **{f"{_SDPA}_{name}_attention_backward": _attention(True) for name in _BACKENDS},
    VARLEN: _served,
    "aten::rms_norm": _rows("rms_norm"),
    "aten::_fused_rms_norm": _rows("rms_norm"),
    "aten::layer_norm": _rows("layer_norm"),
    "aten::native_layer_norm": _rows("layer_norm"),
    "aten::rms_norm_backward": _rows("rms_norm_backward"),
    "aten::_fused_rms_norm_backward": _rows("rms_norm_backward"),
    "aten::native_layer_norm_backward": _rows("layer_norm_backward"),
    "aten::_softmax": _rows("softmax"),
    "aten::_log_softmax": _rows("log_softmax"),
    "aten::_softmax_backward_data": _rows("softmax_backward"),
    "aten::_log_softmax_backward_data": _rows("softmax_backward"),
    "aten::multinomial": _rows("multinomial"),
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    **{f"aten::{name}{end}": _flat(name) for name in ("add", "mul", "gelu", "silu", "relu") for end in ("", "_")},
    "aten::gelu_backward": _flat("gelu_backward"),
    "aten::silu_backward": _flat("silu_backward"),
    "aten::_to_copy": _flat("cast"),
    "aten::clone": _flat("copy"),
    "aten::index_select": _flat("gather"),
    "aten::_foreach_norm": _flat("norm"),
    "aten::_fused_adamw_": _adamw,
}


def shape_of(name: str, in_shapes: str, out_shapes: str, in_types: str, phase: str) -> tuple[str, str, dict[str, int]]:
    """(op, data type, dimensions) of a node; op "" if the database has none."""
    rule = RULES.get(name)
    dtype = dtype_of(in_types)
    if rule is None or not dtype:
        return "", "", {}
    try:
        op, dims = rule(listed_shapes(in_shapes), listed_shapes(out_shapes), phase)
    except (ValueError, IndexError, TypeError):
        return "", "", {}
    return (op, dtype, dims) if op and all(size >= 0 for size in dims.values()) else ("", "", {})


def shapes_of(trace: Trace, rows: I64) -> Shapes:
    """These nodes of a trace as ops of the database."""
    columns = [trace.coded(name, rows) for name in ("name", "in_shapes", "out_shapes", "in_types", "phase")]
    key = np.zeros(len(rows), np.int64)
    texts = [["", *c[1]] for c in columns]  # -1, no text, is the first
    for (codes, _), words in zip(columns, texts, strict=True):
        key = key * len(words) + codes + 1
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    picked = [[words[codes[i] + 1] for (codes, _), words in zip(columns, texts, strict=True)] for i in first.tolist()]
    distinct = Shapes.of([shape_of(*words) for words in picked])
    found = distinct.take(np.asarray(which).reshape(-1))
    return _with_figures(trace, rows, found)


def _with_figures(trace: Trace, rows: I64, found: Shapes) -> Shapes:
    """Dimensions that are in no shape, from a node's own FLOPs and bytes: how many prompts a pass reads, and what an
    optimizer moves per element."""
    op, dims = found.op.copy(), found.dims.copy()
    updates = np.flatnonzero(op == "adamw")
    moved = trace.tensor_bytes[rows[updates]] / np.maximum(dims[updates, _AT["elements"]], 1)
    dims[updates, _AT["element_bytes"]] = np.where(moved > 0, np.rint(moved), 0)
    reads = np.flatnonzero((op == "attention_serve") & (dims[:, _AT["tokens"]] > 0))
    tokens, keys = dims[reads, _AT["tokens"]], dims[reads, _AT["keys"]]
    each = 4 * dims[reads, _AT["heads"]] * dims[reads, _AT["head_size"]]
    pairs = trace.flops[rows[reads]] // np.maximum(each, 1)
    one = pairs == tokens * keys + tokens * (tokens + 1) // 2
    length = np.maximum(2 * pairs // np.maximum(tokens, 1) - 1, 1)
    alike = ~one & (keys == 0) & (tokens % length == 0) & (tokens * (length + 1) == 2 * pairs)
    op[reads[~one]] = ""
    same = reads[alike]  # prompts of equal length: attention of a batch
    op[same] = "attention"
    dims[same, _AT["batch"]] = tokens[alike] // length[alike]
    dims[same, _AT["tokens"]] = dims[same, _AT["keys"]] = length[alike]
    return Shapes(op, found.dtype, dims)


def compute_rows(trace: Trace) -> I64:
    """Nodes that compute on the device."""
    return np.flatnonzero((trace.kind == int(Kind.COMP)) & (trace.cpu != 1))
