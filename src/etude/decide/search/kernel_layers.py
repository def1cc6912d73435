"""A convolutional network as layers of kernels: what each kernel reads, holds and outputs.

Norms are folded into the kernels before them and activations done in place, as converters for small devices do; a pool
is done where its inputs are made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import prod

from etude.base.errors import UsageError
from etude.cost.ops import width
from etude.decide.search.layers import elements, forward_blocks
from etude.make.generate.blocks import Block, Op

INPUT = -1
"""The input image, as a layer that others read."""
NOTHING = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLayer:
    """A convolution or a linear layer of `units` kernels or neurons, each with the same weights, outputs and FLOPs."""

    name: str
    units: int
    groups: int
    """Groups of channels that are read by separate kernels; 1: every kernel reads all."""
    source: int
    """The layer whose outputs it reads."""
    adds: int = NOTHING
    """The layer whose outputs are added to its own, channel by channel."""
    in_channels: int
    in_bytes: int
    made_bytes: int
    """All outputs, before a pool."""
    out_bytes: int
    weight_bytes: int
    flops: int
    linear: bool


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Channels and pixels of a layer's output."""

    channels: int
    pixels: int

    @property
    def size(self) -> int:
        return self.channels * self.pixels


def kernel_layers(model: str, dtype: str) -> list[KernelLayer]:
    found: list[KernelLayer] = []
    shapes: dict[int, LayerShape] = {}
    for block in forward_blocks(model, dtype, 1, 0):
        _walk(block, found, shapes, width(dtype), model)
    if not found:
        raise UsageError("has no convolution or linear layer", where=model)
    return found


def _walk(block: Block, found: list[KernelLayer], shapes: dict[int, LayerShape], size: float, model: str) -> None:
    """Adds the layers of a block. Inputs are recognised by their shape: the previous op's output, or the block's
    input."""
    first, pending = len(found) - 1, NOTHING
    for op in block.ops:
        last = len(found) - 1
        if op.name in ("aten::convolution", "aten::mm"):
            one, into, out = _layer(op, f"{block.name}.{len(found) - first - 1}", size)
            shapes.setdefault(INPUT, into)
            if into.size == shapes[last].size:
                source = last
            elif into.size == shapes[first].size:
                source, pending = first, last
            else:
                raise _unlike(model, block, op)
            found.append(replace(one, source=source))
            shapes[last + 1] = out
        elif last == INPUT:
            raise _unlike(model, block, op)
        elif op.name == "aten::native_batch_norm":
            found[last] = replace(found[last], weight_bytes=found[last].weight_bytes + int(size * op.params))
        elif op.name == "aten::add":
            added = pending if pending != NOTHING else first
            if shapes[added].size != shapes[last].size:
                raise _unlike(model, block, op)
            found[last], pending = replace(found[last], adds=added), NOTHING
        elif op.name == "aten::_adaptive_avg_pool2d":
            shapes[last] = LayerShape(shapes[last].channels, elements(op.out_shapes) // shapes[last].channels)
            found[last] = replace(found[last], out_bytes=int(size * shapes[last].size))
        elif op.name != "aten::gelu" or elements(op.in_shapes) != shapes[last].size:
            raise _unlike(model, block, op)


def _layer(op: Op, name: str, size: float) -> tuple[KernelLayer, LayerShape, LayerShape]:
    """The layer, and the shapes of its input and output."""
    ins, weights = json.loads(op.in_shapes)
    outs = json.loads(op.out_shapes)[0]
    if op.name == "aten::mm":
        into, out, groups = LayerShape(weights[0], 1), LayerShape(weights[1], 1), 1
    else:
        into, out = LayerShape(ins[1], prod(ins[2:])), LayerShape(outs[1], prod(outs[2:]))
        groups = ins[1] // weights[1]
    made = int(size * out.size)
    layer = KernelLayer(
        name=name, units=out.channels, groups=groups, source=INPUT, in_channels=into.channels,
        in_bytes=int(size * into.size), made_bytes=made, out_bytes=made, weight_bytes=int(size * op.params),
        flops=op.flops, linear=op.name == "aten::mm",
    )  # fmt: skip
    return layer, into, out


def _unlike(model: str, block: Block, op: Op) -> UsageError:
    return UsageError(
        f"block `{block.name}`: `{op.name}` cannot be split by kernels",
        where=model,
        hint="networks of convolutions, pools, residuals and linear layers: mobilenet-v2, vgg16, resnet-18",
    )
