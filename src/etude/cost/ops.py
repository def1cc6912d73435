"""FLOPs and bytes of operator families from their shapes. Unknown values stay unknown.

    matmul(512, 4096, 4096).flops == 2 * 512 * 4096 * 4096

A multiply-add counts as two. Bytes are what must be read and written at least once: inputs, weights, outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import MismatchError, UsageError
from etude.kernels.arrays import I64
from etude.model.schema import UNKNOWN

DTYPE_BYTES: Final = {
    "fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp6": 1, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip
DTYPE_NUMBER: Final = {"": 0, **{name: number for number, name in enumerate(DTYPE_BYTES, 1)}}
"""Number of a data type in a column; 0: unknown."""


class OpClass(IntEnum):
    """Families of operators with the same cost model."""

    NONE = 0
    GEMM = 1
    ATTENTION = 2
    """Many queries: bound by the matrix units."""
    ATTENTION_DECODE = 3
    """One query or few: bound by reading keys and values."""
    CONVOLUTION = 4
    NORMALISATION = 5
    SOFTMAX = 6
    ACTIVATION = 7
    """Elementwise with a transcendental function: gelu, silu, sigmoid, tanh."""
    ELEMENTWISE = 8
    COPY = 9
    REDUCTION = 10
    EMBEDDING = 11
    OPTIMIZER = 12
    OTHER = 13
    GROUPED_GEMM = 14
    """A product for each expert, with the rows routed to it, in one call: equally many for each."""
    RAGGED_GEMM = 15
    """The same if experts are not equally full; `m` is the mean number of rows."""

    @property
    def key(self) -> str:
        """Its name in a device's `ops`."""
        return self.name.lower()


MATRIX: Final = (
    OpClass.GEMM,
    OpClass.ATTENTION,
    OpClass.ATTENTION_DECODE,
    OpClass.CONVOLUTION,
    OpClass.GROUPED_GEMM,
    OpClass.RAGGED_GEMM,
)
"""Classes that run on the matrix units."""
EXPERTS: Final = (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM)
NARROW: Final = ("fp8", "int8", "fp6", "fp4")
"""Data types of at most 8 bits, whose products have scales."""
FEW: Final = 128
"""Queries of one block of attention: with more it is bound by the matrix units, however many keys there are."""
ACTIVATION_FLOPS: Final = 8
NORM_FLOPS: Final = 8
SOFTMAX_FLOPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one op. `m`, `n`, `k`, `batch` shape a GEMM or an attention; `m` rows of `n` a normalisation."""

    op_class: OpClass = OpClass.NONE
    flops: int = UNKNOWN
    size_bytes: int = UNKNOWN
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    dtype: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpTable:
    """Ops as columns; row i is op i. `flops` and `size_bytes` may be UNKNOWN, shapes may be 0."""

    op_class: NDArray[np.uint8]
    dtype: NDArray[np.uint8]
    flops: I64
    size_bytes: I64
    m: I64
    n: I64
    k: I64
    batch: I64

    def __post_init__(self) -> None:
        for f in fields(self):
            if len(getattr(self, f.name)) != len(self.op_class):
                raise MismatchError(f"ops: column `{f.name}` has {len(getattr(self, f.name))} of {len(self)} rows")

    def __len__(self) -> int:
        return len(self.op_class)

    def take(self, rows: NDArray[np.bool_] | I64) -> OpTable:
        return OpTable(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def joined(cls, tables: Sequence[OpTable]) -> OpTable:
        return cls(**{f.name: np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(cls)})

    @classmethod
    def of(cls, works: Sequence[Work]) -> OpTable:
        columns: dict[str, NDArray[np.int64]] = {
            f.name: np.array([getattr(w, f.name) for w in works], np.int64)
            for f in fields(Work)
            if f.name not in ("dtype", "op_class")
        }
        numbers = [DTYPE_NUMBER.get(w.dtype, 0) for w in works]
        op_class = np.array([int(w.op_class) for w in works], np.uint8)
        return cls(op_class=op_class, dtype=np.array(numbers, np.uint8), **columns)

    @classmethod
    def plain(cls, flops: I64, size_bytes: I64, *, dtype: str = "") -> OpTable:
        """Ops with only FLOPs and bytes known, as in most `.et` files."""
        rows = len(flops)
        zeros = np.zeros(rows, np.int64)
        return cls(
            op_class=np.full(rows, int(OpClass.OTHER), np.uint8),
            dtype=np.full(rows, DTYPE_NUMBER[dtype], np.uint8),
            flops=np.asarray(flops, np.int64),
            size_bytes=np.asarray(size_bytes, np.int64),
            m=zeros,
            n=zeros,
            k=zeros,
            batch=zeros + 1,
        )


def width(dtype: str) -> float:
    """Bytes of an element."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise UsageError(f"unknown data type `{dtype}`", hint=f"known: {', '.join(DTYPE_BYTES)}") from None


def _bytes(elements: int, dtype: str) -> int:
    return int(-(-elements * width(dtype) // 1))


def matmul(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "bf16", shared_weight: bool = False) -> Work:
    """`batch` products of m x k and k x n; `shared_weight`: one k x n for all."""
    elements = batch * (m * k + m * n) + (1 if shared_weight else batch) * k * n
    flops = 2 * batch * m * n * k
    size_bytes = _bytes(elements, dtype)
    if shared_weight:
        m, batch = m * batch, 1
    return Work(op_class=OpClass.GEMM, flops=flops, size_bytes=size_bytes, m=m, n=n, k=k, batch=batch, dtype=dtype)


def grouped(rows: int, n: int, k: int, *, experts: int, dtype: str = "bf16") -> Work:
    """A product of `rows` x k and k x n for each expert; rows are the mean."""
    return replace(matmul(rows, n, k, batch=experts, dtype=dtype), op_class=OpClass.GROUPED_GEMM)


def attention(
    queries: int,
    keys: int,
    *,
    heads: int,
    head_size: int,
    batch: int = 1,
    kv_heads: int = 0,
    causal: bool = True,
    backward: bool = False,
    dtype: str = "bf16",
) -> Work:
    """Softmax(QK')V fused, per head. Causal attention computes only the visible pairs: query i sees keys - queries + i
    + 1.

    The backward pass does five products where the forward does two (it recomputes the scores).
    """
    kv_heads = kv_heads or heads
    pairs = queries * keys
    if causal and keys >= queries:
        pairs = queries * (keys - queries) + queries * (queries + 1) // 2
    products = 5 if backward else 2
    flops = products * 2 * batch * heads * pairs * head_size
    tensors = (2 * queries * heads + 2 * keys * kv_heads) * (2 if backward else 1)
    decode = queries <= FEW and (queries == 1 or queries * 16 <= keys) and not backward
    return Work(
        op_class=OpClass.ATTENTION_DECODE if decode else OpClass.ATTENTION,
        flops=flops,
        size_bytes=_bytes(batch * head_size * tensors, dtype),
        m=queries,
        n=keys,
        k=head_size,
        batch=batch * heads,
        dtype=dtype,
    )


def convolution(
    batch: int,
    in_channels: int,
    out_channels: int,
    out_size: Sequence[int],
    kernel: Sequence[int],
    *,
    in_size: Sequence[int] = (),
    groups: int = 1,
    dtype: str = "bf16",
) -> Work:
    """Direct convolution of any number of dimensions, as a GEMM."""
    pixels, taps = batch * prod(out_size), prod(kernel) * in_channels // groups
    inputs = batch * in_channels * prod(in_size or out_size)
    elements = inputs + out_channels * taps + pixels * out_channels
    return Work(
        op_class=OpClass.CONVOLUTION,
        flops=2 * pixels * out_channels * taps,
        size_bytes=_bytes(elements, dtype),
        m=pixels,
        n=out_channels // groups,
        k=taps,
        batch=groups,
        dtype=dtype,
    )


def normalisation(rows: int, row_width: int, *, dtype: str = "bf16", affine: bool = True) -> Work:
    """Layer or RMS norm over rows; `affine`: a weight of one row is read too."""
    elements = 2 * rows * row_width + affine * row_width
    flops = NORM_FLOPS * rows * row_width
    size_bytes = _bytes(elements, dtype)
    return Work(op_class=OpClass.NORMALISATION, flops=flops, size_bytes=size_bytes, m=rows, n=row_width, dtype=dtype)


def softmax(rows: int, row_width: int, *, dtype: str = "bf16") -> Work:
    flops, size_bytes = SOFTMAX_FLOPS * rows * row_width, _bytes(2 * rows * row_width, dtype)
    return Work(op_class=OpClass.SOFTMAX, flops=flops, size_bytes=size_bytes, m=rows, n=row_width, dtype=dtype)


def elementwise(elements: int, *, inputs: int = 1, flops_each: int = 1, dtype: str = "bf16") -> Work:
    """One output with as many elements as each input."""
    return Work(
        op_class=OpClass.ELEMENTWISE,
        flops=flops_each * elements,
        size_bytes=_bytes((inputs + 1) * elements, dtype),
        dtype=dtype,
    )


def activation(elements: int, *, inputs: int = 1, row_width: int = 0, dtype: str = "bf16") -> Work:
    """gelu, silu and the like; `inputs` is 2 for a gated one. `row_width`: if a kernel gives each row to one core."""
    size_bytes, flops = _bytes((inputs + 1) * elements, dtype), ACTIVATION_FLOPS * elements
    rows = elements // row_width if row_width else 0
    return Work(op_class=OpClass.ACTIVATION, flops=flops, size_bytes=size_bytes, m=rows, n=row_width, dtype=dtype)


def copy(elements: int, *, dtype: str = "bf16") -> Work:
    return Work(op_class=OpClass.COPY, flops=0, size_bytes=_bytes(2 * elements, dtype), dtype=dtype)


def embedding(tokens: int, hidden: int, *, backward: bool = False, dtype: str = "bf16") -> Work:
    """Rows of a table, picked by 8-byte indices; backward adds into the rows (read, add, write)."""
    rows = tokens * hidden
    size_bytes = _bytes((3 if backward else 2) * rows, dtype) + 8 * tokens
    return Work(op_class=OpClass.EMBEDDING, flops=rows if backward else 0, size_bytes=size_bytes, dtype=dtype)


def optimizer(parameters: int, *, kind: str = "adamw", state_dtype: str = "fp32", dtype: str = "bf16") -> Work:
    """A fused update: parameters and gradients in `dtype`, moments and (for a 2-byte dtype) no master copy."""
    known = {"sgd": (0, 2), "momentum": (1, 4), "adamw": (2, 14)}
    if kind not in known:
        raise UsageError(f"unknown optimizer `{kind}`", hint=f"known: {', '.join(known)}")
    moments, flops_each = known[kind]
    size_bytes = _bytes(3 * parameters, dtype) + _bytes(2 * moments * parameters, state_dtype)
    return Work(op_class=OpClass.OPTIMIZER, flops=flops_each * parameters, size_bytes=size_bytes, dtype="fp32")
