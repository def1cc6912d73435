"""Orders worth trying first: devices along rows, snakes, tiles and loops, and ranks with another axis innermost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from math import prod

import numpy as np

from etude.kernels.arrays import I64
from etude.machine.system import LINED, System


def device_orders(system: System) -> dict[str, I64]:
    """Name -> the devices one after another. A snake continues where a row ends, a loop returns to its start, tiles are
    squares of squares."""
    count = len(system)
    found = {"rows": np.arange(count)}
    sizes = [level.size for level in system.levels]
    if system.topology is not None or any(level.kind not in LINED for level in system.levels) or len(sizes) < 2:
        return found
    found["snake"] = _snake(sizes)
    if len(sizes) == 2 and sizes[1] % 2 == 0 and sizes[0] > 2:
        found["loop"] = _loop(*sizes)
    if all(size & (size - 1) == 0 for size in sizes):
        found["tiles"] = _tiles(sizes)
    return found


def _snake(sizes: list[int]) -> I64:
    found = np.zeros(1, np.int64)
    for number, size in enumerate(sizes):
        below = prod(sizes[:number])
        found = np.concatenate([(found if row % 2 == 0 else found[::-1]) + row * below for row in range(size)])
    return found


def _loop(columns: int, rows: int) -> I64:
    """Up the first column, and back through the others row by row."""
    up = np.arange(rows) * columns
    back = []
    for turn, row in enumerate(range(rows - 1, -1, -1)):
        along = np.arange(1, columns) + row * columns
        back.append(along if turn % 2 == 0 else along[::-1])
    return np.concatenate([up, *back])


def _tiles(sizes: list[int]) -> I64:
    """By the bits of all coordinates in turn."""
    device, key, shift = np.arange(prod(sizes)), np.zeros(prod(sizes), np.int64), 0
    for bit in range(max(sizes).bit_length()):
        for number, size in enumerate(sizes):
            if 1 << bit < size:
                unit = device // prod(sizes[:number]) % size
                key |= (unit >> bit & 1) << shift
                shift += 1
    return np.argsort(key, kind="stable")


def rank_orders(axes: Mapping[str, int], count: int) -> Iterator[tuple[str, I64]]:
    """(Axes from the innermost, position of each rank in that order). `axes`: name -> size, as ranks are numbered."""
    wide = [(name, size) for name, size in axes.items() if size > 1]
    if len(wide) < 2 or prod(size for _, size in wide) != count:
        yield "ranks", np.arange(count)
        return
    rest, at = np.arange(count), {}
    for name, size in wide:
        at[name], rest = rest % size, rest // size
    for order in permutations(wide):
        position, step = np.zeros(count, np.int64), 1
        for name, size in order:
            position, step = position + at[name] * step, step * size
        yield "-".join(name for name, _ in order), position


def first_tries(system: System, axes: Mapping[str, int], count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(Name, device of each rank), the order of the numbers first."""
    for along, devices in device_orders(system).items():
        for name, position in rank_orders(axes, count):
            yield f"{name} along {along}", tuple(devices[position].tolist())
