"""Kernels of the model `links`: a link takes one message at a time, in order of arrival.

Store-and-forward: a message that a link takes at t is whole at the next vertex at t + floor(latency + bytes / rate),
and the link is free again at t + floor(bytes / rate). Cut-through: its head goes on after the latency alone, its tail
follows at the rate of the slowest link so far.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.compile import kernel
from etude.run.simulate.networks.slots import keep_visit, put_event
from etude.run.simulate.networks.state import LAND, MOVE, LinkState, Rates

NOT_ANY_MORE_NS: Final = 4 * 10**17
"""When a link that has failed is over with a message."""


@kernel(allocates=False)
def _moving_ns(rates: Rates, link: int, begin_ns: int, wire_bytes: float) -> float:
    """Time that the link needs from a time on, while its rate changes: the bytes are the integral of the rate."""
    at_ns, rest = np.float64(begin_ns), wire_bytes
    for k in range(rates.start[link], rates.start[link + 1]):
        last = k + 1 == rates.start[link + 1]
        if not last and rates.since_ns[k + 1] <= at_ns:
            continue
        room = (rates.since_ns[k + 1] - at_ns) * rates.bytes_per_ns[k] if not last else np.inf
        if last and rates.bytes_per_ns[k] <= 0:
            return max(NOT_ANY_MORE_NS - np.float64(begin_ns), 1.0)
        if rest <= room:
            return at_ns - begin_ns + (rest / rates.bytes_per_ns[k] if rest > 0 else 0.0)
        rest -= room
        at_ns = np.float64(rates.since_ns[k + 1])
    return at_ns - begin_ns


@kernel(allocates=False)
def hop(state: LinkState, slot: int, size_bytes: int, lag_ns: int) -> None:
    """The message is at its next link, or at its destination."""
    it, now_ns = state.slots[slot], state.clock[0].now_ns
    at, last = state.paths.start[it.path] + it.hop, state.paths.start[it.path + 1]
    it.phase = MOVE
    if at == last:
        it.phase = LAND
        put_event(state, slot, max(now_ns, it.tail_ns))
        return
    number = state.paths.link[at]
    link = state.links[number]
    begin_ns = max(now_ns, link.free_ns)
    moving_ns = it.wire_bytes / link.bytes_per_ns
    if len(state.rates.since_ns) > 0:
        moving_ns = _moving_ns(state.rates, number, begin_ns, it.wire_bytes)
    latency_ns = link.latency_ns
    if at + 1 == last:
        latency_ns = max(latency_ns + lag_ns, 0)
    link.carried_bytes += size_bytes
    if state.paths.choices > 1:
        link.coming -= 1
    it.hop += 1
    if state.costs.cut_through:
        # Its tail cannot leave before it has arrived from the previous link. A link that is faster than that one
        # forwards other messages in between: it is busy for as long as the bytes need.
        it.tail_ns = max(begin_ns + np.int64(moving_ns), it.tail_ns) + latency_ns
        put_event(state, slot, begin_ns + latency_ns)
    else:
        put_event(state, slot, begin_ns + np.int64(latency_ns + moving_ns))
    end_ns = begin_ns + np.int64(moving_ns)
    link.busy_ns += end_ns - begin_ns
    link.free_ns = end_ns
    keep_visit(state, slot, number, size_bytes, begin_ns, end_ns)
