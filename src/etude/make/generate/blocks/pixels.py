"""Ops on pictures: convolutions of any number of groups, batch and group norms, pooling."""

from __future__ import annotations

from etude.cost import ops as work
from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.ops import Op, Phase, bytes_of, compute, shapes
from etude.make.generate.blocks.shard import Shard
from etude.make.generate.model.parts import LayerPart


def convolution(
    local: Shard, into: int, out: int, before: tuple[int, int], after: tuple[int, int], part: LayerPart, groups: int,
    path: str,
) -> Op:  # fmt: skip
    """`before` and `after`: frames and side of the picture. Backward is a product for the input and one for weights."""
    b, dtype = local.samples, local.dtype
    kernel = (part.depth, part.kernel, part.kernel) if part.depth > 1 else (part.kernel, part.kernel)
    pixels_in, pixels_out = before[0] * before[1] ** 2, after[0] * after[1] ** 2
    w = work.convolution(b, into, out, (pixels_out,), kernel, in_size=(pixels_in,), groups=groups, dtype=dtype)
    shape = (out, into // groups, *kernel)
    ins = shapes((b, into, before[0], before[1], before[1]), shape)
    one = compute("aten::convolution", path, w, ins, shapes((b, out, after[0], after[1], after[1])))
    params = w.k * out + (out if part.bias else 0)
    back = (one.replace(phase=Phase.INPUT), one.replace(phase=Phase.WEIGHT, side=True))
    kept = bytes_of(b * into * pixels_in, dtype)
    return one.replace(backward=back, params=params, local_params=params, saved_bytes=kept)


def batch_norm(elements: int, params: int, path: str, dtype: str, *, batch: bool) -> Op:
    """Over the batch or over groups of channels: read twice, written once."""
    w = Work(op_class=OpClass.ELEMENTWISE, flops=8 * elements, size_bytes=bytes_of(3 * elements, dtype), dtype=dtype)
    name = "aten::native_batch_norm" if batch else "aten::native_group_norm"
    shape = shapes((elements,))
    grad = compute(f"{name}_backward", path, w, shape, shape, phase=Phase.INPUT)
    one = compute(name, path, w, shape, shape, params=params, local_params=params)
    return one.replace(backward=(grad,), saved_bytes=bytes_of(elements, dtype))


def pooled(before: int, after: int, path: str, dtype: str) -> Op:
    """From `before` to `after` elements: pooling, enlarging, joining."""
    moved = before + after if before else 2 * after
    w = Work(op_class=OpClass.ELEMENTWISE, flops=max(before, after), size_bytes=bytes_of(moved, dtype), dtype=dtype)
    one = compute("aten::_adaptive_avg_pool2d" if before > after else "aten::copy_", path, w,
                  shapes((before or after,)), shapes((after,)))  # fmt: skip
    return one.replace(backward=(one.replace(phase=Phase.INPUT),))
