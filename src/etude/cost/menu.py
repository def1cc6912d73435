"""Other kernels for an op: what each asks of a device, its time at the device's peaks, and the fastest of several.

    kernel_ns(device, 4096, 4096, 4096, "product:w4a16:g128")       a named kernel
    fastest_kernel(device, 1, 4096, 4096, names)                    the fastest, the plain product among them
    units_ns(flops, size_bytes, (tensor, cpu), bandwidth)           one operator on the best of several units, or split

Rates here are peaks, in FLOP/s and bytes/s: these compare kernels, and know nothing of waves and launches.
`etude.cost.choice` prices the same kernels over the ops of a job, with the device's constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece, line, pairs
from etude.cost.energy import at_work_w, idle_w, limit_w
from etude.cost.needs import (
    FewerProducts,
    Need,
    Quantised,
    array_need,
    asked_ops,
    has_weights,
    is_decode,
    is_product,
    sparse_need,
)
from etude.cost.ops import DTYPE_BYTES, OpTable, matmul
from etude.kernels.arrays import Bool
from etude.machine.system import Device

AUTO: Final = "auto"
PLAIN: Final = "product"
STRASSEN: Final = "product:lcma:2,2,2,7"
FEWER: Final = "product:lcma:auto"
_FEWER_PRODUCTS: Final = (STRASSEN, f"{STRASSEN} levels=2", "product:lcma:3,3,3,23")
"""Candidates of `product:lcma:auto`, of which each op takes the fastest, or the plain product."""
EXAMPLES: Final = (
    "product:w4a16:g128, product:w8a8:g128, product:lcma:2,2,2,7, product:array:64,64,64, "
    "`attention:sparse keep=0.05 block=32 centroid=int8`"
)
_GROUP: Final = r"(?:\d+|row)(?::\d+)?"
_QUANTISED: Final = re.compile(rf"product:w(\d+)a(\d+)(?::g({_GROUP}(?:,{_GROUP})*))?(?::z(\d+))?(:apart)?")
_DEEPEST: Final = 4
"""Levels of an algorithm with fewer products."""


@dataclass(frozen=True, slots=True)
class MenuKernel:
    name: str
    takes: Callable[[OpTable], Bool]
    """Ops that it is an alternative for."""
    need: Callable[[Device, OpTable], Need]
    weights: Quantised | None = None
    """How it stores weights, if different."""

    @property
    def op_class(self) -> str:
        """`product` or `attention`: one kernel of each can be selected."""
        return self.name.partition(":")[0]


def alternatives(name: str) -> tuple[str, ...]:
    """Alternatives behind a name: itself, or with `product:lcma:auto fused=F` several, of which the fastest is taken
    unless the plain product is faster."""
    first, *rest = name.split() or [""]
    if first != FEWER:
        return (name,)
    _options(name, {"fused": "0"}, "fused=0.5")
    return tuple(" ".join((one, *rest)) for one in _FEWER_PRODUCTS)


def open_kernel(name: str) -> MenuKernel:
    """A kernel by its name."""
    if found := _QUANTISED.fullmatch(name):
        how = _quantised_of(name, found)
        return MenuKernel(name, has_weights, how.need, how)
    if name.startswith("product:lcma:"):
        return MenuKernel(name, is_product, _fewer_products_of(name).need)
    if found := re.fullmatch(r"product:array:(\d+),(\d+),(\d+)", name):
        tile = (int(found[1]), int(found[2]), int(found[3]))
        if min(tile) < 1:
            raise UsageError(f"kernel `{name}`: a tile has no elements")
        return MenuKernel(name, is_product, lambda _, ops: array_need(ops, tile))
    if name.split()[:1] == ["attention:sparse"]:
        heads, centroid = _sparse_of(name)
        return MenuKernel(name, is_decode, lambda _, ops: sparse_need(ops, heads, centroid))
    raise UsageError(f"unknown kernel `{name}`", hint=f"for example {EXAMPLES}")


# -- one product, at the peaks of a device ----------------------------------------------------------------------------


def product_need(device: Device, m: int, n: int, k: int, kernel: str = PLAIN) -> tuple[OpTable, Need]:
    """A product of m x k and k x n in bf16 as an op, and the need of a named kernel."""
    if min(m, n, k) < 1:
        raise UsageError(f"a product of {m} x {n} x {k}")
    ops = OpTable.of([matmul(m, n, k)])
    if kernel == PLAIN:
        return ops, Need(ops.flops.astype(np.float64), ops.size_bytes.astype(np.float64))
    found = open_kernel(kernel)
    if not found.takes(ops)[0]:
        raise UsageError(f"kernel `{kernel}` is not for products", hint=f"for example {EXAMPLES}")
    return ops, found.need(device, ops)


def kernel_ns(device: Device, m: int, n: int, k: int, kernel: str = PLAIN) -> float:
    """Time of a product of m x k and k x n in bf16 by a named kernel, at the device's peaks."""
    return _need_ns(device, product_need(device, m, n, k, kernel)[1])


def _need_ns(device: Device, need: Need) -> float:
    rate = device.memory_bandwidth_bytes_per_s
    if not rate:
        raise UsageError(f"device `{device.name}` does not specify its memory bandwidth")
    times = [need.flops / _peak(device, need.dtype or "bf16"), need.size_bytes / rate]
    if np.any(need.vector_flops):
        times.append(np.asarray(need.vector_flops / _peak(device, "fp32")))
    turns = 1.0 if need.turns is None else need.turns
    return float((turns * np.max(times, axis=0) + need.series_bytes / rate)[0] * 1e9)


def fastest_kernel(device: Device, m: int, n: int, k: int, kernels: Sequence[str]) -> tuple[str, float]:
    """The fastest of these and of the plain product, which wins ties."""
    names = [part for name in kernels for part in alternatives(name)]
    times = {name: kernel_ns(device, m, n, k, name) for name in dict.fromkeys((PLAIN, *names))}
    best = min(times, key=lambda name: times[name])
    return best, times[best]


def kernel_figures(device: Device, m: int, n: int, k: int, kernel: str = PLAIN, units: str = "") -> dict[str, Any]:
    """Time, work and energy of a product by a kernel, at the device's peaks, on the fastest of its units or the named
    ones. `operations_per_s` counts those of the plain product, whatever the algorithm; energy is None if the device has
    no power figures."""
    on, own, name, time_ns = min(
        ((names, one, *_by_kernel(one, m, n, k, kernel)) for names, one in unit_choices(device, units)),
        key=lambda found: found[3],
    )
    ops, need = product_need(own, m, n, k, name)
    found = {
        "m": m, "n": n, "k": k, "kernel": kernel, "taken": name, "units": "+".join(on),
        "unit_shares": unit_shares(device, on, need.dtype or "bf16"), "time_ns": time_ns,
        "flops": float(need.all_flops[0]), "size_bytes": float(need.all_bytes[0]),
        "iterations": 1 if need.turns is None else int(need.turns[0]),
        "operations_per_s": 2.0 * m * n * k / time_ns * 1e9,
        "mean_w": None, "energy_j": None,
    }  # fmt: skip
    if device.power_w:
        whole = asked_ops(ops, need._replace(flops=need.all_flops, size_bytes=need.all_bytes))
        vector = np.broadcast_to(np.asarray(need.vector_flops, np.float64), 1)
        beyond = at_work_w(device, whole, np.array([round(time_ns)]), vector_flops=vector)[0]
        watts = min(float(idle_w(device) + beyond), limit_w(device))
        found |= {"mean_w": watts, "energy_j": watts * time_ns / 1e9}
    return found


def _by_kernel(device: Device, m: int, n: int, k: int, kernel: str) -> tuple[str, float]:
    if kernel.split()[:1] == [FEWER]:
        return fastest_kernel(device, m, n, k, (kernel,))
    return kernel, kernel_ns(device, m, n, k, kernel)


def unit_choices(device: Device, units: str) -> list[tuple[tuple[str, ...], Device]]:
    """Units that an op may run on, each choice with the resulting device: the named ones, or with `auto` each alone,
    the fastest first, and all together. Empty: the device as its `peak` says."""
    if not units or (units == AUTO and not device.units):
        return [((), device)]
    if units != AUTO:
        names = tuple(units.split("+"))
        return [(names, device.on_units(names))]
    every = sorted(device.units, key=lambda name: -max(device.units[name].values()))
    found: list[tuple[tuple[str, ...], Device]] = [((name,), device.on_units([name])) for name in every]
    return [*found, (tuple(every), device.on_units(every))] if len(every) > 1 else found


def unit_shares(device: Device, units: Sequence[str], dtype: str) -> dict[str, float]:
    """Fraction of an op that each of these units runs: in proportion to their rates for its data type."""
    rates = {unit: device.on_units([unit]).peak(dtype) for unit in units}
    whole = sum(rates.values())
    return {unit: rate / whole if whole else 0.0 for unit, rate in rates.items()}


def _peak(device: Device, dtype: str) -> float:
    found = device.peak(dtype)
    if not found:
        raise UsageError(f"device `{device.name}` has no rate for {dtype}")
    return found


# -- names ------------------------------------------------------------------------------------------------------------


def _quantised_of(name: str, found: re.Match[str]) -> Quantised:
    """`w4a16`, `w4a16:g128`, `w4a4:g128:1,row:3` (a quarter of the columns in groups), `w4a16:g128:z4`, `...:apart`."""
    weight, activation, zero = int(found[1]), int(found[2]), int(found[4] or 0)
    parts = [part.partition(":") for part in (found[3] or "row").split(",")]
    groups = [(0 if size == "row" else int(size), float(count or 1)) for size, _, count in parts]
    if not all(1 <= bits <= 16 for bits in (weight, activation)) or zero > 16:
        raise UsageError(f"kernel `{name}`: bits from 1 to 16, zero points of at most 16")
    if any(size == "0" for size, _, _ in parts) or any(not count for _, count in groups):
        raise UsageError(f"kernel `{name}`: groups from 1 on", hint="g128, grow, or g128:1,row:3")
    if found[5] and (activation != 16 or weight > 8):
        problem = f"kernel `{name}`: separate unpacking needs weights of up to 8 bits and activations of 16"
        raise UsageError(problem, hint="product:w4a16:g128:apart")
    whole = sum(count for _, count in groups)
    return Quantised(weight, activation, tuple((s, c / whole) for s, c in groups), zero, bool(found[5]))


def _fewer_products_of(name: str) -> FewerProducts:
    """`product:lcma:2,2,2,7 levels=2 fused=0.5`."""
    given = _options(name, {"levels": "1", "fused": "0"}, "levels=2 fused=0.5")
    found = re.fullmatch(r"product:lcma:(\d+),(\d+),(\d+),(\d+)", name.split()[0])
    if found is None:
        raise UsageError(f"unknown kernel `{name}`", hint=f"{STRASSEN}, {FEWER}")
    a, b, c, products = map(int, found.groups())
    if not 0 < products <= a * b * c:
        raise UsageError(f"kernel `{name}`: more products than the {a * b * c} of the plain product, or none")
    levels, fused = given["levels"].count(most=_DEEPEST), given["fused"].fraction(zero=True)
    return FewerProducts(a, b, c, products, levels, fused)


def _sparse_of(name: str) -> tuple[list[tuple[int, float, float]], float]:
    """`attention:sparse keep=0.05 block=16:2,32:4,64:2 centroid=int8`: heads by block size, and bytes of an element of
    a centroid."""
    given = _options(name, {"keep": "1", "block": "32", "centroid": "bf16"}, "keep=0.05 block=16:2,32:4 centroid=int8")
    centroids = {"free": 0.0, **DTYPE_BYTES}
    centroid = centroids[given["centroid"].choice(centroids)]
    keep, blocks = given["keep"].fraction(zero=True), list[tuple[int, float]]()
    for part in given["block"].split(","):
        block, count = part.cut(":")
        blocks.append((block.count(), float(count.figure("number")) if count is not None else 1.0))
    heads = sum(count for _, count in blocks)
    return [(block, keep, count / heads) for block, count in blocks], centroid


def _options(name: str, known: dict[str, str], hint: str) -> dict[str, LinePiece]:
    """`KEY=VALUE` after the first word of a name."""
    given = {key: line(value, "") for key, value in known.items()}
    words = line(name, f"kernel `{name}`", hint).shell_words()[1:]
    return given | pairs(words, known)
