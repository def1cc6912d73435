"""Time of a batch up to each exit: the forward nodes of a generated step, simulated once for each batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64

if TYPE_CHECKING:
    from etude.machine import Device


def forward_costs(model: str, system: str, exits: int, sizes: Sequence[int], share: float = 1.0) -> I64:
    """Times by (exit, batch size), ns. Exit k of n is after k/n of the blocks, and takes the prefix up to there and the
    head of the network; the last is the whole forward pass, without the loss. `share`: fraction of the device's rates,
    memory bandwidth, cores and cache."""
    from etude.machine import open_system
    from etude.make.generate import Plan
    from etude.make.generate.model import open_model
    from etude.steps import predict

    network, machine = open_model(model), open_system(system)
    if share < 1:
        machine = replace(machine, device=slice_of(machine.device, share))
    found = np.zeros((exits, len(sizes)), np.int64)
    for j, size in enumerate(sizes):
        plan = Plan.from_dict({"gpus": 1, "micro_batch": size, "global_batch": size}, model)
        step = predict(network, plan, machine)
        trace = step.generated.job.trace(0)
        start, end = step.simulated.timing.block(0)
        forward = [i for i in range(len(trace)) if trace.text("phase", i) == "forward"]
        if len(set(trace.lane[forward].tolist())) != 1:
            raise UsageError("its forward pass runs on several lanes, so an exit is not a prefix", where=model)
        parts = [_part(trace.text("module", i)) for i in forward]
        took = np.array([int(end[i] - start[i]) for i in forward], np.int64)
        found[:, j] = exit_costs(parts, took, exits, model)
    return found


def slice_of(device: Device, share: float) -> Device:
    return replace(
        device,
        peak_flop_per_s={name: rate * share for name, rate in device.peak_flop_per_s.items()},
        units={name: {t: rate * share for t, rate in peaks.items()} for name, peaks in device.units.items()},
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * share,
        memory_bytes=int(device.memory_bytes * share),
        cache_bytes=int(device.cache_bytes * share),
        cores=max(round(device.cores * share), 1),
    )


def exit_costs(parts: Sequence[str], took: I64, exits: int, model: str) -> I64:
    """Time up to each exit, from the nodes of a forward pass in order: the part of each (``layers.3``, ``head``), and
    its time in ns. Raises UsageError for more exits than blocks."""
    blocks = list(dict.fromkeys(part for part in parts if "." in part))
    if exits > max(len(blocks), 1):
        raise UsageError(f"{exits} exits in {len(blocks)} blocks", where=model, hint="exits: 3")
    kept = np.array([part != "loss" for part in parts])
    head = np.array([part == "head" for part in parts])
    ends = np.cumsum(np.where(kept & ~head, took, 0))
    found = np.full(exits, int(took[kept].sum()), np.int64)
    for k in range(exits - 1):
        last = blocks[-(-(k + 1) * len(blocks) // exits) - 1]
        found[k] = ends[max(i for i, part in enumerate(parts) if part == last)] + took[head].sum()
    return found


def _part(module: str) -> str:
    """Part of a module: ``layers.3`` of ``layers.3.conv1``, ``stem`` of ``stem.pool``, ``loss`` of ``head.loss``."""
    first, _, rest = module.partition(".")
    second = rest.partition(".")[0]
    if first == "head" and second == "loss":
        return "loss"
    return f"{first}.{second}" if second.isdigit() else first
