"""The dependency graph of a Trace: order, cycles, successors, longest path, reach.

Every function takes the dependencies to use: "data", "ctrl" or "both" (a node's data, then its control dependencies). A
dependency on an id that the file lacks (an entry < 0) is not an edge, unless a function says otherwise. Kernels see
checked, contiguous arrays only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.base.errors import CycleError, TraceError, UsageError
from etude.kernels.arrays import I32, I64, Bool
from etude.kernels.compile import kernel
from etude.kernels.csr import reverse, topological
from etude.model.schema import UNKNOWN
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


def longest_path(trace: Trace, cost_ns: ArrayLike, which: Which = "both") -> tuple[I64, I32]:
    """(finish_ns of each node, rows of the longest path from a root to the node that finishes last).

    A node starts when all that it waits for have finished, and lasts its cost. Ties go to the smallest row.
    """
    cost = np.array(cost_ns, np.int64)
    if cost.shape != (len(trace),):
        raise UsageError(f"costs have shape {cost.shape}, expected ({len(trace)},)")
    if (cost < 0).any():
        node = int(np.flatnonzero(cost < 0)[0])
        shown = "not known" if cost[node] == UNKNOWN else f"{cost[node]} ns"
        raise UsageError(f"the cost of node {node} is {shown}", hint="give every node a cost of 0 ns or more")
    dep, order = _acyclic(trace, which)
    finish_ns, before = _longest(dep.start, dep.rows, order, cost)
    path = []
    node = int(finish_ns.argmax()) if len(finish_ns) else -1
    while node >= 0:
        path.append(node)
        node = int(before[node])
    return finish_ns, np.array(path[::-1], np.int32)


def depth(trace: Trace, which: Which = "both") -> I32:
    """Number of dependencies on the longest chain that leads to each node; 0 on a root."""
    dep, order = _acyclic(trace, which)
    return (_longest(dep.start, dep.rows, order, np.ones(len(dep), np.int64))[0] - 1).astype(np.int32)


def ancestors(trace: Trace, rows: ArrayLike, which: Which = "both") -> Bool:
    """Mask of these rows and of all that they depend on, directly or not."""
    dep = dependencies(trace, which)
    return _reached(dep.start, dep.rows, _rows(rows, len(trace)))


def descendants(trace: Trace, rows: ArrayLike, which: Which = "both") -> Bool:
    """Mask of these rows and of all that depend on them, directly or not."""
    after = successors(trace, which)
    return _reached(after.start, after.rows, _rows(rows, len(trace)))


def _rows(rows: ArrayLike, n: int) -> I32:
    given = np.atleast_1d(np.asarray(rows))
    if given.dtype == bool:
        raise UsageError("rows must be numbers, not a mask", hint="np.flatnonzero(mask)")
    found: NDArray[Any] = given.astype(np.int64)
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < n:
        raise UsageError(f"a row is outside the trace's {n} nodes")
    return np.ascontiguousarray(found, np.int32)


def _acyclic(trace: Trace, which: Which) -> tuple[Csr, I32]:
    dep = dependencies(trace, which)
    order = _order(dep, False)
    if len(order) < len(dep):
        ids = trace.source_id[find_cycle(trace, which)].tolist()
        raise CycleError(f"nodes wait for one another: {cycle_text(ids)}")
    return dep, order


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


@kernel
def _longest(start, rows, order, cost):  # type: ignore[no-untyped-def]
    """(finish of each node, the dependency that let it start last or -1)."""
    finish = np.zeros(len(cost), np.int64)
    before = np.full(len(cost), -1, np.int32)
    for i in order:
        begin = np.int64(0)
        last = np.int32(-1)
        for k in range(start[i], start[i + 1]):
            d = rows[k]
            if d >= 0 and (last < 0 or finish[d] > begin or (finish[d] == begin and d < last)):
                begin = finish[d]
                last = d
        finish[i] = begin + cost[i]
        before[i] = last
    return finish, before


@kernel
def _reached(start, rows, seeds):  # type: ignore[no-untyped-def]
    mask = np.zeros(len(start) - 1, np.bool_)
    stack = np.empty(len(start) - 1, np.int32)
    top = 0
    for s in seeds:
        if not mask[s]:
            mask[s] = True
            stack[top] = s
            top += 1
    while top > 0:
        top -= 1
        node = stack[top]
        for k in range(start[node], start[node + 1]):
            d = rows[k]
            if d >= 0 and not mask[d]:
                mask[d] = True
                stack[top] = d
                top += 1
    return mask
