"""Columns of the operator database, and what each op's dimensions mean.

A key is (device, backend, op, data type, fixed dimensions): what a model and its parallelism fix. A key has a curve
over free dimensions: what requests decide. A dimension that an op does not have is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import MismatchError
from etude.cost import ops as work
from etude.cost.ops import DTYPE_NUMBER, OpClass, OpTable, Work, width
from etude.kernels.arrays import I64

FIXED: Final = ("n", "k", "heads", "kv_heads", "head_size", "experts", "inputs", "element_bytes")
FREE: Final = ("tokens", "keys", "batch", "batch_keys", "elements")
DIMS: Final = (*FIXED, *FREE)
ATTENTION, ATTENTION_BACKWARD, SERVE = "attention", "attention_backward", "attention_serve"
NAMES: Final = ("device", "backend", "op", "dtype")
COLUMNS: Final = (*NAMES, *DIMS, "time_us", "repeat", "source")
"""Columns of a database and of a file of points, in this order. Times are in microseconds."""


@dataclass(frozen=True, slots=True)
class OpKind:
    """An op of the database: the dimensions that it has."""

    fixed: tuple[str, ...]
    free: tuple[str, ...]
    instead: tuple[str, ...] = ()
    """Ops whose curve of the same dimensions can be used instead."""
    doc: str = ""


def _rows(doc: str, *instead: str) -> OpKind:
    return OpKind(("n",), ("tokens",), instead, doc)


def _flat(doc: str) -> OpKind:
    return OpKind(("inputs",), ("elements",), (), doc)


_HEADS: Final = ("heads", "kv_heads", "head_size")
OPS: Final[dict[str, OpKind]] = {
    "linear": OpKind(("n", "k"), ("tokens",), (), "tokens x k by a weight of n rows of k"),
    "linear_input": OpKind(("n", "k"), ("tokens",), ("linear",), "gradient of an input: tokens x k by k x n"),
    "linear_weight": OpKind(("n", "k"), ("tokens",), (), "gradient of a weight: k x tokens by tokens x n"),
    "grouped": OpKind(("experts", "n", "k"), ("tokens",), (), "a product for each expert, of `tokens` rows each"),
    "grouped_input": OpKind(("experts", "n", "k"), ("tokens",), ("grouped",), "gradient of its input"),
    "grouped_weight": OpKind(("experts", "n", "k"), ("tokens",), (), "gradient of its weights"),
    ATTENTION: OpKind(_HEADS, ("batch", "tokens", "keys"), (), "causal, of `batch` sequences of `tokens` queries"),
    ATTENTION_BACKWARD: OpKind(_HEADS, ("batch", "tokens", "keys"), (), "its backward pass"),
    SERVE: OpKind(
        _HEADS,
        ("batch", "batch_keys", "tokens", "keys"),
        (),
        "one pass: a prompt's `tokens` after `keys` earlier ones, and `batch` tokens out, each with `batch_keys`",
    ),
    "experts_serve": OpKind(
        ("experts", "n", "k"),
        ("tokens", "batch"),
        (),
        "a layer of experts: `tokens` in total, `batch` experts with work",
    ),
    "rms_norm": _rows("of rows of n", "layer_norm"),
    "layer_norm": _rows("of rows of n", "rms_norm"),
    "rms_norm_backward": _rows("its backward pass", "layer_norm_backward"),
    "layer_norm_backward": _rows("its backward pass", "rms_norm_backward"),
    "softmax": _rows("of rows of n", "log_softmax"),
    "log_softmax": _rows("of rows of n", "softmax"),
    "softmax_backward": _rows("its backward pass"),
    "multinomial": _rows("one choice from each row of n"),
    "embedding": _rows("rows of n from a table"),
    "embedding_backward": OpKind(("n", "k"), ("tokens",), (), "rows of n added into a table of k rows"),
    "act": OpKind(("n", "inputs"), ("tokens",), (), "an activation as a kernel of rows of n"),
    "add": _flat("elementwise"),
    "mul": _flat("elementwise"),
    "gelu": _flat("elementwise"),
    "silu": _flat("elementwise; of 2 inputs: times the second, as a gated layer has it"),
    "relu": _flat("elementwise"),
    "gelu_backward": _flat("elementwise"),
    "silu_backward": _flat("elementwise; of 3 inputs: gradients of both inputs of a gated layer"),
    "cast": _flat("16 bits to 32 or back"),
    "copy": _flat("elementwise"),
    "gather": _flat("rows in a different order"),
    "norm": _flat("one norm of many tensors"),
    "adamw": OpKind(("element_bytes",), ("elements",), (), "fused update; bytes moved for a parameter"),
    "host": OpKind((), (), (), "the host's time to issue one op of a training step"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Ops by their dimensions: columns, row i is op i. `op` is "" if not in the database."""

    op: NDArray[np.str_]
    dtype: NDArray[np.str_]
    dims: I64
    """Rows by `DIMS`."""

    def __post_init__(self) -> None:
        if not len(self.op) == len(self.dtype) == len(self.dims):
            raise MismatchError(f"shapes: {len(self.op)} ops, {len(self.dtype)} types, {len(self.dims)} dimensions")

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: NDArray[np.bool_] | I64) -> Shapes:
        return Shapes(self.op[rows], self.dtype[rows], self.dims[rows])

    @classmethod
    def of(cls, rows: list[tuple[str, str, dict[str, int]]]) -> Shapes:
        """From (op, data type, dimensions) of each."""
        dims = np.array([[d.get(name, 0) for name in DIMS] for _, _, d in rows], np.int64).reshape(len(rows), len(DIMS))
        return cls(np.array([r[0] for r in rows], np.str_), np.array([r[1] for r in rows], np.str_), dims)

    def column(self, name: str) -> I64:
        return self.dims[:, DIMS.index(name)]


def distinct(shapes: Shapes) -> tuple[I64, I64]:
    """The first row of each distinct shape, and the index of each row among these."""
    texts = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in (shapes.op, shapes.dtype)]
    _, first, which = np.unique(packed(np.column_stack([*texts, shapes.dims])), return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def packed(rows: NDArray[np.generic]) -> NDArray[np.void]:
    """Each row of a matrix as one comparable value."""
    rows = np.ascontiguousarray(rows)
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)


def work_of(op: str, dtype: str, d: dict[str, int]) -> Work:
    """FLOPs, bytes and class of one op of the database, except passes of serving."""
    if op.startswith("linear"):
        rows, n, k = d["tokens"], d["n"], d["k"]
        if op == "linear_weight":
            return work.matmul(k, n, rows, dtype=dtype)
        return work.matmul(rows, n, k, dtype=dtype)
    if op == "experts_serve":  # gate, up and down: two products into n, one back
        each = max(-(-d["tokens"] // max(d["batch"], 1)), 1)
        return work.grouped(each, 3 * d["n"], d["k"], experts=max(d["batch"], 1), dtype=dtype)
    if op.startswith("grouped"):
        rows, n, k = d["tokens"], d["n"], d["k"]
        m, n, k = (k, n, rows) if op == "grouped_weight" else (rows, n, k)
        return work.grouped(m, n, k, experts=d["experts"], dtype=dtype)
    if op.startswith("attention"):
        return work.attention(
            d["tokens"], d["keys"], heads=d["heads"], kv_heads=d["kv_heads"], head_size=d["head_size"],
            batch=d["batch"], backward=op.endswith("backward"), dtype=dtype,
        )  # fmt: skip
    if "norm" in op and op != "norm":
        return _back(work.normalisation(d["tokens"], d["n"], dtype=dtype), op)
    if "softmax" in op or op == "multinomial":
        return _back(work.softmax(d["tokens"], d["n"], dtype=dtype), op)
    if op.startswith("embedding"):
        done = work.embedding(d["tokens"], d["n"], backward=op.endswith("backward"), dtype=dtype)
        table = int(d["k"] * d["n"] * width(dtype))  # written whole
        return Work(op_class=done.op_class, flops=done.flops, size_bytes=done.size_bytes + table, dtype=dtype)
    return _elementwise(op, dtype, d)


def _back(done: Work, op: str) -> Work:
    if not op.endswith("backward"):
        return done
    return Work(op_class=done.op_class, flops=2 * done.flops, size_bytes=done.size_bytes * 3 // 2, m=done.m, n=done.n,
                dtype=done.dtype)  # fmt: skip


def _served(shapes: Shapes) -> OpTable:
    """Passes of serving, by columns, since there are many."""
    d = {name: shapes.column(name) for name in DIMS}
    tokens, keys, batch, batch_keys = d["tokens"], d["keys"], d["batch"], d["batch_keys"]
    pairs = tokens * keys + tokens * (tokens + 1) // 2 + batch * batch_keys
    held = np.where(tokens > 0, tokens + keys, 0) + batch * batch_keys
    tensors = 2 * (tokens + batch) * d["heads"] + 2 * held * d["kv_heads"]
    widths = np.array([width(name) for name in shapes.dtype.tolist()])
    reads = tokens > 0
    return OpTable(
        op_class=np.where(reads, np.uint8(OpClass.ATTENTION), np.uint8(OpClass.ATTENTION_DECODE)),
        dtype=np.array([DTYPE_NUMBER[name] for name in shapes.dtype.tolist()], np.uint8),
        flops=4 * d["heads"] * d["head_size"] * pairs,
        size_bytes=(tensors * d["head_size"] * widths).astype(np.int64),
        m=np.where(reads, tokens, 1),
        n=np.where(reads, keys + tokens, batch_keys),
        k=d["head_size"],
        batch=d["heads"] * np.where(reads, 1, np.maximum(batch, 1)),
    )


def _elementwise(op: str, dtype: str, d: dict[str, int]) -> Work:
    if op == "adamw":
        moved = d["elements"] * d["element_bytes"]
        return Work(op_class=OpClass.OPTIMIZER, flops=14 * d["elements"], size_bytes=moved, dtype="fp32")
    if op == "act":
        return work.activation(d["tokens"] * d["n"], inputs=d["inputs"], row_width=d["n"], dtype=dtype)
    if op == "host":
        return Work()
    elements, inputs = d["elements"], max(d["inputs"], 1)
    if op == "cast":
        return Work(op_class=OpClass.COPY, flops=0, size_bytes=6 * elements, dtype=dtype)
    if op in ("copy", "gather"):
        return work.copy(elements, dtype=dtype)
    if op == "norm":
        size = int(elements * width(dtype))
        return Work(op_class=OpClass.REDUCTION, flops=2 * elements, size_bytes=size, dtype=dtype)
    if op in ("gelu", "silu", "gelu_backward", "silu_backward"):
        return work.activation(elements, inputs=inputs + (op == "silu_backward"), dtype=dtype)
    return work.elementwise(elements, inputs=inputs, dtype=dtype)


def works_of(shapes: Shapes) -> OpTable:
    """Their FLOPs, bytes and classes, row by row; unknown for ops that are not in the database."""
    passes = np.flatnonzero(shapes.op == SERVE)
    others = np.flatnonzero(shapes.op != SERVE)
    rest = shapes.take(others)
    first, which = distinct(rest)
    done = [
        work_of(op, dtype, dict(zip(DIMS, dims, strict=True))) if op else Work()
        for op, dtype, dims in zip(
            rest.op[first].tolist(), rest.dtype[first].tolist(), rest.dims[first].tolist(), strict=True
        )
    ]
    both = OpTable.joined([OpTable.of(done).take(which), _served(shapes.take(passes))])
    return both.take(np.argsort(np.concatenate([others, passes]), kind="stable"))
