"""Power of ops on a device, from their FLOPs, bytes and time; constants per device, see docs/energy.md.

at_work_w(device, ops, time_ns)        # W beyond idle of each op while it runs, at the nominal clock
costs_of(device)                       # the constants: the device's own, or worked out from its limit
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.compute import compute_time_ns
from etude.cost.ops import DTYPE_NUMBER, EXPERTS, MATRIX, NARROW, OpClass, OpTable
from etude.kernels.arrays import F64, I64
from etude.machine.power import PowerCosts
from etude.machine.system import Device
from etude.model.schema import UNKNOWN

IDLE: Final = 0.15
"""Idle power over the limit, for devices without it: 0.13 to 0.19 for an H100, H200, B200."""
ACTIVE, COMPUTING, MOVING, TALKING = 0.2, 0.9, 0.7, 0.15
"""Fractions of the power above idle, if a device has no constants: running kernels; matrix units at 80% of their peak;
memory at its bandwidth; a collective."""
REACHED: Final = 0.8


def idle_w(device: Device, ratio: float = 1.0) -> float:
    """Power of the idle device, at a clock relative to the nominal one."""
    nominal = device.idle_power_w or IDLE * limit_w(device)
    if ratio == 1.0 or device.energy is None:
        return nominal
    part = device.energy.clocked_idle
    return nominal * (1 - part + part * device.energy.core_factor(ratio))


def limit_w(device: Device) -> float:
    """The limit of the board's power."""
    if not device.power_w:
        raise UsageError(
            f"device `{device.name}` does not specify its power", hint="`power: 700` and `idle_power: 75` in its file"
        )
    return device.power_w


def assumed(device: Device) -> bool:
    """Whether its constants are derived from its limit instead of measured."""
    return device.energy is None or not device.idle_power_w


def costs_of(device: Device) -> PowerCosts:
    """The device's constants, or such that matrix products and copies at full rate draw most of its limit."""
    if device.energy is not None:
        return device.energy
    room = limit_w(device) - idle_w(device)
    wide = device.peak("bf16") * REACHED
    vector = device.peak("fp32") * REACHED
    products, moving = (COMPUTING - ACTIVE) * room, (MOVING - ACTIVE) * room
    return PowerCosts(
        active_w=ACTIVE * room,
        flop_pj={"bf16": products / wide * 1e12} if wide else {},
        vector_pj=products / vector * 1e12 if vector else 0.0,
        byte_pj=moving / device.memory_bandwidth_bytes_per_s * 1e12 if device.memory_bandwidth_bytes_per_s else 0.0,
        communication_w=TALKING * room,
    )


def flop_pj(device: Device, dtype: str) -> float:
    """Energy of a FLOP of the matrix units; for a type without its own, from bf16 by the rates of both."""
    costs = costs_of(device)
    if dtype in costs.flop_pj:
        return costs.flop_pj[dtype]
    known = "bf16" if "bf16" in costs.flop_pj else next(iter(costs.flop_pj), "")
    own, other = device.peak(dtype), device.peak(known)
    return costs.flop_pj[known] * other / own if known and own and other else 0.0


def time_at_clock(device: Device, ops: OpTable, ratio: float) -> tuple[I64, F64]:
    """Time of each op at the nominal clock, UNKNOWN if unknown, and the factor at another one: operations are slower in
    proportion, and so is the memory below its own clock. Matrix units at full rate reach the power limit, hence run
    below the nominal clock already, and are slower only below that."""
    busy = device.busy()
    own = compute_time_ns(busy, ops)
    factor = np.ones(len(ops))
    known = own != UNKNOWN
    some, first = ops.take(known), np.maximum(own[known], 1).astype(np.float64)
    # Each by itself: as if the memory, or the operations, took no time.
    alone = compute_time_ns(replace(busy, memory_bandwidth_bytes_per_s=1e30), some)
    moved = compute_time_ns(replace(busy, peak_flop_per_s=dict.fromkeys(device.peak_flop_per_s, 1e30)), some)
    lasting = np.where(_matrix(some), device.sustained_fraction, 1.0)
    at = np.maximum(alone * np.maximum(lasting / ratio, 1.0), moved * costs_of(device).memory_factor(ratio))
    factor[known] = np.maximum(at / first, 1.0)
    return own, factor


def at_work_w(
    device: Device,
    ops: OpTable,
    time_ns: I64,
    *,
    ratio: float = 1.0,
    dtype: str = "bf16",
    vector_flops: F64 | float = 0.0,
) -> F64:
    """Watts above idle of each op while it runs for `time_ns`, the time at this clock. `vector_flops` are those of the
    vector units in addition to its own."""
    costs = costs_of(device)
    names = {number: name or dtype for name, number in DTYPE_NUMBER.items()}
    by_type = np.array([flop_pj(device, names[number]) for number in range(len(names))])
    matrix, lasting = _matrix(ops), device.sustained_fraction
    energy = np.where(matrix, by_type[ops.dtype], costs.vector_pj) * _known(ops.flops)
    # The constants of the matrix units are for the clock that they sustain.
    sunk = costs.flop_factor(min(ratio, lasting)) / costs.flop_factor(lasting)
    energy *= np.where(matrix, sunk, costs.flop_factor(ratio))
    energy = energy + costs.vector_pj * vector_flops * costs.flop_factor(ratio)
    seconds = np.maximum(time_ns, 1).astype(np.float64) / 1e9
    running = costs.active_w + np.where(_scaled(ops), costs.quantised_w, 0.0)
    moved = energy + costs.byte_pj * _known(ops.size_bytes)
    return running * costs.core_factor(ratio) + moved * 1e-12 / seconds


def _matrix(ops: OpTable) -> NDArray[np.bool_]:
    return np.isin(ops.op_class, [int(c) for c in (*MATRIX, OpClass.OTHER)])


def _scaled(ops: OpTable) -> NDArray[np.bool_]:
    """Products of experts with narrow weights, which have scales."""
    narrow = [DTYPE_NUMBER[name] for name in NARROW]
    return np.isin(ops.op_class, [int(c) for c in EXPERTS]) & np.isin(ops.dtype, narrow)


def _known(column: I64) -> F64:
    return np.where(column == UNKNOWN, 0, column).astype(np.float64)
