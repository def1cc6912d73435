"""Images and video as blocks: ViT, DiT, and convolutional networks like ResNet."""

from __future__ import annotations

from math import prod

from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.halo import tile, with_halo
from etude.make.generate.blocks.ops import Op, Phase, Stream, add, bytes_of, compute, exchanged, norm, pointwise, shapes
from etude.make.generate.blocks.shard import Block, Shard, plain
from etude.make.generate.blocks.transformer import feed_forward, layer, normed, self_attention
from etude.make.generate.model.shape import Model
from etude.model.schema import Collective


def vit(model: Model, local: Shard) -> list[Block]:
    """Patches and a class token, layers with full attention, a classifier."""
    out = bytes_of(local.rows * model.hidden, local.dtype)
    pixels = model.channels * model.patch**2 * model.frames
    table = local.seq * model.hidden + model.hidden  # positions, and the class token
    embed = plain(local, local.rows, pixels, model.hidden, "patches", params=pixels * model.hidden + model.hidden)
    embed.append(
        add(local.rows * model.hidden, "positions", dtype=local.dtype).replace(params=table, local_params=table)
    )
    ops = tuple(layer(model, local, experts=False, causal=False))
    size = model.hidden * model.classes + model.classes
    head = [
        normed(model, local, "norm"),
        *plain(local, local.samples, model.hidden, model.classes, "classes", params=size),
    ]
    return [
        Block("embedding", tuple(embed), out),
        *(Block(f"layers.{i}", ops, out) for i in range(model.layers)),
        Block("head", (*head, *classify(local.samples, model.classes)), 0),
    ]


def classify(samples: int, classes: int) -> list[Op]:
    w = work.softmax(samples, classes, dtype="fp32")
    shape = shapes((samples, classes))
    back = compute("aten::_softmax_backward_data", "loss", w, shape, shape, phase=Phase.INPUT)
    return [compute("aten::_log_softmax", "loss", w, shape, shape, backward=(back,), saved_bytes=4 * samples * classes)]


def dit(model: Model, local: Shard) -> list[Block]:
    """Diffusion transformer: layers modulated by a small network of time and class."""
    h, rows = model.hidden, local.rows
    out = bytes_of(rows * h, local.dtype)
    pixels = model.channels * model.patch**2
    table = model.classes * h
    embed = [
        *plain(local, rows, pixels, h, "patches", params=pixels * h + h),
        *plain(local, local.samples, 256, h, "time.in", params=256 * h + h),
        *plain(local, local.samples, h, h, "time.out", params=h * h + h),
        add(local.samples * h, "label", dtype=local.dtype).replace(params=table, local_params=table),
    ]
    bare = norm(rows, h, "norm", dtype=local.dtype, kind="layer", params=0)
    scale = pointwise(rows * h, "modulate", dtype=local.dtype, inputs=2)
    residual = add(rows * h, "residual", dtype=local.dtype, backward=True)
    ops = (
        *plain(local, local.samples, h, 6 * h, "modulation", params=6 * h * h + 6 * h),
        bare, scale, *self_attention(model, local, causal=False), scale, residual,
        bare, scale, *feed_forward(model, local), scale, residual,
    )  # fmt: skip
    last = (model.out_channels or model.channels) * model.patch**2
    head = [
        *plain(local, local.samples, h, 2 * h, "modulation", params=2 * h * h + 2 * h),
        bare,
        scale,
        *plain(local, rows, h, last, "pixels", params=h * last + last),
        pointwise(rows * last, "loss", dtype=local.dtype, inputs=2),
    ]
    layers = [Block(f"layers.{i}", ops, out) for i in range(model.layers)]
    return [Block("embedding", tuple(embed), out), *layers, Block("head", tuple(head), 0)]


def alone(local: Shard, what: str, *, tiled: bool = False) -> None:
    """Refuses parallel axes that a family does not support; `tiled`: pictures may be cut into tiles."""
    if local.tp > 1 or local.cp > (local.domain[0] * local.domain[1] if tiled else 1):
        raise UsageError(f"{what} cannot be split over tensor- or context-parallel ranks", hint="--tp 1 --cp 1")


def convnet(model: Model, local: Shard) -> list[Block]:
    """Bottleneck blocks: 1x1, 3x3, 1x1, batch norm after each, a shortcut where the shape changes."""
    alone(local, "convolutions", tiled=True)
    side = model.image // 2
    stem = [*convolution(local, model.channels, 64, model.image, 2, 7, "stem"), _pool(local, 64, side)]
    side //= 2
    found = [Block("stem", tuple(stem), bytes_of(local.samples * 64 * prod(tile(local, side)), local.dtype))]
    width, into, number = 64, 64, 0
    for stage, depth in enumerate(model.depths):
        for i in range(depth):
            stride = 2 if i == 0 and stage else 1
            ops = bottleneck(local, into, width, side, stride)
            side //= stride
            into = 4 * width
            found.append(
                Block(
                    f"layers.{number}",
                    tuple(ops),
                    bytes_of(local.samples * into * prod(tile(local, side)), local.dtype),
                )
            )
            number += 1
        width *= 2
    size = into * model.classes + model.classes
    head = plain(local, local.samples, into, model.classes, "classes", params=size)
    means = bytes_of(local.samples * into, local.dtype)  # over all tiles
    whole = exchanged(Collective.ALL_REDUCE, "cp", local.cp, means, "pool", Stream.CONTEXT, dtype=local.dtype)
    return [
        *found,
        Block("head", (_pool(local, into, side), *whole, *head, *classify(local.samples, model.classes)), 0),
    ]


def bottleneck(local: Shard, into: int, width: int, side: int, stride: int) -> list[Op]:
    ops = convolution(local, into, width, side, 1, 1, "conv1")
    ops += convolution(local, width, width, side, stride, 3, "conv2")
    ops += convolution(local, width, 4 * width, side // stride, 1, 1, "conv3")
    if into != 4 * width or stride > 1:
        ops += convolution(local, into, 4 * width, side, stride, 1, "shortcut")
    elements = local.samples * 4 * width * prod(tile(local, side // stride))
    return [*ops, add(elements, "sum", dtype=local.dtype, backward=True)]


def convolution(local: Shard, into: int, out: int, side: int, stride: int, kernel: int, part: str) -> list[Op]:
    """A convolution with its batch norm and activation."""
    b, dtype = local.samples, local.dtype
    mine, after = tile(local, side), tile(local, side // stride)
    w = work.convolution(b, into, out, after, (kernel, kernel), in_size=mine, dtype=dtype)
    ins, outs = shapes((b, into, *mine), (out, into, kernel, kernel)), shapes((b, out, *after))
    one = compute("aten::convolution", part, w, ins, outs)
    back = (one.replace(phase=Phase.INPUT), one.replace(phase=Phase.WEIGHT, side=True))
    params = out * into * kernel * kernel
    one = one.replace(
        backward=back, params=params, local_params=params, saved_bytes=bytes_of(b * into * prod(mine), dtype)
    )
    elements = b * out * prod(after)
    n = Work(op_class=OpClass.ELEMENTWISE, flops=8 * elements, size_bytes=bytes_of(3 * elements, dtype), dtype=dtype)
    shape = shapes((elements,))
    grad = compute("aten::native_batch_norm_backward", part, n, shape, shape, phase=Phase.INPUT)
    norm_op = compute("aten::native_batch_norm", part, n, shape, shape, params=2 * out, local_params=2 * out)
    ops = [one, norm_op.replace(backward=(grad,), saved_bytes=bytes_of(elements, dtype))]
    return with_halo(local, ops, into, mine, kernel // 2)


def _pool(local: Shard, channels: int, side: int) -> Op:
    return pointwise(local.samples * channels * prod(tile(local, side)), "pool", dtype=local.dtype)
