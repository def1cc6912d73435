"""Links that change during a run: rates over time, and other routes when links fail.

A route with a failed link is searched again among the remaining links; it is restored when all of its links are back.
Traffic on such a route continues on the new one with the rest of its bytes. If no route is left, it waits for the
link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.machine.faults import without
from etude.machine.routes import Routes
from etude.machine.topology import Topology
from etude.run.simulate.networks.resending import under_way
from etude.run.simulate.networks.state import ENTRY, VISIT, FlowState, LinkState, Paths, Rates, Table

LATE_NS: Final = 10**17
"""Three years: whatever ends later is on a link that lets nothing through."""


def rates_over_time(topology: Topology, changes: Sequence[tuple[int, I64, float]]) -> Rates:
    """From (time, links, factor) in order of time: the rates of each link, each from a time on."""
    n = len(topology.src)
    link = np.concatenate((np.arange(n), *(rows for _, rows, _ in changes)))
    since = np.concatenate((np.zeros(n), *(np.full(len(rows), time) for time, rows, _ in changes)))
    factor = np.concatenate((np.ones(n), *(np.full(len(rows), by) for _, rows, by in changes)))
    order = np.argsort(link, kind="stable")
    start = np.append(0, np.cumsum(np.bincount(link, minlength=n)))
    return Rates(start, since[order].astype(np.int64), (topology.bytes_per_s[link] / 1e9 / factor)[order])


class Rerouting:
    """The routes of a network with links, as links fail and come back."""

    def __init__(self, topology: Topology, paths: Paths) -> None:
        self.topology, self.paths = topology, paths
        self.factor: F64 = np.ones(len(topology.src))
        self.length = np.diff(paths.start)
        self.path_of_link = np.repeat(np.arange(len(self.length)), self.length)

    def change(self, links: I64, factor: float) -> Paths | None:
        """Slows links down by a factor from now on, or cuts them (math.inf). Returns the routes if they change."""
        failed = np.isinf(self.factor)
        self.factor[links] = factor
        now = np.isinf(self.factor)
        return self._searched(now) if (failed != now).any() else None

    @property
    def failed(self) -> NDArray[np.bool_]:
        return np.isinf(self.factor)

    @property
    def rest(self) -> Topology:
        """The topology without the links that failed."""
        return without(self.topology, self.failed, self.topology.bytes_per_s)[0]

    def _searched(self, failed: NDArray[np.bool_]) -> Paths:
        p = self.paths
        some = np.unique(self.path_of_link[failed[p.link]])
        if not len(some):
            return p
        rate = self.topology.bytes_per_s / np.where(failed, 1.0, self.factor)
        rest, kept = without(self.topology, failed, rate)
        src = self.topology.src[p.link[p.start[some]]].astype(np.int64)
        dst = self.topology.dst[p.link[p.start[some + 1] - 1]].astype(np.int64)
        routes = Routes(rest)
        there = routes.reach(src, dst)
        some, src, dst = some[there], src[there], dst[there]
        start, found = routes.paths(src, dst, _turn(src * len(self.topology.kind) + dst))
        length = self.length.copy()
        length[some] = np.diff(start)
        begin = np.append(0, np.cumsum(length))
        link, same = np.empty(begin[-1], np.int64), np.ones(len(length), bool)
        same[some] = False
        link[_spread(begin[:-1][same], length[same])] = p.link[_spread(p.start[:-1][same], length[same])]
        link[_spread(begin[some], length[some])] = kept[found]
        return p._replace(start=begin, link=link)


def _turn(pair: I64) -> I64:
    """For each route, how many before it join the same two ends: each takes another of the remaining routes."""
    order = np.argsort(pair, kind="stable")
    first = np.append(True, np.diff(pair[order]) != 0)[: len(pair)]
    place = np.arange(len(pair))
    turn = np.empty(len(pair), np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return turn


def _spread(begin: I64, length: I64) -> I64:
    """begin[0] .. begin[0] + length[0], then begin[1] .. and so on."""
    return np.arange(int(length.sum())) + np.repeat(begin - np.append(0, np.cumsum(length))[:-1], length)


# -- flows that are on their way ---------------------------------------------------------------------------------------


def moved(state: LinkState, flows: FlowState, paths: Paths) -> tuple[LinkState, FlowState]:
    """A copy with all live flows on these routes. They keep their old rates until the next sharing."""
    live = flows.live[: int(flows.clock["live"][0])]
    path, now_ns = state.slots["path"][live], int(state.clock["now_ns"][0])
    old, new = (_on_links(p, path) for p in (state.paths, paths))
    hop_bits = max(flows.hop_bits, int(np.diff(paths.start).max(initial=1) - 1).bit_length())
    entries = np.zeros(len(flows.slots) << hop_bits, ENTRY)
    _enter(flows, entries, live[new.who] << hop_bits | new.hop, new.link, now_ns, state.links)
    speed = flows.slots["speed"][live][new.who]
    flows.links["load"] = np.bincount(new.link, speed, minlength=len(flows.links))
    rest = _rest_bytes(state, flows, live, now_ns)
    for side, sign in ((old, -1), (new, 1)):
        np.add.at(state.links["carried_bytes"], side.link, sign * rest[side.who])
    latency = state.links["latency_ns"]
    lag = _lags(state, live)
    state.slots["tail_ns"][live] = np.maximum(
        lag + np.bincount(new.who, latency[new.link], minlength=len(live)).astype(np.int64), 0
    )
    state = state._replace(paths=paths, visits=_visits(state, paths, live, old, new, rest))
    return state, flows._replace(hop_bits=hop_bits, entries=entries)


class _OnLinks:
    """Some flows in order: flow, hop and link."""

    def __init__(self, who: I64, hop: I64, link: I64) -> None:
        self.who, self.hop, self.link = who, hop, link


def _on_links(paths: Paths, path: I64) -> _OnLinks:
    begin, length = paths.start[path], np.diff(paths.start)[path]
    at = _spread(begin, length)
    return _OnLinks(np.repeat(np.arange(len(path)), length), at - np.repeat(begin, length), paths.link[at])


def _enter(flows: FlowState, entries: Table, entry: I64, link: I64, now_ns: int, links: Table) -> None:
    """Rebuilds all lists of links."""
    of = flows.links
    busy = of["active"] > 0
    links["busy_ns"][busy] += now_ns - of["busy_since_ns"][busy]
    of["busy_since_ns"], of["head"], of["is_dirty"] = now_ns, -1, 0
    flows.clock["dirty"] = 0
    of["active"] = np.bincount(link, minlength=len(of))
    order = np.argsort(link, kind="stable")
    entry, link = entry[order], link[order]
    same = np.diff(link) == 0
    entries["after"][entry] = entries["before"][entry] = -1
    entries["after"][entry[:-1][same]] = entry[1:][same]
    entries["before"][entry[1:][same]] = entry[:-1][same]
    first = np.append(True, ~same)[: len(link)]
    of["head"][link[first]] = entry[first]


def _transfer(state: LinkState, live: I64) -> tuple[Table, I64]:
    """The operation of each slot, and its number there."""
    carried = state.carried[state.slots["operation"][live]]
    return carried, live - carried["base"]


def _rest_bytes(state: LinkState, flows: FlowState, live: I64, now_ns: int) -> I64:
    """Bytes of each flow that are not sent yet."""
    carried, transfer = _transfer(state, live)
    it = flows.slots[live]
    rest = np.maximum(it["rest_bytes"] - it["speed"] * (now_ns - it["since_ns"]), 0.0)
    part = rest / np.maximum(state.slots["wire_bytes"][live], 1e-300)
    return np.rint(state.amounts.size_bytes[carried["size0"] + transfer] * part).astype(np.int64)


def _lags(state: LinkState, live: I64) -> I64:
    carried, transfer = _transfer(state, live)
    lags = np.zeros(len(live), np.int64)
    some = carried["lag0"] >= 0
    lags[some] = state.amounts.lag_ns[(carried["lag0"] + transfer)[some]]
    return lags


def _visits(state: LinkState, paths: Paths, live: I64, old: _OnLinks, new: _OnLinks, rest: I64) -> Table:
    """Statistics: bytes sent so far were on the old links, the rest is on the new ones."""
    visits, clock = state.visits, state.clock[0]
    if not len(visits):
        return visits
    now_ns, used = int(clock["now_ns"]), int(clock["visits"])
    at = state.slots["visit0"][live][old.who] + old.hop
    visits["end_ns"][at] = now_ns
    visits["size_bytes"][at] -= rest[old.who]
    longest = [int(np.diff(p.start).max(initial=1)) for p in (paths, state.paths)]
    room = len(new.who) + -(-len(visits) * max(longest[0] - longest[1], 0) // longest[1])
    visits = np.concatenate((visits, np.zeros(room, VISIT)))
    more = visits[used : used + len(new.who)]
    more["operation"], more["link"] = state.slots["operation"][live][new.who], new.link
    more["size_bytes"], more["came_ns"], more["begin_ns"], more["end_ns"] = rest[new.who], now_ns, now_ns, -1
    first = np.append(True, np.diff(new.who) != 0)[: len(new.who)]
    state.slots["visit0"][live[new.who[first]]] = used + np.flatnonzero(first)
    clock["visits"] = used + len(new.who)
    return visits


def waiting(state: LinkState, flows: FlowState | None, topology: Topology) -> list[tuple[int, int]]:
    """Ends (vertices) of transfers on a link that lets nothing through."""
    if flows is None:
        slots = under_way(state)
        late = np.maximum(state.events.key[slots], state.slots["tail_ns"][slots]) >= LATE_NS
        return _ends(state, slots[late], topology)
    live = flows.live[: int(flows.clock["live"][0])]
    return _ends(state, live[flows.slots["speed"][live] == 0], topology)


def _ends(state: LinkState, slots: I64, topology: Topology) -> list[tuple[int, int]]:
    path, p = state.slots["path"][slots], state.paths
    src, dst = topology.src[p.link[p.start[path]]], topology.dst[p.link[p.start[path + 1] - 1]]
    return sorted(set(zip(src.tolist(), dst.tolist(), strict=True)))
