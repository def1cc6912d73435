"""The dependency graph of a Trace: order, cycles, successors, longest path, reach.

Every function takes the dependencies to use: "data", "ctrl" or "both" (a node's data, then its control dependencies). A
dependency on an id that the file lacks (an entry < 0) is not an edge, unless a function says otherwise. Kernels see
checked, contiguous arrays only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from etude.base.errors import TraceError, UsageError
from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel
from etude.kernels.csr import reverse, topological
from etude.model.trace import Trace

Which = Literal["data", "ctrl", "both"]


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Node i has rows[start[i]:start[i+1]]."""

    start: I64
    rows: I32

    def __post_init__(self) -> None:
        # Numba compiles a kernel again for writable arrays, so all of these are read-only.
        self.start.flags.writeable = self.rows.flags.writeable = False

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, node: int) -> I32:
        return self.rows[self.start[node] : self.start[node + 1]]


def dependencies(trace: Trace, which: Which = "both") -> Csr:
    """What each node waits for, as stored: file order, with duplicates; an entry < 0 is ~k into trace.missing."""
    if which == "both":
        data, ctrl = dependencies(trace, "data"), dependencies(trace, "ctrl")
        if not len(ctrl.rows) or not len(data.rows):
            return data if len(data.rows) else ctrl
        start = data.start + ctrl.start
        rows = np.empty(start[-1], np.int32)
        _interleave(data.start, data.rows, ctrl.start, ctrl.rows, start, rows)
        return Csr(start, rows)
    if which not in ("data", "ctrl"):
        raise UsageError(f"unknown dependencies: `{which}`", hint="known: data, ctrl, both")
    start = np.ascontiguousarray(getattr(trace, f"{which}_start"))
    rows = np.ascontiguousarray(getattr(trace, which))
    n = len(trace)
    if len(start) != n + 1 or start[0] != 0 or start[-1] != len(rows) or (start[1:] < start[:-1]).any():
        raise TraceError(f"{which} dependencies: the index does not fit {n} nodes and {len(rows)} dependencies")
    if len(rows) and not -len(trace.missing) <= int(rows.min()) <= int(rows.max()) < n:
        raise TraceError(f"{which} dependencies: one points outside the trace's {n} nodes")
    return Csr(start, rows)


def successors(trace: Trace, which: Which = "both") -> Csr:
    """Successors of each node: ascending, twice if a dependency appears twice."""
    dep = dependencies(trace, which)
    return Csr(*reverse(dep.start, dep.rows))


def topological_order(trace: Trace, which: Which = "both", *, block_missing: bool = False) -> I32:
    """Rows in an order in which each comes after its dependencies: first in, first out, from the roots in row order;
    nodes that become ready through the same node follow in row order. Nodes on or behind a cycle are left out, and with
    `block_missing` those on or behind a dependency on a missing id."""
    return _order(dependencies(trace, which), block_missing)


def _order(dep: Csr, block_missing: bool) -> I32:
    order = np.empty(len(dep), np.int32)
    waits = _waits(dep.start, dep.rows, block_missing)
    return order[: topological(waits, *reverse(dep.start, dep.rows), order)]


def find_cycle(trace: Trace, which: Which = "both", *, but_self: bool = False) -> I32:
    """The rows of one cycle, each waiting for the next and the last for the first; empty if there is none.

    It is the cycle found from the smallest row that cannot be ordered, following the first such dependency at each
    node; it begins with its smallest row. With `but_self`, nodes that wait for themselves do not count.
    """
    dep = dependencies(trace, which)
    if but_self:
        dep = Csr(dep.start, _without_self(dep.start, dep.rows))
    order = _order(dep, False)
    if len(order) == len(dep):
        return order[:0]
    done = np.zeros(len(dep), np.bool_)
    done[order] = True
    cycle = _walk_cycle(dep.start, dep.rows, done)
    return np.roll(cycle, -int(cycle.argmin()))


def cycle_text(ids: list[int]) -> str:
    """`3 waits for 5 waits for 3`, shortened if long."""
    shown = [*ids[:6], "...", ids[-1]] if len(ids) > 8 else ids
    return " waits for ".join(map(str, [*shown, ids[0]]))


# -- kernels -----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _interleave(start_a, rows_a, start_b, rows_b, start, rows):  # type: ignore[no-untyped-def]
    for i in range(len(start) - 1):
        p = start[i]
        for k in range(start_a[i], start_a[i + 1]):
            rows[p] = rows_a[k]
            p += 1
        for k in range(start_b[i], start_b[i + 1]):
            rows[p] = rows_b[k]
            p += 1


@kernel
def _waits(start, rows, block_missing):  # type: ignore[no-untyped-def]
    """Number of dependencies that each node waits for; those on missing ids too, if they block."""
    waits = np.empty(len(start) - 1, np.int64)
    for i in range(len(waits)):
        waits[i] = start[i + 1] - start[i]
        if not block_missing:
            for k in range(start[i], start[i + 1]):
                waits[i] -= rows[k] < 0
    return waits


@kernel
def _without_self(start, rows):  # type: ignore[no-untyped-def]
    out = rows.copy()
    for i in range(len(start) - 1):
        for k in range(start[i], start[i + 1]):
            if rows[k] == i:
                out[k] = -1
    return out


@kernel
def _walk_cycle(start, rows, done):  # type: ignore[no-untyped-def]
    """From the first node that is not done, to its first dependency that is not done, until a node repeats."""
    n = len(start) - 1
    seen_at = np.full(n, -1, np.int64)
    path = np.empty(n, np.int32)
    node = 0
    while done[node]:
        node += 1
    length = 0
    while seen_at[node] < 0:
        seen_at[node] = length
        path[length] = node
        length += 1
        for k in range(start[node], start[node + 1]):
            if rows[k] >= 0 and not done[rows[k]]:
                node = rows[k]
                break
    return path[seen_at[node] : length].copy()
