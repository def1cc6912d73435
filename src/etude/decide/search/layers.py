"""A network as a chain of layers: what each computes, holds and passes to the next, and its time on a device.

A cut is possible after each layer, since the rest needs only the layer's output. A block of a model with a residual,
attention or branches is one layer; in a block without, each convolution or product begins a layer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure, read, text, usage_errors
from etude.cost.aten import aten_work
from etude.cost.compute import compute_time_ns
from etude.cost.energy import at_work_w
from etude.cost.ops import OpClass, OpTable, Work, width
from etude.kernels.arrays import F64, I64
from etude.machine import Device
from etude.make.generate.blocks import Block, Op, Shard, blocks_of, in_types
from etude.make.generate.model import open_model
from etude.make.generate.train import sequence_of
from etude.model.schema import UNKNOWN

PRODUCTS: Final = ("aten::convolution", "aten::mm")
"""Ops with weights at which a layer begins."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layers:
    """Layers in order, as columns; row i is layer i."""

    name: tuple[str, ...]
    flops: I64
    weight_bytes: I64
    in_bytes: I64
    """Input of a layer."""
    out_bytes: I64
    """Output to the next layer."""
    ops: OpTable
    layer: I64
    """Which layer each op belongs to."""

    def __len__(self) -> int:
        return len(self.name)

    def time_ns(self, device: Device) -> I64:
        """Time of each layer on the device, op after op."""
        return np.bincount(self.layer, self._op_ns(device), minlength=len(self)).astype(np.int64)

    def work_j(self, device: Device) -> F64:
        """Energy of each layer above the idle power of the device."""
        taken = self._op_ns(device)
        watts = at_work_w(device, self.ops, taken)
        return np.bincount(self.layer, watts * taken / 1e9, minlength=len(self)).astype(np.float64)

    def _op_ns(self, device: Device) -> I64:
        taken = compute_time_ns(device, self.ops)
        if (taken == UNKNOWN).any():
            raise UsageError(f"device `{device.name}` has no rate for what the layers compute", hint="peak: {fp32: 1T}")
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLayer:
    """A layer as a space gives it."""

    name: str = text("name of the layer")
    flops: int = figure("count", "operations", 0)
    moved_bytes: int = figure("bytes", "bytes read and written in memory", 0)
    weights_bytes: int = figure("bytes", "bytes of its weights", 0)
    out_bytes: int = figure("bytes", "bytes passed to the next layer", 0)


def given_layers(rows: Any, in_bytes: int, dtype: str, where: str) -> Layers:
    """Layers by hand: `[{name: a, flops: 1G, moved: 10MB, weights: 4MB, out: 100kB}, ...]`."""
    if not isinstance(rows, list) or not rows:
        raise UsageError("expected a list of layers", where=where, hint="[{flops: 1G, out: 100kB}, {flops: 2G}]")
    with usage_errors():
        found = [read(GivenLayer, row, f"{where}[{i}]") for i, row in enumerate(rows)]
    outs = np.array([row.out_bytes for row in found], np.int64)
    flops = np.array([row.flops for row in found], np.int64)
    return Layers(
        name=tuple(row.name or str(i) for i, row in enumerate(found)),
        flops=flops,
        weight_bytes=np.array([row.weights_bytes for row in found], np.int64),
        in_bytes=np.concatenate(([in_bytes], outs[:-1])),
        out_bytes=outs,
        ops=OpTable.plain(flops, np.array([row.moved_bytes for row in found], np.int64), dtype=dtype),
        layer=np.arange(len(found)),
    )


def model_layers(model: str, dtype: str = "fp32", *, batch: int = 1, seq: int = 0) -> Layers:
    """The forward pass of a model of the catalogue or of a file, without the loss."""
    width(dtype)  # refuses unknown data types
    pieces = list(_pieces(model, dtype, batch, seq))
    flat = [op for _, ops, _ in pieces for op in ops]
    outs = np.array([out for _, _, out in pieces], np.int64)
    layer = np.repeat(np.arange(len(pieces)), [len(ops) for _, ops, _ in pieces])
    first = _input_bytes(flat[0], dtype)
    return Layers(
        name=tuple(name for name, _, _ in pieces),
        flops=np.bincount(layer, [max(op.flops, 0) for op in flat], minlength=len(pieces)).astype(np.int64),
        weight_bytes=np.array([int(width(dtype) * sum(op.params for op in ops)) for _, ops, _ in pieces], np.int64),
        in_bytes=np.concatenate(([first], outs[:-1])),
        out_bytes=outs,
        ops=OpTable.of([_work(op) for op in flat]),
        layer=layer,
    )


def forward_blocks(model: str, dtype: str, batch: int, seq: int) -> list[Block]:
    """Blocks of a model on one device, without their losses."""
    network = open_model(model)
    shard = Shard(
        samples=batch, seq=seq or sequence_of(network), dtype=dtype, gemm_dtype=dtype, loss_dtype=dtype, training=False
    )
    found = blocks_of(network, shard)
    return [replace(block, ops=tuple(op for op in block.ops if not _is_loss(op))) for block in found]


def _is_loss(op: Op) -> bool:
    return op.part.rpartition(".")[2] == "loss" or (op.flops == UNKNOWN and op.size_bytes == UNKNOWN)


def _pieces(model: str, dtype: str, batch: int, seq: int) -> Iterator[tuple[str, tuple[Op, ...], int]]:
    """Name, ops and bytes out of each layer."""
    blocks = [block for block in forward_blocks(model, dtype, batch, seq) if block.ops]
    for block in blocks:
        last = block.out_bytes if block is not blocks[-1] else elements(block.ops[-1].out_shapes) * width(dtype)
        starts = [i for i, op in enumerate(block.ops) if op.name in PRODUCTS]
        if not straight(block.ops) or len(starts) < 2:
            yield block.name, block.ops, int(last)
            continue
        starts[0] = 0
        for number, (a, b) in enumerate(zip(starts, [*starts[1:], len(block.ops)], strict=True)):
            ops = block.ops[a:b]
            out = last if b == len(block.ops) else elements(ops[-1].out_shapes) * width(dtype)
            yield f"{block.name}.{number}", ops, int(out)


def straight(ops: Sequence[Op]) -> bool:
    """Whether each op takes only the output of the one before and weights."""
    for i, op in enumerate(ops):
        tensors = json.loads(op.in_shapes)
        if len(tensors) != (2 if op.name in PRODUCTS else 1):
            return False
        if i and prod(tensors[0]) != elements(ops[i - 1].out_shapes):
            return False
    return True


def elements(shapes: str) -> int:
    """Elements of the first tensor of a list of shapes."""
    return prod(json.loads(shapes)[0])


def _input_bytes(op: Op, dtype: str) -> int:
    if op.name == "aten::embedding":
        return 8 * prod(json.loads(op.in_shapes)[1])
    return int(elements(op.in_shapes) * width(dtype))


def _work(op: Op) -> Work:
    """As the cost model sees a node of a trace: by its class if name and shapes determine it, else by FLOPs and
    bytes."""
    found = aten_work(op.name, op.in_shapes, in_types(op, op.in_shapes))
    if found.op_class == OpClass.NONE:
        found = Work(op_class=OpClass.OTHER)
    return replace(found, flops=op.flops, size_bytes=op.size_bytes, dtype=op.dtype)
