"""Messages in columns: there are hundreds of thousands, so all are handled at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.kernels.arrays import I32, I64
from etude.machine.routes import Routes
from etude.run.simulate.networks.operation import Operation

_WALKED: Final = 1 << 18
"""Routes that are examined together: a few MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Message i goes from rank src[i] to rank dst[i], in parts[i] parts that start together."""

    src: I64
    dst: I64
    size_bytes: I64
    flow: I64
    launch_ns: I64
    wire_ppm: I64
    parts: I64

    def __len__(self) -> int:
        return len(self.src)


def messages_of(operations: Sequence[Operation]) -> Messages:
    """Operations that are messages, each in one part."""
    pair = np.array([op.members for op in operations], np.int64).reshape(-1, 2)
    rows = [(op.size_bytes, op.flow, op.launch_ns, op.wire_ppm, 1) for op in operations]
    return Messages(pair[:, 0], pair[:, 1], *np.array(rows, np.int64).reshape(-1, 5).T)


def distinct(*columns: I64) -> tuple[I64, I64]:
    """(first, which): rows that differ from all before them, and for each row its index among those."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    new[:1] = True
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def equal_ways(routes: Routes, src: I64, dst: I64, most: int) -> I64:
    """Number of distinct routes of the first `most` flows from each vertex to another. Equal pairs are examined
    once."""
    first, which = distinct(src, dst)
    count = np.ones(len(first), np.int64)
    step = max(_WALKED // most, 1)
    for begin in range(0, len(first), step):
        some = first[begin : begin + step]
        flow = np.tile(np.arange(most), len(some))
        start, links = routes.paths(np.repeat(src[some], most), np.repeat(dst[some], most), flow)
        count[begin : begin + step] = _different(start, links, most)
    return count[which]


def _different(start: I64, links: I32, each: int) -> I64:
    """How many of each pair's routes use links different from those before."""
    length = np.diff(start)
    of = np.arange(len(length)) // each
    number = of
    for hop in range(int(length.max())):
        link = np.full(len(length), -1, np.int64)
        link[hop < length] = links[(start[:-1] + hop)[hop < length]]
        number = distinct(number, link)[1]
    return np.bincount(of[distinct(number)[0]])
