"""Routes: the ways through a topology.

In a product, dimension by dimension: along a ring the shorter way, across a switch through it. A tie on a ring goes up,
or, where the dimension splits ties, goes up between every second pair and down between the others, and the other way
round for every second flow.
In any other graph, fewest hops; among those, the widest (the largest smallest bandwidth); among those, equal-cost
multi-path: at each vertex with c next hops, flow f takes the (h + f)-th modulo c, with h a hash of (from, to, depth),
and goes on with f // c. So flows 0, 1, 2, ... of one pair take all its ways before one is taken twice, and the same
(from, to, flow) always takes the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError
from etude.kernels.arrays import I32, I64, as_read
from etude.kernels.compile import kernel
from etude.machine.topology import SHAPES, Topology, VertexKind

_FAR = np.int32(2**30)
_KEPT_CELLS = 1 << 25
"""Vertices times searches that are remembered: 400 MB."""


class Net(NamedTuple):
    """The links of a topology in the form that searches need."""

    src: I32
    dst: I32
    bytes_per_s: NDArray[np.float64]
    forwards: NDArray[np.bool_]  # of each vertex: passes on what is not its own
    out_start: I64  # links out_link[out_start[v]:out_start[v + 1]] leave vertex v
    out_link: I32
    in_start: I64
    in_link: I32


def net_of(topology: Topology) -> Net:
    t, in_start = topology, np.zeros(len(topology.kind) + 1, np.int64)
    wires = slice(t.wires)
    np.cumsum(np.bincount(t.dst[wires], minlength=len(t.kind)), out=in_start[1:])
    in_link = np.argsort(t.dst[wires], kind="stable").astype(np.int32)
    return Net(t.src[wires], t.dst[wires], t.bytes_per_s[wires], t.forwards, t.out_start, t.out_link, in_start, in_link)


class Distances(NamedTuple):
    """From each vertex to one goal: hops, and the smallest bandwidth on the widest of the shortest routes."""

    hops: I32
    width: NDArray[np.float64]


class Ways(NamedTuple):
    """Requested routes, to goals with one anchor; `length` is filled with their hops."""

    source: I64
    goal: I64
    flow: I64
    anchor: I64
    length: I64


_LONGEST = 64
"""Hops after which tables lead in a circle."""


def _walk_tables(t: Topology, src: I64, dst: I64) -> tuple[I64, I32]:
    """The way of each pair by the tables of the switches."""
    assert t.tables is not None
    at, column = src.copy(), t.tables.column[dst]
    steps: list[I64] = []
    while (open_ := at != dst).any():
        link = np.where(open_, t.tables.link[at, column], -1)
        lost = np.flatnonzero(open_ & ((link < 0) | (column < 0) | (len(steps) >= _LONGEST)))
        if len(lost):
            ends = t.vertex_name(int(src[lost[0]])), t.vertex_name(int(dst[lost[0]]))
            why = "lead in a circle" if len(steps) >= _LONGEST else f"end at {t.vertex_name(int(at[lost[0]]))}"
            raise ClusterError(f"the routing tables from {ends[0]} to {ends[1]} {why}", where=t.name)
        steps.append(link)
        at = np.where(open_, t.dst[link], at)
    walked = np.array(steps, np.int32).reshape(len(steps), len(src)).T
    start = np.append(0, np.cumsum((walked >= 0).sum(axis=1)))
    return start, np.ascontiguousarray(walked[walked >= 0])


class Routes:
    """Routes between vertices of one topology, searched on request and cached per destination.

    Vertices with one way in share the search of the vertex before them, so 16k devices on 800 leaves are 800
    searches.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._net = net_of(topology)
        self._step = _product_table(topology)
        self._tail, self._anchor = _tails(self._net)
        self._width: dict[int, Distances] = {}

    def paths(self, src: NDArray[Any], dst: NDArray[Any], flow: NDArray[Any] | int = 0) -> tuple[I64, I32]:
        """Route from vertex src[i] to vertex dst[i]: links[start[i]:start[i + 1]], first hop first. Empty if src is
        dst."""
        src = np.ascontiguousarray(src, np.int64)
        dst = np.ascontiguousarray(dst, np.int64)
        flows = as_read(np.broadcast_to(np.asarray(flow, np.int64), src.shape))
        t = self.topology
        if len(src) == 0:
            return np.zeros(1, np.int64), np.zeros(0, np.int32)
        devices = int(np.count_nonzero(t.kind == VertexKind.DEVICE))
        if t.tables is not None:
            start, links = _walk_tables(t, src, dst)
        elif t.dimensions and max(src.max(), dst.max()) < devices:
            start, links = _walk_product(src, dst, flows, self._step)
        else:
            start, links = self._searched(src, dst, flows)
        return t.windows.on(src, start, links, t) if t.windows else (start, links)

    def first_links(self, src: I64, dst: I64) -> I64:
        """Number of distinct first links of the equal routes from vertex src[i] to vertex dst[i], another one."""
        count = np.ones(len(src), np.int64)
        if self.topology.dimensions:
            return count
        leave = np.diff(self._net.out_start)[src]
        asked = np.flatnonzero((leave > 1) & ~self._on_tail(src, dst))
        anchor = self._anchor[dst[asked]]
        order = np.argsort(anchor, kind="stable")
        for some in np.split(asked[order], np.flatnonzero(np.diff(anchor[order])) + 1):
            if len(some):
                count[some] = self._next_hops(src[some], leave[some], self._search(int(self._anchor[dst[some[0]]])))
        return count

    def _on_tail(self, src: I64, dst: I64) -> NDArray[np.bool_]:
        """Whether the source is on the only way into the goal, or where that begins."""
        at, anchor = dst, self._anchor[dst]
        found = at == src
        while (at != anchor).any():
            at = np.where(at != anchor, self._net.src[self._tail[at]], at)
            found |= at == src
        return found

    def _next_hops(self, src: I64, leave: I64, distances: Distances) -> I64:
        """Links of each vertex that begin a route of fewest hops, and of these a widest one; as `_walk` takes them."""
        net, (hops, width) = self._net, distances
        which = np.repeat(np.arange(len(src)), leave)
        link = net.out_link[np.arange(len(which)) - np.repeat(np.cumsum(leave) - leave - net.out_start[src], leave)]
        here, there = src[which], net.dst[link]
        wide = np.minimum(width[there], net.bytes_per_s[link]) >= width[here]
        return np.bincount(which[(hops[there] == hops[here] - 1) & wide], minlength=len(src))

    def hops_to(self, vertex: int) -> I32:
        """Hops from every vertex to this one; 2**30: unreachable."""
        return self._distances(vertex).hops

    def reach(self, src: I64, dst: I64) -> NDArray[np.bool_]:
        """Whether there is a route from vertex src[i] to vertex dst[i]."""
        found = np.zeros(len(src), np.bool_)
        for goal in np.unique(dst).tolist():
            some = dst == goal
            found[some] = self.hops_to(goal)[src[some]] < _FAR
        return found

    def _distances(self, goal: int) -> Distances:
        return Distances(*_distances(goal, self._net))

    def _searched(self, src: I64, dst: I64, flow: I64) -> tuple[I64, I32]:
        anchor = self._anchor[dst]
        order = np.argsort(anchor, kind="stable")
        bounds = np.flatnonzero(np.diff(anchor[order], prepend=-1))
        length = np.zeros(len(src), np.int64)
        parts: list[I32] = []
        for at, begin in enumerate(bounds):
            some = order[begin : bounds[at + 1] if at + 1 < len(bounds) else len(order)]
            ways = Ways(src[some], dst[some], flow[some], anchor[some], np.zeros(len(some), np.int64))
            part, bad = _walk(ways, self._tail, self._net, self._search(int(anchor[some[0]])))
            length[some] = ways.length
            if bad >= 0:
                raise self._no_way(int(src[some[bad]]), int(dst[some[bad]]))
            parts.append(part)
        start = np.zeros(len(src) + 1, np.int64)
        np.cumsum(length, out=start[1:])
        return start, _in_order(np.concatenate(parts), order, length, start)

    def _search(self, anchor: int) -> Distances:
        found = self._width.get(anchor)
        if found is None:
            found = self._distances(anchor)
            if len(self._width) * len(self.topology.kind) >= _KEPT_CELLS:
                self._width.pop(next(iter(self._width)))  # the oldest
            self._width[anchor] = found
        return found

    def _no_way(self, src: int, dst: int) -> ClusterError:
        name = self.topology.vertex_name
        return ClusterError(f"no route from {name(src)} to {name(dst)}", where=self.topology.name)


def check_connected(topology: Topology) -> None:
    """Refuses a topology in which the first device cannot reach some other, or cannot be reached by it."""
    routes, device = Routes(topology), topology.device.astype(np.int64)
    first = np.full(len(device), device[0])
    routes._searched(device, first, np.zeros(len(device), np.int64))
    reached = _reaches(int(device[0]), routes._net)
    lost = np.flatnonzero(~reached[device])
    if len(lost):
        raise routes._no_way(int(device[0]), int(device[lost[0]]))


def common_switch(topology: Topology, ranks: NDArray[Any], routes: Routes | None = None) -> int:
    """The switch nearest to all of them: fewest hops to the farthest, then in total, then the first."""
    routes = routes or Routes(topology)
    farthest = np.zeros(len(topology.kind), np.int64)
    total = np.zeros(len(topology.kind), np.int64)
    for vertex in topology.device[np.asarray(ranks)]:
        anchor = int(routes._anchor[vertex])
        hops, _ = routes._search(anchor)
        away = hops.astype(np.int64) + _tail_length(routes._tail, topology.src, int(vertex), anchor)
        np.maximum(farthest, away, out=farthest)
        total += away
    switches = np.flatnonzero(topology.kind == VertexKind.SWITCH)
    if len(switches) == 0 or farthest[switches].min() >= _FAR:
        raise ClusterError("no switch reaches all members of the group", where=topology.name)
    best = np.lexsort((total[switches], farthest[switches]))[0]
    return int(switches[best])


def _tail_length(tail: I32, src: I32, vertex: int, anchor: int) -> int:
    hops = 0
    while vertex != anchor:
        vertex, hops = int(src[tail[vertex]]), hops + 1
    return hops


def _product_table(topology: Topology) -> I64:
    devices = int(np.count_nonzero(topology.kind == VertexKind.DEVICE))  # ranks may be fewer
    rows = [
        (SHAPES.index(d.shape), d.size, d.first_link, devices, d.split_ties, d.has_core) for d in topology.dimensions
    ]
    return np.array(rows, np.int64).reshape(-1, 6)


# ---------------------------------------------------------------------------------------------------------------------


@kernel
def _tails(net):  # type: ignore[no-untyped-def]
    """Where a vertex has one way in, that link; the anchor is the first vertex on the way back that has not."""
    src, forwards, in_start, out_start = net.src, net.forwards, net.in_start, net.out_start
    n = len(in_start) - 1
    tail = np.full(n, -1, np.int32)
    anchor = np.arange(n)
    for v in range(n):
        at = v
        hops = 0
        while in_start[at + 1] - in_start[at] == 1 and hops < 8:
            link = net.in_link[in_start[at]]
            before = src[link]
            # What the tail joins must be a crossing: of two vertices with one way in each, one would hide the other.
            if before == v or not forwards[before] or (hops > 0 and not forwards[at]):
                break
            if out_start[before + 1] - out_start[before] < 2:
                break
            tail[at] = link
            at = before
            hops += 1
        anchor[v] = at
    return tail, anchor


@kernel
def _distances(goal, net):  # type: ignore[no-untyped-def]
    """The fields of `Distances`."""
    src, bytes_per_s, forwards, in_start, in_link = net.src, net.bytes_per_s, net.forwards, net.in_start, net.in_link
    n = len(in_start) - 1
    hops = np.full(n, 1 << 30, np.int32)
    width = np.zeros(n, np.float64)
    queue = np.empty(n, np.int32)
    hops[goal] = 0
    width[goal] = np.inf
    queue[0] = goal
    head, tail = 0, 1
    while head < tail:
        v = queue[head]
        head += 1
        if v != goal and not forwards[v]:
            continue
        for k in range(in_start[v], in_start[v + 1]):
            link = in_link[k]
            u = src[link]
            if hops[u] > hops[v] + 1:
                hops[u] = hops[v] + 1
                queue[tail] = u
                tail += 1
            if hops[u] == hops[v] + 1:
                width[u] = max(width[u], min(width[v], bytes_per_s[link]))
    return hops, width


@kernel
def _mix(a, b, c):  # type: ignore[no-untyped-def]
    x = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(c)
    x ^= x >> np.uint64(31)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(29)
    return np.int64(x >> np.uint64(2))


@kernel
def _walk(ways, tail, net, distances):  # type: ignore[no-untyped-def]
    """Links of all routes, one after the other. Second: a missing route, or -1."""
    source, goal, anchor, length = ways.source, ways.goal, ways.anchor, ways.length
    src, dst, bytes_per_s, out_start, out_link = net.src, net.dst, net.bytes_per_s, net.out_start, net.out_link
    hops, width = distances.hops, distances.width
    out = np.empty(len(source) * 8, np.int32)
    used = 0
    back = np.empty(16, np.int32)
    for i in range(len(source)):
        begin = used
        v = source[i]
        rest = ways.flow[i]
        if v == goal[i]:
            continue
        # The source may be on the tail of the goal.
        tails = 0
        at = goal[i]
        while at != anchor[i] and at != v:
            back[tails] = tail[at]
            tails += 1
            at = src[tail[at]]
        if at == v:
            v = at
        elif hops[v] >= 1 << 30:
            return out[:0], i
        depth = 0
        while v != at:
            choices = 0
            for pass_ in range(2):
                pick = (_mix(source[i], goal[i], depth) + rest) % choices if pass_ else -1
                seen = 0
                for k in range(out_start[v], out_start[v + 1]):
                    link = out_link[k]
                    u = dst[link]
                    if hops[u] == hops[v] - 1 and min(width[u], bytes_per_s[link]) >= width[v]:
                        if seen == pick:
                            if used + tails + 1 >= len(out):
                                out = np.concatenate((out, np.empty(len(out) + 64, np.int32)))
                            out[used] = link
                            used += 1
                            v = u
                            break
                        seen += 1
                choices = seen
                if pass_ == 0:
                    if choices == 0:
                        return out[:0], i
                    many = choices
            rest //= many
            depth += 1
        if used + tails + 1 >= len(out):
            out = np.concatenate((out, np.empty(len(out) + 64, np.int32)))
        for k in range(tails - 1, -1, -1):
            out[used] = back[k]
            used += 1
        length[i] = used - begin
    return out[:used].copy(), -1


@kernel
def _in_order(links, order, length, start):  # type: ignore[no-untyped-def]
    out = np.empty(len(links), np.int32)
    at = 0
    for i in order:
        for k in range(length[i]):
            out[start[i] + k] = links[at]
            at += 1
    return out


@kernel
def _reaches(first, net):  # type: ignore[no-untyped-def]
    n = len(net.out_start) - 1
    seen = np.zeros(n, np.bool_)
    stack = np.empty(n, np.int32)
    stack[0] = first
    seen[first] = True
    top = 1
    while top:
        top -= 1
        v = stack[top]
        if v != first and not net.forwards[v]:
            continue
        for k in range(net.out_start[v], net.out_start[v + 1]):
            u = net.dst[net.out_link[k]]
            if not seen[u]:
                seen[u] = True
                stack[top] = u
                top += 1
    return seen


@kernel
def _walk_product(source, goal, flow, dimensions):  # type: ignore[no-untyped-def]
    """The order of links is that of `topology._add_dimension`; rows are (shape, size, first link, devices, split ties,
    has a core)."""
    start = np.zeros(len(source) + 1, np.int64)
    links = np.empty(0, np.int32)
    for pass_ in range(2):
        used = 0
        for i in range(len(source)):
            v = source[i]
            step = 1
            for d in range(len(dimensions)):
                shape, size, first, devices, split, core = dimensions[d]
                a = v // step % size
                b = goal[i] // step % size
                ahead = (b - a) % size
                hops = 1
                if ahead == 0:
                    step *= size
                    continue
                if shape == 0:
                    hops = min(ahead, size - ahead)
                elif shape == 2:
                    hops = 2 + core
                elif shape == 3:
                    hops = abs(b - a)
                if pass_ == 0:
                    used += hops
                    v += (b - a) * step
                    step *= size
                    continue
                if shape == 1:
                    links[used] = first + v * (size - 1) + ahead - 1
                    used += 1
                    v += (b - a) * step
                elif shape == 2:
                    links[used] = first + v
                    if core:
                        links[used + 1] = first + 2 * devices + v % step + v // (step * size) * step
                    v += (b - a) * step
                    links[used + 1 + core] = first + devices + v
                    used += hops
                elif shape == 3:
                    line = v % step + v // (step * size) * step
                    for k in range(hops):
                        at = a + k if b > a else size - 2 + a - k
                        links[used] = first + line * 2 * (size - 1) + at
                        used += 1
                    v += (b - a) * step
                else:
                    up = 2 * ahead <= size
                    if split and 2 * ahead == size and size > 2:
                        # Both ways between the two go up, or both go down: together they use every link once.
                        up = (a % ahead + flow[i]) % 2 == 0
                    for _ in range(hops):
                        a = v // step % size
                        c = (a + 1 if up else a + size - 1) % size
                        links[used] = first + (v if size == 2 else 2 * v + (0 if up else 1))
                        used += 1
                        v += (c - a) * step
                step *= size
            start[i + 1] = used
        if pass_ == 0:
            links = np.empty(used, np.int32)
    return start, links
