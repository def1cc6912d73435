"""Which kernel and which units each op of a job takes, and what that makes of its time.

    chosen(device, ops, Menu.of(["auto", "product:w4a16:g128"], units="auto")).factor

Every alternative is priced by the roofline with the device's constants, as the op itself is. What comes out is a factor
on the time that the op has anyway, be it modelled, measured or recorded; the plain op on the device has 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.compute import cost_of, memory_ns, peaks_of, roofline_ns
from etude.cost.menu import STRASSEN, Kernel, asked_ops, open_kernel
from etude.cost.ops import OpClass, OpTable
from etude.errors import UsageError
from etude.machine.system import Device

F64 = NDArray[np.float64]

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Menu:
    """What may be chosen from."""

    kernels: tuple[Kernel, ...] = ()
    auto: bool = False
    """The fastest of these and of the plain op; else each is what its class of ops takes."""
    units: str = ""
    """`auto`, a unit, or several that split each op: `cpu+sme`; empty: the device as its `peak` says."""

    @classmethod
    def of(cls, kernels: Sequence[str] = (), units: str = "") -> Menu:
        """By names. `auto` alone takes what computes the same: a level of Strassen's algorithm."""
        auto, names = AUTO in kernels, [name for name in dict.fromkeys(kernels) if name != AUTO]
        found = tuple(open_kernel(name) for name in names or ([STRASSEN] if auto else []))
        twice = [name for name, count in Counter(kernel.op_class for kernel in found).items() if count > 1]
        if twice and not auto:
            raise UsageError(f"several kernels are asked for each {twice[0]}", hint="with `auto` the fastest is taken")
        if units and not all(units.split("+")):
            raise UsageError(f"`{units}` does not name units", hint="auto, cpu, cpu+sme")
        return cls(found, auto, units)

    def __bool__(self) -> bool:
        return bool(self.kernels or self.units)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    factor: F64
    """On the time of each op."""
    number: NDArray[np.int64]
    """Which of `names` it takes; -1 where nothing is known of it."""
    names: tuple[str, ...]


def chosen(device: Device, ops: OpTable, menu: Menu) -> Choice:
    """The fastest that the menu allows for each op; of equally fast ones the first: units by their highest rate, then
    all together, and on each the plain op before the kernels."""
    base = roofline_ns(device, ops)
    forced = np.zeros(len(ops), np.bool_)
    if not menu.auto:
        for kernel in menu.kernels:
            forced |= kernel.takes(ops)
    best, number, names = np.full(len(ops), np.inf), np.full(len(ops), -1), list[str]()
    unable: dict[str, UsageError] = {}
    for unit, own in _on_units(device, menu.units):
        offers = [("plain", np.where(forced, np.inf, base if own is device else roofline_ns(own, ops)))]
        for kernel in menu.kernels:
            try:
                offers.append((kernel.name, kernel_times_ns(own, ops, kernel)))
            except UsageError as problem:  # another unit may be able to
                unable[kernel.name] = problem
        for name, time in offers:
            faster = time < best
            best, number = np.where(faster, time, best), np.where(faster, len(names), number)
            names.append(f"{name} on {unit}" if unit else name)
    for kernel in menu.kernels:
        if kernel.name in unable and not any(name.startswith(kernel.name) for name in names):
            raise unable[kernel.name]
    known = np.isfinite(base) & np.isfinite(best) & (base > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Choice(np.where(known, best / base, 1.0), np.where(known, number, -1), tuple(names))


def kernel_times_ns(device: Device, ops: OpTable, kernel: Kernel) -> F64:
    """Time of each op by a kernel, by the roofline; infinite where it is none for that op."""
    found = np.full(len(ops), np.inf)
    rows = np.flatnonzero(kernel.takes(ops))
    if not len(rows):
        return found
    taken = ops.take(rows)
    need = kernel.need(device, taken)
    asked = asked_ops(taken, need)
    time = roofline_ns(device, asked)
    series = np.broadcast_to(np.asarray(need.series_bytes, np.float64), len(rows))
    for number in np.unique(taken.op_class).tolist():
        op_class, here = OpClass(number), taken.op_class == number
        cost = cost_of(device, op_class)
        if np.any(need.vector_flops):
            rate = device.peak("fp32") * cost.flop_efficiency / 1e9
            time = np.where(here, np.maximum(time, cost.fixed_ns + need.vector_flops / rate), time)
        if need.turns is not None:
            compute = need.flops / (peaks_of(device, op_class, asked) * cost.flop_efficiency / 1e9)
            turn = np.maximum(compute, memory_ns(device, cost, need.size_bytes))
            time = np.where(here, cost.fixed_ns + need.turns * turn, time)
        time = np.where(here, time + memory_ns(device, cost, series), time)
    found[rows] = np.where(np.isfinite(time), time, np.inf)
    return found


def _on_units(device: Device, units: str) -> list[tuple[str, Device]]:
    if not units or (units == AUTO and not device.units):
        return [("", device)]
    if units != AUTO:
        return [(units, device.on_units(units.split("+")))]
    every = sorted(device.units, key=lambda name: -max(device.units[name].values()))
    found = [(name, device.on_units([name])) for name in every]
    return [*found, ("+".join(every), device.on_units(every))] if len(every) > 1 else found
