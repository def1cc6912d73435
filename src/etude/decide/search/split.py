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
from etude.decide.search.chain import device_of
from etude.decide.search.found import Found, Row, frontier
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.kernel_layers import KernelLayer, kernel_layers
from etude.decide.search.owners import OwnerSplit, apportioned, split
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
    ram_bytes: int = figure("bytes", "memory of each device; 0: all of it", 0, zero=True)
    link: SplitLink = figure("one", "link to a switch", SplitLink(), of=SplitLink)
    split: Any = figure("one", "layer, kernel, neuron, or several", "neuron")
    shares: Any = figure("one", "equal, speed, fit, or several", "equal")


def solve(given: Given, asked: SearchRequest) -> Found:
    asked.one_of("all")
    with usage_errors():
        space = read(SplitSpace, given.keys, given.where)
    beside = given.folder / space.model
    layers = kernel_layers(str(beside) if beside.is_file() else space.model, space.dtype)
    devices, counts = _devices(given, space)
    splits = _words(space.split, SPLITS, f"{given.where}: split")
    shares = _words(space.shares, SHARES, f"{given.where}: shares")
    rows = []
    for kind, share, count in product(splits, shares, counts):
        part = devices[:count]
        ram = np.array([space.ram_bytes or device.memory_bytes for device in part], np.int64)
        done = _split(layers, part, kind, share, ram, space)
        rows.append((_row(done, ram, kind, share), done))
    good = sorted((row for row in rows if row[0]["feasible"]), key=lambda row: row[0]["latency_ms"])
    best, done = good[0] if good else min(rows, key=lambda row: row[0]["peak_ram_bytes"])
    over = len(rows) - len(good)
    return Found(
        best=best, frontier=frontier([row for row, _ in good], {"latency_ms": 1, "peak_ram_bytes": 1}), tried=len(good),
        pruned={"too large for the RAM": over} if over else {}, space=len(rows), rows=[row for row, _ in rows],
        notes=() if good else ("no candidate fits the RAM; the best is the one that needs the least",),
        more={"parameters_bytes": sum(layer.weight_bytes for layer in layers), "layers": _layers(layers, done)},
    )  # fmt: skip


def _devices(given: Given, space: SplitSpace) -> tuple[list[Device], list[int]]:
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
