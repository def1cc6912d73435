"""Products, attention and convolution of PyTorch: the operators that run on matrix units, as `cost.ops` counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, Final

from etude.cost import ops
from etude.cost.aten_inputs import Inputs, Shape
from etude.cost.ops import Work

Family = Callable[[Inputs], Work]

# -- products ----------------------------------------------------------------------------------------------------------


def _mm(first: int) -> Family:
    def work(i: Inputs) -> Work:
        (m, k), (_, n) = i.shape(first), i.shape(first + 1)
        return ops.matmul(m, n, k, dtype=i.dtype)

    return work


def _bmm(first: int) -> Family:
    def work(i: Inputs) -> Work:
        (b, m, k), (_, _, n) = i.shape(first), i.shape(first + 1)
        return ops.matmul(m, n, k, batch=b, dtype=i.dtype)

    return work


def _grouped(i: Inputs) -> Work:
    """Products of experts, whose rows are concatenated if a side has two dimensions; `offs` has their ends, and no
    shape says that all have the same number."""
    left, right = i.shape(0), i.shape(1)
    count = next((s[0] for s in (left, right) if len(s) == 3), 0) or i.shape(2)[0]
    rows = left[-2] if len(left) == 3 or len(right) == 2 else -(-left[0] // count)
    deep = left[-1] if len(left) == 3 or len(right) == 3 else -(-left[1] // count)
    columns = right[-1] if len(right) == 3 or len(left) == 2 else -(-right[1] // count)
    work = ops.grouped(rows, columns, deep, experts=count, dtype=i.dtype)
    return replace(work, op_class=ops.OpClass.RAGGED_GEMM) if len(left) == 2 and len(right) == 3 else work


def _linear(i: Inputs) -> Work:
    *rows, k = i.shape(0)
    return ops.matmul(prod(rows), i.shape(1)[0], k, dtype=i.dtype)


def _matmul(i: Inputs) -> Work:
    """Any number of dimensions; a matrix on the right is shared by all."""
    *rows, k = i.shape(0)
    *batch, _, n = i.shape(1)
    if not batch:
        return ops.matmul(prod(rows), n, k, dtype=i.dtype)
    return ops.matmul(rows[-1], n, k, batch=max(prod(rows[:-1]), prod(batch)), dtype=i.dtype)


def _mv(first: int) -> Family:
    def work(i: Inputs) -> Work:
        m, k = i.shape(first)
        return ops.matmul(m, 1, k, dtype=i.dtype)

    return work


def _dot(i: Inputs) -> Work:
    (k,) = i.shape(0)
    return ops.matmul(1, 1, k, dtype=i.dtype)


# -- attention ---------------------------------------------------------------------------------------------------------

_SDPA: Final = "aten::_scaled_dot_product"
CAUSAL: Final = {
    "aten::scaled_dot_product_attention": 5,
    f"{_SDPA}_flash_attention": 4,
    f"{_SDPA}_flash_attention_for_cpu": 4,
    f"{_SDPA}_efficient_attention": 6,
    f"{_SDPA}_cudnn_attention": 6,
    f"{_SDPA}_fused_attention_overrideable": 5,
    f"{_SDPA}_flash_attention_backward": 11,
    f"{_SDPA}_flash_attention_for_cpu_backward": 7,
    f"{_SDPA}_efficient_attention_backward": 11,
    f"{_SDPA}_cudnn_attention_backward": 14,
    f"{_SDPA}_fused_attention_overrideable_backward": 13,
    "aten::_cudnn_attention_forward": 10,
    "aten::_cudnn_attention_backward": 14,
    "aten::_flash_attention_forward": 8,
    "aten::_flash_attention_backward": 11,
    "aten::_efficient_attention_forward": 9,
    "aten::_efficient_attention_backward": 14,
}
"""Attention, with the position of the argument that says whether it is causal."""
VARLEN: Final = "flash_attn::varlen_fwd"
"""Attention of sequences of different lengths in one call, as in serving engines."""
_FULL, _FROM_FIRST, _FROM_LAST = 0, 1, 2
"""Which pairs count: all; key j for query i where j <= i; where j <= i + keys - queries, so that the last sees all."""


def mask_of(name: str, values: list[Any]) -> int | None:
    """Which pairs an attention computes, by its arguments; None if they were not recorded."""
    place = CAUSAL[name]
    given = str(values[place]).strip().lower() if place < len(values) else ""
    if "_efficient_attention_" in name and _SDPA not in name:  # a number: which mask
        return int(given) if given in ("0", "1", "2") else None
    causal = _FROM_LAST if "_flash_attention_" in name and _SDPA not in name else _FROM_FIRST
    return {"true": causal, "false": _FULL}.get(given)


def pairs(mask: int, queries: int, keys: int) -> int:
    """Pairs of a query and a key that are computed under a mask."""
    if mask == _FULL:
        return queries * keys
    both = min(queries, keys)
    triangle = both * (both + 1) // 2
    if mask == _FROM_FIRST:
        return triangle + max(queries - keys, 0) * keys
    return triangle + max(keys - queries, 0) * queries


def _attention(name: str) -> Family:
    """batch x heads x length x head size, or heads after the length. If it is unknown whether it is causal, all pairs
    count: FLOPs are then an upper bound."""
    backward, heads_last = name.endswith("backward"), _SDPA not in name and "cudnn" not in name and "scaled" not in name
    first = 1 if backward else 0

    def work(i: Inputs) -> Work:
        query, key = i.shape(first), i.shape(first + 1)
        if heads_last:
            (b, queries, h, d), (_, keys, kv_heads, _) = query, key
        else:
            (b, h, queries, d), (_, kv_heads, keys, _) = query, key
        full = ops.attention(
            queries, keys, heads=h, head_size=d, batch=b, kv_heads=kv_heads, causal=False, backward=backward,
            dtype=i.dtype,
        )  # fmt: skip
        mask = mask_of(name, i.values)
        mask = (_FROM_LAST if i.causal else _FULL) if mask is None and i.causal is not None else mask
        return replace(full, flops=full.flops // max(queries * keys, 1) * pairs(mask or _FULL, queries, keys))

    return work


def _varlen(i: Inputs) -> Work:
    """Attention of concatenated sequences: length x heads x head size, and a fourth tensor with the end of each, one
    longer than there are sequences. They count as equally long, and as causal."""
    (queries, h, d), (keys, kv_heads, _) = i.shape(0), i.shape(1)
    (ends,) = i.shape(3)
    count = max(ends - 1, 1)
    return ops.attention(
        -(-queries // count), -(-keys // count), heads=h, head_size=d, batch=count, kv_heads=kv_heads, dtype=i.dtype
    )


# -- convolution -------------------------------------------------------------------------------------------------------


def _at(given: list[int], axis: int) -> int:
    return given[axis] if len(given) > 1 else given[0]


def _convolved(size: Shape, kernel: Shape, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    return [
        (n + 2 * _at(padding, a) - _at(dilation, a) * (k - 1) - 1) // _at(stride, a) + 1
        for a, (n, k) in enumerate(zip(size, kernel, strict=True))
    ]


def _padding(i: Inputs, argument: int, kernel: Shape, dilation: list[int]) -> list[int]:
    """Numbers, or `valid`; with `same` the image keeps its size: half of the filter's reach."""
    text = str(i.values[argument])
    if text == "valid":
        return [0]
    if text == "same":
        reach = [_at(dilation, a) * (k - 1) for a, k in enumerate(kernel)]
        if any(r % 2 for r in reach):
            raise ValueError("uneven padding")
        return [r // 2 for r in reach]
    return i.numbers(argument)


def _convolution(stride: int, padding: int, dilation: int, groups: int, transposed: int = 0) -> Family:
    """Takes the position of each argument."""

    def work(i: Inputs) -> Work:
        (batch, channels, *size), (out, _, *kernel) = i.shape(0), i.shape(1)
        if transposed and str(i.values[transposed]) == "True":
            return _transposed(stride, padding, dilation, transposed + 1, groups)(i)
        spread = i.numbers(dilation)
        made = _convolved(size, kernel, i.numbers(stride), _padding(i, padding, kernel, spread), spread)
        if any(n <= 0 for n in made):
            raise ValueError("no output")
        return ops.convolution(batch, channels, out, made, kernel, in_size=size, groups=i.number(groups), dtype=i.dtype)

    return work


def _transposed(stride: int, padding: int, dilation: int, more: int, groups: int) -> Family:
    """Each pixel of the input meets all of its filters, as each pixel of the output of a convolution does."""

    def work(i: Inputs) -> Work:
        (batch, channels, *size), (_, of_group, *kernel) = i.shape(0), i.shape(1)
        steps, pads, spread, extra = (i.numbers(argument) for argument in (stride, padding, dilation, more))
        made = [
            (n - 1) * _at(steps, a) - 2 * _at(pads, a) + _at(spread, a) * (k - 1) + _at(extra, a) + 1
            for a, (n, k) in enumerate(zip(size, kernel, strict=True))
        ]
        parts = i.number(groups)
        return ops.convolution(
            batch, of_group * parts, channels, size, kernel, in_size=made, groups=parts, dtype=i.dtype
        )

    return work


def _convolution_backward(i: Inputs) -> Work:
    """One product for the input's gradient, one for the weight's, each as large as forward; the last list says
    which."""
    (batch, out, *made), (_, channels, *size), (_, _, *kernel) = i.shape(0), i.shape(1), i.shape(2)
    if str(i.values[7]) == "True":  # transposed: the input is the output of a convolution
        out, made, channels, size = channels, size, out, made
    forward = ops.convolution(batch, channels, out, made, kernel, in_size=size, groups=i.number(9), dtype=i.dtype)
    mask = i.values[10]
    wanted = str(mask).replace("[", "").replace("]", "").split(",")[:2]
    count = sum(text.strip().lower() == "true" for text in wanted)
    return replace(forward, flops=count * forward.flops, size_bytes=count * forward.size_bytes)


MATRIX_FAMILIES: Final[dict[str, Family]] = {
    "aten::mm": _mm(0),
    "aten::_scaled_mm": _mm(0),
    "aten::addmm": _mm(1),
    "aten::addmm_": _mm(1),
    "aten::_addmm_activation": _mm(1),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1),
    "aten::baddbmm_": _bmm(1),
    "aten::_grouped_mm": _grouped,
    "aten::mv": _mv(0),
    "aten::addmv": _mv(1),
    "aten::dot": _dot,
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::matmul": _matmul,
    **{name: _attention(name) for name in CAUSAL},
    VARLEN: _varlen,
    "aten::conv1d": _convolution(3, 4, 5, 6),
    "aten::conv2d": _convolution(3, 4, 5, 6),
    "aten::conv3d": _convolution(3, 4, 5, 6),
    "aten::convolution": _convolution(3, 4, 5, 8, transposed=6),
    "aten::_convolution": _convolution(3, 4, 5, 8, transposed=6),
    "aten::convolution_overrideable": _convolution(3, 4, 5, 8, transposed=6),
    "aten::cudnn_convolution": _convolution(3, 2, 4, 5),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5, 6),
    "aten::miopen_convolution": _convolution(4, 3, 5, 6),
    "aten::miopen_depthwise_convolution": _convolution(4, 3, 5, 6),
    "aten::miopen_convolution_relu": _convolution(3, 4, 5, 6),
    "aten::mkldnn_convolution": _convolution(4, 3, 5, 6),
    "aten::cudnn_convolution_transpose": _transposed(4, 2, 5, 3, 6),
    "aten::miopen_convolution_transpose": _transposed(5, 3, 6, 4, 7),
    "aten::convolution_backward": _convolution_backward,
}
"""Operators whose FLOPs a roofline needs; if shapes were not recorded, it reports that."""
