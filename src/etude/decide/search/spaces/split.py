"""Kernels or neurons of a network's layers, owned by small devices.

search: split
model: mobilenet-v2
dtype: int8
devices: mcu                       # or a list: [mcu, mcu, {name: large, ...}]
count: 1..8                        # the first this many of them
ram: 1MB                           # of each; else the memory of the device
link: {rate: 100Mb/s, latency: 100us}
split: [layer, kernel, neuron]     # whole layers; kernels of convolutions; and neurons of linear layers
shares: equal                      # speed; fit: by speed as far as the RAM goes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure, read, usage_errors
from etude.base.grammar import line
from etude.decide.search.found import Found, Row
from etude.decide.search.kernel_layers import KernelLayer, kernel_layers
from etude.decide.search.owners import OwnerSplit, apportioned, split
from etude.decide.search.request import SearchRequest, SpaceFile
from etude.decide.search.solver import ALL, Answer, CandidateSpace, Trials
from etude.decide.search.spaces.chain import device_of
from etude.kernels.arrays import F64, I64
from etude.machine import Device

SPLITS: Final = ("layer", "kernel", "neuron")
SHARES: Final = ("equal", "speed", "fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLink:
    rate_bytes_per_s: int = figure("bandwidth", "bandwidth of each device to the switch, in each direction", 12_500_000)
    latency_ns: int = figure("time", "latency of a message", 100_000, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSpace:
    model: str = figure("text", "network of convolutions")
    dtype: str = figure("text", "data type of weights and activations", "int8")
    devices: Any = figure("one", "a name, or a list of names, files and keys of a device", "mcu")
    count: Any = figure("one", "1..8, a number, or a list of numbers", None)
    ram_bytes: int = figure("bytes", "memory of each device; 0: all of it", 0)
    link: SplitLink = figure("one", "link to a switch", SplitLink(), of=SplitLink)
    split: Any = figure("one", "layer, kernel, neuron, or several", "neuron")
    shares: Any = figure("one", "equal, speed, fit, or several", "equal")


def space(given: SpaceFile, asked: SearchRequest) -> OwnerSpace:
    with usage_errors():
        return OwnerSpace(given, read(SplitSpace, given.keys, given.where))


Way = tuple[str, str, int]
"""What is split, by which shares, over how many devices."""


class OwnerSpace(CandidateSpace[Way]):
    """Ways to split a network. One that does not fit has figures too, but no row."""

    methods, rest = ALL, "too large for the RAM"

    def __init__(self, given: SpaceFile, split: SplitSpace) -> None:
        self.layers = kernel_layers(given.file_or_name(split.model), split.dtype)
        self.devices, counts = _devices(given, split)
        splits = _words(split.split, SPLITS, f"{given.where}: split")
        shares = _words(split.shares, SHARES, f"{given.where}: shares")
        self.split, self.listed = split, list(product(splits, shares, counts))
        self.size, self.scores = len(self.listed), {"latency_ms": 1, "peak_ram_bytes": 1}
        self.every: dict[Way, tuple[Row, OwnerSplit]] = {}

    def rows(self, some: Sequence[Way], limit: float) -> list[Answer]:
        for kind, share, count in some:
            devices = self.devices[:count]
            ram = np.array([self.split.ram_bytes or device.memory_bytes for device in devices], np.int64)
            done = _split(self.layers, devices, kind, share, ram, self.split)
            self.every[kind, share, count] = _row(done, ram, kind, share), done
        return [row if row["feasible"] else self.rest for row, _ in (self.every[way] for way in some)]

    def found(self, trials: Trials[Way]) -> Found:
        rows = [row for row, _ in self.every.values()]
        least = min(self.every, key=lambda way: self.every[way][0]["peak_ram_bytes"])
        best, done = self.every[trials.ranked()[0][0] if trials.rows else least]
        note = "no candidate fits the RAM; the best is the one that needs the least"
        parameters = sum(layer.weight_bytes for layer in self.layers)
        more = {"parameters_bytes": parameters, "layers": _layers(self.layers, done)}
        return trials.found(best=best, rows=rows, notes=() if trials.rows else (note,), more=more)


def _devices(given: SpaceFile, space: SplitSpace) -> tuple[list[Device], list[int]]:
    """All devices, and how many of them are tried."""
    where = f"{given.where}: devices"
    listed = space.devices if isinstance(space.devices, list) else None
    counts = _counts(space.count, len(listed) if listed else 0, f"{given.where}: count")
    if listed is None:
        return [device_of(given, space.devices, where)] * max(counts), counts
    if max(counts) > len(listed):
        raise UsageError(f"count: {max(counts)} of {len(listed)} devices", where=given.where)
    return [device_of(given, one, f"{where}[{i}]") for i, one in enumerate(listed)], counts


def _counts(value: Any, there: int, where: str) -> list[int]:
    if value is None:
        return [there] if there else list(range(1, 9))
    if isinstance(value, str):
        low, high = line(value, where, "count: 1..8").cut("..")
        value = list(range(low.count(zero=True), low.count(zero=True) + 1 if high is None else high.count() + 1))
    found = value if isinstance(value, list) else [value]
    if not found or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in found):
        raise UsageError("expected numbers of devices from 1 on", where=where, hint="count: 1..8")
    return found


def _words(value: Any, known: tuple[str, ...], where: str) -> list[str]:
    found = value if isinstance(value, list) else [value]
    if unknown := [word for word in found if word not in known]:
        raise UsageError(f"unknown value `{unknown[0]}`", where=where, hint=f"known: {', '.join(known)}")
    return found


def _split(
    layers: Sequence[KernelLayer], devices: list[Device], kind: str, share: str, ram: I64, space: SplitSpace
) -> OwnerSplit:
    wire = (space.link.rate_bytes_per_s, space.link.latency_ns)
    speed = np.array([device.peak(space.dtype) for device in devices])
    shares = np.ones(len(devices)) if share == "equal" else speed
    units = np.zeros((len(layers), len(devices)), np.int64)
    home = _whole_layers(layers, shares)
    for i, layer in enumerate(layers):
        if kind == "layer" or (kind == "kernel" and layer.linear):
            units[i, home[i] if kind == "layer" else int(ram.argmax())] = layer.units
        else:
            units[i] = apportioned(layer.units, shares, _most(layer, ram) if share == "fit" else None)
    return split(layers, units, devices, space.dtype, wire)


def _whole_layers(layers: Sequence[KernelLayer], shares: F64) -> I64:
    """The device of each layer: as much work for each as its share, in order."""
    work = np.array([layer.flops for layer in layers], np.float64)
    middle = (np.cumsum(work) - work / 2) / work.sum()
    return np.searchsorted(np.cumsum(shares)[:-1] / shares.sum(), middle, "right")


def _most(layer: KernelLayer, ram: I64) -> I64:
    """Kernels that fit together with their inputs. What is kept of earlier layers is not counted."""
    each = -(-(layer.made_bytes + layer.weight_bytes) // layer.units)
    if layer.groups > 1:
        return ram // (each + layer.in_bytes // layer.units)
    return np.maximum(ram - layer.in_bytes, 0) // each


def _row(done: OwnerSplit, ram: I64, kind: str, share: str) -> Row:
    most = done.ram.max(axis=0)
    return {
        "devices": len(ram), "split": kind, "shares": share, "feasible": bool((most <= ram).all()),
        "peak_ram_bytes": int(most.max()), "latency_ms": done.latency_ns / 1e6,
        "compute_ms": int(done.compute_ns.max(axis=1).sum()) / 1e6, "messages": done.messages,
        "message_bytes": done.message_bytes, "gathered_bytes": int(done.inputs.max()),
        "weight_bytes": int(done.weights.sum()), "ram_bytes": most.tolist(),
    }  # fmt: skip


def _layers(layers: Sequence[KernelLayer], done: OwnerSplit) -> list[Row]:
    """For the best one: the part of each layer on each device."""
    return [
        {"name": layer.name, "units": done.units[i].tolist(), "inputs": done.inputs[i].tolist(),
         "outputs": done.outputs[i].tolist(), "weights": done.weights[i].tolist(), "kept": done.kept[i].tolist(),
         "compute_ms": (done.compute_ns[i] / 1e6).tolist(), "message_ms": int(done.message_ns[i]) / 1e6}
        for i, layer in enumerate(layers)
    ]  # fmt: skip
