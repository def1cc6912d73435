"""Which kernel and which units each op of a job takes, and the effect on its time and its work.

    chosen(device, ops, Menu.of(["auto", "product:w4a16:g128"], units="auto")).factor

Every alternative is priced by the roofline with the device's constants, as the op itself is. The result is a factor on
the time of the op, whether modelled, measured or recorded; the plain op on the device has 1.

A unit may need its operands in a layout of its own (`packed` of the device). Results of another unit are then read and
written once more before the op; in between nothing is paid, and weights are packed when they are loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.compute import cost_of, memory_ns, peaks_of, roofline_ns
from etude.cost.menu import AUTO, FEWER, MenuKernel, alternatives, open_kernel, unit_choices, unit_shares
from etude.cost.needs import Need, Quantised, asked_ops, input_bytes
from etude.cost.ops import DTYPE_NUMBER, OpClass, OpTable
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.machine.system import Device


@dataclass(frozen=True, slots=True)
class Menu:
    """The alternatives to choose from."""

    kernels: tuple[MenuKernel, ...] = ()
    free: frozenset[str] = frozenset()
    """Classes of ops that take the fastest of these and of the plain op; the others take the kernel named for them."""
    units: str = ""
    """`auto`, a unit, or several that split each op: `cpu+sme`; empty: the device as its `peak` says."""

    @classmethod
    def of(cls, kernels: Sequence[str] = (), units: str = "") -> Menu:
        """A menu by names. `auto` alone takes kernels with the same result: algorithms with fewer products."""
        auto, names = AUTO in kernels, [name for name in dict.fromkeys(kernels) if name != AUTO]
        if auto and not names:
            names = [FEWER]
        found = [(name, tuple(map(open_kernel, alternatives(name)))) for name in names]
        twice = [c for c, count in Counter(parts[0].op_class for _, parts in found).items() if count > 1]
        if twice and not auto:
            raise UsageError(f"several kernels are given for each {twice[0]}", hint="with `auto` the fastest is used")
        if units and not all(units.split("+")):
            raise UsageError(f"`{units}` does not name units", hint="auto, cpu, cpu+sme")
        free = frozenset(parts[0].op_class for name, parts in found if auto or len(parts) > 1)
        return cls(tuple(kernel for _, parts in found for kernel in parts), free, units)

    def __bool__(self) -> bool:
        return bool(self.kernels or self.units)

    @property
    def weights(self) -> Quantised | None:
        """How weights of products are stored; None if unchanged, also if only some ops may take another kernel."""
        if "product" in self.free:
            return None
        return next((one.weights for one in self.kernels if one.weights and one.weights.weight < 16), None)


class Taken(NamedTuple):
    """Ops that take a kernel on some units, and their work."""

    nodes: int = 0
    flops: int = 0
    size_bytes: int = 0

    def plus(self, other: Taken, times: int) -> Taken:
        return Taken(*(mine + more * times for mine, more in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    factor: F64
    """Factor on the time of each op."""
    number: I64
    """Index in `names` of its kernel; -1: unknown op."""
    names: tuple[str, ...]
    ops: OpTable
    """The ops as they run: operations, bytes and data type of the kernel."""
    vector_flops: F64
    """FLOPs of the vector units, in addition to those of the ops."""
    flops_of: dict[str, float] = field(default_factory=dict)
    """Operations by unit."""
    repacked: int = 0
    """Ops whose operands are converted to another layout first."""

    def taken(self) -> dict[str, Taken]:
        """Number of ops and their work, by kernel and units."""
        rows, most = self.number >= 0, len(self.names)

        def sums(column: I64) -> list[float]:
            weights = np.maximum(column[rows], 0)
            return np.bincount(self.number[rows], weights=weights, minlength=most).tolist()

        figures = zip(sums(np.ones(len(rows), np.int64)), sums(self.ops.flops), sums(self.ops.size_bytes), strict=True)
        pairs = zip(self.names, figures, strict=True)
        return {name: Taken(*map(round, found)) for name, found in pairs if found[0]}


@dataclass(slots=True, eq=False)
class _Offer:
    """The best known alternative for each op, on some units."""

    units: tuple[str, ...]
    device: Device
    time: F64
    number: I64
    ops: OpTable
    vector: F64

    def take(self, rows: I64, time: F64, number: int, ops: OpTable, vector: F64 | float) -> None:
        """Takes the faster alternatives of these rows."""
        faster = time < self.time[rows]
        at = rows[faster]
        self.time[at], self.number[at] = time[faster], number
        self.vector[at] = np.broadcast_to(np.asarray(vector, np.float64), len(rows))[faster]
        for name in ("flops", "size_bytes", "dtype"):
            getattr(self.ops, name)[at] = getattr(ops, name)[faster]


def chosen(device: Device, ops: OpTable, menu: Menu) -> Choice:
    """The fastest that the menu allows for each op; of equally fast ones the first: units by their highest rate, then
    all together, and on each the plain op before the kernels. With layouts the fastest for all ops in their order."""
    base = roofline_ns(device, ops)
    known = np.isfinite(base) & (base > 0)
    offers, names = _offers(device, ops, menu, base)
    which, more_ns = _units_taken(device, ops, offers, known)
    every = np.arange(len(ops))
    time = np.stack([offer.time for offer in offers])[which, every] + more_ns
    known &= np.isfinite(time)
    number = np.stack([offer.number for offer in offers])[which, every]
    found = {
        name: np.stack([getattr(offer.ops, name) for offer in offers])[which, every]
        for name in ("flops", "size_bytes", "dtype")
    }
    moved = more_ns > 0
    found["size_bytes"] = found["size_bytes"] + np.where(moved, 2 * input_bytes(ops), 0).astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(known, time / base, 1.0)
    vector = np.stack([offer.vector for offer in offers])[which, every]
    carried = replace(ops, **found)
    done = _flops_of(offers, which, carried, known)
    return Choice(factor, np.where(known, number, -1), names, carried, vector, done, int(moved.sum()))


def _offers(device: Device, ops: OpTable, menu: Menu, base: F64) -> tuple[list[_Offer], tuple[str, ...]]:
    """The best of each op on each choice of units, and the names behind their numbers."""
    forced = np.zeros(len(ops), np.bool_)
    for one in menu.kernels:
        if one.op_class not in menu.free:
            forced |= one.takes(ops)
    offers, names = list[_Offer](), list[str]()
    unable: dict[str, UsageError] = {}
    for units, own in unit_choices(device, menu.units):
        plain = np.where(forced, np.inf, base if own is device else roofline_ns(own, ops))
        same = replace(ops, flops=ops.flops.copy(), size_bytes=ops.size_bytes.copy(), dtype=ops.dtype.copy())
        plain = np.where(np.isfinite(plain), plain, np.inf)
        offer = _Offer(units, own, plain, np.full(len(ops), len(names)), same, np.zeros(len(ops)))
        on = f" on {'+'.join(units)}" if units else ""
        names.append(f"plain{on}")
        for one in menu.kernels:
            rows = np.flatnonzero(one.takes(ops))
            try:
                need = one.need(own, ops.take(rows)) if len(rows) else None
            except UsageError as problem:  # another unit may be able to
                unable[one.name] = problem
                continue
            if need is not None:
                whole = need._replace(flops=need.all_flops, size_bytes=need.all_bytes)
                time = need_ns(own, ops.take(rows), need)
                offer.take(rows, time, len(names), asked_ops(ops.take(rows), whole), need.vector_flops)
            names.append(f"{one.name}{on}")
        offers.append(offer)
    for one in menu.kernels:
        if one.name in unable and not any(name.startswith(one.name) for name in names):
            raise unable[one.name]
    return offers, tuple(names)


def need_ns(device: Device, ops: OpTable, need: Need) -> F64:
    """Time of ops by a kernel with this need, by the roofline; infinite if unknown."""
    asked = asked_ops(ops, need)
    time = roofline_ns(device, asked)
    series = np.broadcast_to(np.asarray(need.series_bytes, np.float64), len(ops))
    for number in np.unique(ops.op_class).tolist():
        op_class, here = OpClass(number), ops.op_class == number
        cost = cost_of(device, op_class)
        if np.any(need.vector_flops):
            rate = device.peak("fp32") * cost.flop_efficiency / 1e9
            time = np.where(here, np.maximum(time, cost.fixed_ns + need.vector_flops / rate), time)
        if need.turns is not None:
            compute = need.flops / (peaks_of(device, op_class, asked) * cost.flop_efficiency / 1e9)
            turn = np.maximum(compute, memory_ns(device, cost, need.size_bytes))
            time = np.where(here, cost.fixed_ns + need.turns * turn, time)
        time = np.where(here, time + memory_ns(device, cost, series), time)
    time = time + (need.kernels - 1) * cost_of(device, OpClass.ELEMENTWISE).fixed_ns
    return np.where(np.isfinite(time), time, np.inf)


def _flops_of(offers: Sequence[_Offer], which: I64, ops: OpTable, known: NDArray[np.bool_]) -> dict[str, float]:
    """Operations by unit: those of a split op are divided in proportion to the units' rates for its data type."""
    found: dict[str, float] = {}
    for number, offer in enumerate(offers):
        for name, share in _shares(offer):
            rows = known & (which == number) & (ops.flops > 0)
            found[name] = found.get(name, 0.0) + float((share[ops.dtype[rows]] * ops.flops[rows]).sum())
    return found


def _shares(offer: _Offer) -> list[tuple[str, F64]]:
    """Fraction of an op that each unit runs, by number of the data type."""
    by_type = [unit_shares(offer.device, offer.units, name or "bf16") for name in DTYPE_NUMBER]
    return [(unit, np.array([shares[unit] for shares in by_type])) for unit in offer.units]


# -- layouts ----------------------------------------------------------------------------------------------------------


def _units_taken(device: Device, ops: OpTable, offers: Sequence[_Offer], known: NDArray[np.bool_]) -> tuple[I64, F64]:
    """The offer that each op takes, and the time to convert its inputs to another layout."""
    time = np.stack([offer.time for offer in offers])
    packed = [any(unit in device.packed for unit in offer.units) for offer in offers]
    if not any(packed):
        return np.argmin(time, axis=0), np.zeros(len(ops))
    of_layout = [np.flatnonzero(np.array(packed) == layout) for layout in (False, True)]
    best = np.full((2, len(ops)), np.inf)
    for layout, mine in enumerate(of_layout):
        if len(mine):
            best[layout] = time[mine].min(axis=0)
    copying, size = cost_of(device, OpClass.COPY), 2 * input_bytes(ops)
    change = np.where(known, copying.fixed_ns + memory_ns(device, copying, size), np.inf)
    # For an unknown op both are equal, so nothing changes there.
    layout = cheapest_layouts(np.where(known, best, 0.0), change)
    which = np.zeros(len(ops), np.int64)
    for number, mine in enumerate(of_layout):
        if len(mine):
            which[layout == number] = mine[np.argmin(time[mine], axis=0)][layout == number]
    changes = np.diff(layout.astype(np.int64), prepend=0) != 0
    return which, np.where(changes & known, change, 0.0)


@kernel
def cheapest_layouts(time_ns: F64, change_ns: F64) -> NDArray[np.uint8]:
    """The layout of each op, of two, in order and starting from the first, with the least sum of times and of changes
    before ops."""
    rows = len(change_ns)
    came = np.zeros((2, rows), np.uint8)
    first, second = 0.0, np.inf
    for i in range(rows):
        came[0, i] = 1 if second + change_ns[i] < first else 0
        came[1, i] = 1 if second <= first + change_ns[i] else 0
        stay, move = min(first, second + change_ns[i]), min(second, first + change_ns[i])
        first, second = stay + time_ns[0, i], move + time_ns[1, i]
    found = np.zeros(rows, np.uint8)
    layout = 1 if second < first else 0
    for i in range(rows - 1, -1, -1):
        found[i] = layout
        layout = came[layout, i]
    return found
