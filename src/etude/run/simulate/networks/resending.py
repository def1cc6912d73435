"""Messages of the model `links` that are on their way when a link fails or comes back.

A message that is on the failed link, or has its turn there, is sent again as a whole from where the link begins, over
another way; one that has yet to come to it goes on from where it will be. If no way is left, it waits for the link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I64, Bool
from etude.kernels.heap import put
from etude.machine.routes import Routes
from etude.machine.topology import Topology
from etude.run.simulate.networks.state import LAND, MOVE, VISIT, LinkState, Paths


class _Turn(NamedTuple):
    """A message that needs another way: after the first `hop` links of its own; `again`: it is sent from there now."""

    slot: int
    hop: int
    again: bool


def resent(state: LinkState, paths: Paths, topology: Topology, rest: Topology, failed: Bool, now_ns: int) -> LinkState:
    """A copy with these ways for what begins from now on. `rest` is the topology without the links that failed; its
    links are those of `topology` where `failed` is not set, in order."""
    moving = under_way(state)
    ways = {slot: _links(state, slot) for slot in moving.tolist()}
    turns = [turn for slot, way in ways.items() if (turn := _turn(state, slot, way, failed, now_ns)) is not None]
    kept = np.flatnonzero(~failed)
    src = np.array([topology.src[ways[t.slot][t.hop]] for t in turns], np.int64)
    dst = np.array([topology.dst[ways[t.slot][-1]] for t in turns], np.int64)
    routes = Routes(rest)
    there = routes.reach(src, dst) if len(turns) else np.zeros(0, np.bool_)
    start, found = routes.paths(src[there], dst[there], np.arange(int(there.sum())))
    stuck = set[int]()
    for turn, is_there in zip(turns, there.tolist(), strict=True):
        if not is_there:
            stuck |= set(ways[turn.slot])
    moved = [turn for turn, is_there in zip(turns, there.tolist(), strict=True) if is_there]
    for k, turn in enumerate(moved):
        before, more = ways[turn.slot], kept[found[start[k] : start[k + 1]]]
        ways[turn.slot] = np.concatenate((before[: turn.hop], more))
        if turn.again:
            _send_again(state, turn, before, now_ns)
    _free(state, np.array(sorted(set(np.flatnonzero(failed).tolist()) - stuck), np.int64), now_ns)
    longest = [int(np.diff(p.start).max(initial=1)) for p in (paths, state.paths)]
    room = sum(len(ways[turn.slot]) for turn in moved)
    room += -(-len(state.visits) * max(longest[0] - longest[1], 0) // longest[1])
    visits = np.concatenate((state.visits, np.zeros(room, VISIT))) if len(state.visits) else state.visits
    return state._replace(paths=_with(paths, state, ways), visits=visits)


def under_way(state: LinkState) -> I64:
    """Slots of messages whose heads or tails are still to arrive."""
    phase, there = state.slots["phase"], state.events.place[: len(state.slots)] >= 0
    return np.flatnonzero(((phase == MOVE) | (phase == LAND)) & there & (state.slots["hop"] > 0))


def _links(state: LinkState, slot: int) -> I64:
    path = state.slots["path"][slot]
    return state.paths.link[state.paths.start[path] : state.paths.start[path + 1]].astype(np.int64)


def _turn(state: LinkState, slot: int, way: I64, failed: Bool, now_ns: int) -> _Turn | None:
    """From where the message needs another way; None: it does not."""
    it = state.slots[slot]
    hop = int(it["hop"])
    latency = state.links["latency_ns"]
    if state.costs.cut_through:
        # when its tail is over the link before, at the latest: what comes after takes at least its latency
        over_ns = int(it["tail_ns"]) - np.cumsum(np.append(0, latency[way[1:hop]][::-1]))[::-1]
    else:
        over_ns = np.full(hop, -1, np.int64)
        over_ns[-1:] = int(state.events.key[slot])
    under_way = np.flatnonzero(failed[way[:hop]] & (over_ns > now_ns))
    if len(under_way):
        return _Turn(slot, int(under_way[0]), True)
    return _Turn(slot, hop, False) if failed[way[hop:]].any() else None


def _send_again(state: LinkState, turn: _Turn, way: I64, now_ns: int) -> None:
    clock, it = state.clock[0], state.slots[turn.slot]
    carried = state.carried[int(it["operation"])]
    size_bytes = state.amounts.size_bytes[int(carried["size0"]) + turn.slot - int(carried["base"])]
    np.subtract.at(state.links["carried_bytes"], way[turn.hop : int(it["hop"])], size_bytes)
    it["phase"], it["hop"], it["tail_ns"] = MOVE, turn.hop, now_ns
    put(state.events, turn.slot, now_ns, clock["turn"])
    clock["turn"] += 1


def _free(state: LinkState, links: I64, now_ns: int) -> None:
    """Links that failed are not in use any more."""
    of, visits = state.links, state.visits[: int(state.clock["visits"][0])]
    later = np.maximum(of["free_ns"][links] - now_ns, 0)
    of["busy_ns"][links] -= later
    of["free_ns"][links] -= later
    cut = np.flatnonzero(np.isin(visits["link"], links) & (visits["end_ns"] > now_ns))
    visits["begin_ns"][cut] = np.minimum(visits["begin_ns"][cut], now_ns)
    visits["end_ns"][cut] = now_ns


def _with(paths: Paths, state: LinkState, ways: dict[int, I64]) -> Paths:
    """With a way of its own for each message that is on its way."""
    if not ways:
        return paths
    first = len(paths.start) - 1
    state.slots["path"][list(ways)] = first + np.arange(len(ways))
    ends = paths.start[-1] + np.cumsum([len(way) for way in ways.values()])
    link = np.concatenate((paths.link, *ways.values())).astype(paths.link.dtype)
    return paths._replace(start=np.append(paths.start, ends).astype(paths.start.dtype), link=link)
