"""Kernels of layers owned by devices: the most that each holds, what is sent, and how long a network takes.

A device gathers the inputs that its kernels read, and keeps its outputs until their last reader is done. Ranges of
kernels are in the order of devices. The first device has the picture and gets the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.base.errors import UsageError
from etude.cost.compute import compute_time_ns
from etude.cost.ops import OpTable
from etude.decide.search.kernel_layers import INPUT, NOTHING, KernelLayer
from etude.kernels.arrays import F64, I64
from etude.machine import Device
from etude.model.schema import UNKNOWN


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OwnerSplit:
    """A network on devices; (layer, device) in bytes unless noted."""

    units: I64
    """Kernels or neurons that each device owns."""
    inputs: I64
    """Its part of the layer's input."""
    outputs: I64
    """Its own part of the output."""
    weights: I64
    """Its own part of the weights."""
    kept: I64
    """Its own outputs of earlier layers that are still needed."""
    compute_ns: I64
    message_ns: I64
    """(layer + 1): messages before each layer, and of the result."""
    messages: int
    message_bytes: int

    @property
    def ram(self) -> I64:
        return self.inputs + self.outputs + self.weights + self.kept

    @property
    def latency_ns(self) -> int:
        """Layer after layer, each as slow as its slowest device."""
        return int(self.message_ns.sum() + self.compute_ns.max(axis=1).sum())


def ranges(units: I64) -> I64:
    """(device, 2): first kernel and the one after the last."""
    after = np.cumsum(units)
    return np.stack((after - units, after), axis=1)


def apportioned(total: int, shares: F64, most: I64 | None = None) -> I64:
    """This many kernels by shares, and no device more than its `most`; what fits nowhere is assigned by shares after
    all."""
    counts = _dealt(total, shares)
    if most is None or (counts <= most).all():
        return counts
    full = np.zeros(len(shares), bool)
    while True:
        full |= counts > most
        left = total - int(most[full].sum())
        if left <= 0 or full.all() or not shares[~full].any():
            return _dealt(total, np.maximum(most, 0).astype(np.float64) if most.any() else shares)
        counts = np.where(full, most, 0)
        counts[~full] = _dealt(left, shares[~full])
        if (counts <= most).all():
            return counts


def _dealt(total: int, shares: F64) -> I64:
    ends = np.floor(total * np.cumsum(shares) / shares.sum() + 1e-9).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def needed(layer: KernelLayer, own: I64) -> I64:
    """(device, 2): channels of the source that its kernels read."""
    first, after = own[:, 0], own[:, 1]
    each, channels = layer.units // layer.groups, layer.in_channels // layer.groups
    found = np.stack((first // each * channels, -(-after // each) * channels), axis=1)
    found[first == after] = 0
    return found


def _length(of: I64) -> I64:
    return of[:, 1] - of[:, 0]


def _overlap(a: I64, b: I64) -> I64:
    """(i, j): size of the overlap of a[i] and b[j]."""
    low = np.maximum(a[:, None, 0], b[None, :, 0])
    return np.maximum(np.minimum(a[:, None, 1], b[None, :, 1]) - low, 0)


def split(
    layers: Sequence[KernelLayer], units: I64, devices: Sequence[Device], dtype: str, link: tuple[int, int]
) -> OwnerSplit:
    """`link`: bytes per second of a device, in each direction, and ns of a message."""
    count = (len(layers), len(devices))
    inputs, outputs, weights, kept = (np.zeros(count, np.int64) for _ in range(4))
    own = {i: ranges(units[i]) for i in range(len(layers))}
    sent = [_sent(layers, own, i) for i in range(len(layers) + 1)]
    for i, layer in enumerate(layers):
        theirs, reads = _source(layers, own, layer), needed(layer, own[i])
        held = _length(reads) + _length(theirs) - np.diagonal(_overlap(reads, theirs))
        inputs[i] = held * layer.in_bytes // layer.in_channels
        outputs[i] = units[i] * layer.made_bytes // layer.units
        weights[i] = _weights(layer, own[i])
        for j in _alive(layers, i):
            kept[i] += _source_bytes(layers, own, j)
    return OwnerSplit(
        units=units, inputs=inputs, outputs=outputs, weights=weights, kept=kept,
        compute_ns=_compute_ns(layers, units, inputs + outputs + weights, devices, dtype),
        message_ns=np.array([_message_ns(one, link) for one in sent], np.int64),
        messages=int(sum((one > 0).sum() for one in sent)), message_bytes=int(sum(one.sum() for one in sent)),
    )  # fmt: skip


def _weights(layer: KernelLayer, own: I64) -> I64:
    """Weights of each device; they add up to those of the layer."""
    ends = own * layer.weight_bytes // layer.units
    return ends[:, 1] - ends[:, 0]


def _source(layers: Sequence[KernelLayer], own: dict[int, I64], layer: KernelLayer) -> I64:
    """Owners of the channels that the layer reads, in its channels."""
    if layer.source == INPUT:
        return _at_first(len(own[0]), layer.in_channels)
    return own[layer.source] * layer.in_channels // layers[layer.source].units


def _at_first(devices: int, channels: int) -> I64:
    found = np.full((devices, 2), channels, np.int64)
    found[0, 0] = 0
    return found


def _source_bytes(layers: Sequence[KernelLayer], own: dict[int, I64], j: int) -> I64:
    """Bytes of each device's part of a layer's output."""
    if j == INPUT:
        return np.array([layers[0].in_bytes] + [0] * (len(own[0]) - 1), np.int64)
    return _length(own[j]) * layers[j].out_bytes // layers[j].units


def _alive(layers: Sequence[KernelLayer], i: int) -> list[int]:
    """Layers before this one that it or a later one reads or adds, apart from what this one reads."""
    later = {layer.source for layer in layers[i:]} | {layer.adds for layer in layers[i:]}
    return [j for j in range(INPUT, i) if j in later and j != layers[i].source]


def _sent(layers: Sequence[KernelLayer], own: dict[int, I64], i: int) -> I64:
    """(from, to): bytes before layer i, or of the result."""
    last = i == len(layers)
    if last:
        theirs, reads, scale = own[i - 1], np.zeros_like(own[i - 1]), (layers[-1].out_bytes, layers[-1].units)
        reads[0, 1] = layers[-1].units
    else:
        theirs, reads = _source(layers, own, layers[i]), needed(layers[i], own[i])
        scale = (layers[i].in_bytes, layers[i].in_channels)
    found = _overlap(theirs, reads) * scale[0] // scale[1]
    if not last and layers[i].adds != NOTHING:
        added = layers[i].adds
        channels = layers[i].in_channels if added == INPUT else layers[added].units
        owner = _at_first(len(own[i]), channels) if added == INPUT else own[added]
        size = layers[i].in_bytes if added == INPUT else layers[added].out_bytes
        found = found + _overlap(owner, own[i]) * size // channels
    np.fill_diagonal(found, 0)
    return found


def _message_ns(sent: I64, link: tuple[int, int]) -> int:
    """A device sends its messages one after another, and receives them likewise."""
    rate, latency = link
    most = np.maximum((sent > 0).sum(axis=0), (sent > 0).sum(axis=1))
    size = np.maximum(sent.sum(axis=0), sent.sum(axis=1))
    return max(int(m) * latency + -(-int(s) * 10**9 // rate) for m, s in zip(most, size, strict=True))


def _compute_ns(layers: Sequence[KernelLayer], units: I64, moved: I64, devices: Sequence[Device], dtype: str) -> I64:
    found = np.zeros(units.shape, np.int64)
    whole = np.array([(layer.flops, layer.units) for layer in layers], np.int64)
    for d, device in enumerate(devices):
        flops = units[:, d] * whole[:, 0] // whole[:, 1]
        taken = compute_time_ns(device, OpTable.plain(flops, moved[:, d], dtype=dtype))
        if (taken == UNKNOWN).any():
            raise UsageError(f"device `{device.name}` has no rate for what the layers compute", hint="peak: {int8: 2G}")
        found[:, d] = np.where(units[:, d] > 0, taken, 0)
    return found
