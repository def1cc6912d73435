"""A layered drawing of a directed graph: nodes are below their dependencies, and few lines cross.

The steps are those of Sugiyama's method: layers by longest path; bends where an edge passes layers; an order within
each layer by the mean place of the neighbours, swept down and up; then places that pull neighbours together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I32

_SWEEPS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """Node i is at (x[i], layer[i]); edge e passes the points path[e], nodes and bends, from top to bottom."""

    x: F64
    layer: I32
    path: list[list[int]]
    """Indices into `x` and `layer`: those beyond the nodes are bends."""


def draw(nodes: int, before: I32, after: I32, gap: float = 1.0) -> Drawing:
    """`gap` is the least distance between two nodes of a layer; bends take a third of it. Edges that close a cycle
    are drawn upwards."""
    layer = _layers(nodes, before, after)
    paths, layer = _with_bends(before, after, layer)
    size = len(layer)
    tops = np.array([p[i] for p in paths for i in range(len(p) - 1)], np.int64)
    ends = np.array([p[i + 1] for p in paths for i in range(len(p) - 1)], np.int64)
    order = _ordered(size, tops, ends, layer)
    width = np.where(np.arange(size) < nodes, gap, gap / 3)
    return Drawing(_places(order, tops, ends, width, size), layer, paths)


def _layers(nodes: int, before: I32, after: I32) -> I32:
    """Longest path from the roots; rounds stop at the number of nodes, so a cycle ends too."""
    forward = before < after  # files list causes first; otherwise the other direction closes cycles
    layer = np.zeros(nodes, np.int32)
    for _ in range(nodes):
        deeper = layer.copy()
        np.maximum.at(deeper, after[forward], layer[before[forward]] + 1)
        if (deeper == layer).all():
            break
        layer = deeper
    return layer


def _with_bends(before: I32, after: I32, layer: I32) -> tuple[list[list[int]], I32]:
    paths, levels = [], layer.tolist()
    for a, b in zip(before.tolist(), after.tolist(), strict=True):
        top, bottom = (a, b) if layer[a] <= layer[b] else (b, a)
        bends = range(int(layer[top]) + 1, int(layer[bottom]))
        paths.append([top, *range(len(levels), len(levels) + len(bends)), bottom])
        levels.extend(bends)
    return paths, np.array(levels, np.int32)


def _ordered(size: int, tops: NDArray[np.int64], ends: NDArray[np.int64], layer: I32) -> list[NDArray[np.int64]]:
    levels = [np.flatnonzero(layer == k) for k in range(int(layer.max(initial=-1)) + 1)]
    place = np.zeros(size)
    for level in levels:
        place[level] = np.arange(len(level))
    for sweep in range(_SWEEPS):
        near, far = (ends, tops) if sweep % 2 == 0 else (tops, ends)
        total, count = np.zeros(size), np.zeros(size)
        for level in levels if sweep % 2 == 0 else reversed(levels):
            mine = np.isin(near, level) if len(levels) < 2 else layer[near] == layer[level[0]]
            total[level] = count[level] = 0
            np.add.at(total, near[mine], place[far[mine]])
            np.add.at(count, near[mine], 1)
            mean = np.where(count[level] > 0, total[level] / np.maximum(count[level], 1), place[level])
            level[:] = level[np.argsort(mean, kind="stable")]
            place[level] = np.arange(len(level))
    return levels


def _places(
    levels: list[NDArray[np.int64]], tops: NDArray[np.int64], ends: NDArray[np.int64], width: F64, size: int
) -> F64:
    x = np.zeros(size)
    offsets = []
    for level in levels:
        step = (width[level][1:] + width[level][:-1]) / 2
        offset = np.concatenate([[0.0], np.cumsum(step)])
        offsets.append(offset)
        x[level] = offset - offset[-1] / 2
    for _ in range(2 * _SWEEPS):
        total, count = np.zeros(size), np.zeros(size)
        for one, other in ((tops, ends), (ends, tops)):
            np.add.at(total, one, x[other])
            np.add.at(count, one, 1)
        wish = np.where(count > 0, total / np.maximum(count, 1), x)
        for level, offset in zip(levels, offsets, strict=True):
            # apart by their widths: the targets minus the least offsets must ascend; mean of both ways of forcing it
            free = wish[level] - offset
            left, right = np.maximum.accumulate(free), np.minimum.accumulate(free[::-1])[::-1]
            x[level] = (left + right) / 2 + offset
    return x - x.min(initial=0)
