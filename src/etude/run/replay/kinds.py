"""Maps classes of operators to kinds of synthetic work."""

from __future__ import annotations

from typing import Final

from etude.cost.ops import DTYPE_NUMBER, OpClass
from etude.run.replay.program import StandInKind

_KINDS: Final = {
    OpClass.GEMM: StandInKind.GEMM,
    OpClass.GROUPED_GEMM: StandInKind.GEMM,
    OpClass.RAGGED_GEMM: StandInKind.GEMM,
    OpClass.CONVOLUTION: StandInKind.GEMM,
    OpClass.ATTENTION: StandInKind.ATTENTION,
    OpClass.COPY: StandInKind.COPY,
}
_DTYPES: Final = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16",
    "fp8": "bfloat16", "int8": "int8", "fp6": "bfloat16", "fp4": "bfloat16",
}  # fmt: skip
"""Data types that PyTorch can multiply on every device: floats of 8 bits and less are played as bfloat16."""
_BY_NUMBER: Final = {number: _DTYPES.get(name, "") for name, number in DTYPE_NUMBER.items()}


def stand_in_kind(op_class: int) -> StandInKind:
    """The kind of stand-in for an operator of this class."""
    return _KINDS.get(OpClass(op_class), StandInKind.ELEMENTWISE)


def dtype_of_class(number: int, default: str = "float32") -> str:
    """PyTorch's name of the data type of a row of an OpTable; `default` if it is unknown."""
    return _BY_NUMBER.get(number, "") or default
