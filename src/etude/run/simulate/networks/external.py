"""Kernels of a network that is another program: what is posted to it, and when it has to be asked. Where the times of
all transfers are given, they end by these, and nothing is asked.

Compiled code does not talk to programs: where nothing can happen before the program has been asked, the engine stops,
and goes on once what arrives is known.
"""

from __future__ import annotations

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.run.simulate.networks.slots import put_event
from etude.run.simulate.networks.state import LAND, NEVER, LinkState, OutsideState


@kernel(allocates=False)
def post_outside(state: LinkState, outside: OutsideState | None, slot: int, size_bytes: int, lag_ns: int) -> bool:
    """The transfer begins; False if no other program is the network."""
    if outside is None:
        return False
    here, paths, now_ns = state.slots[slot], state.paths, state.clock[0].now_ns
    first, last = paths.start[here.path], paths.start[here.path + 1]
    here.phase, here.tail_ns = LAND, lag_ns
    if size_bytes == 0 or first == last:
        for k in range(first, last):
            lag_ns += state.links[paths.link[k]].latency_ns
        put_event(state, slot, now_ns + max(lag_ns, 0))
        return True
    given = outside.given
    if len(given.first) > 0:
        k = given.first[here.operation] + slot - state.carried[here.operation].base
        given.began_ns[k] = now_ns
        put_event(state, slot, now_ns + given.took_ns[k] + max(lag_ns, 0))
        return True
    clock = outside.clock[0]
    outside.slot[clock.posted], outside.at_ns[clock.posted] = slot, now_ns
    clock.posted += 1
    clock.moving += 1
    return True


@kernel(allocates=False)
def asks_outside(outside: OutsideState | None, limit_ns: int) -> bool:
    """Whether the program has to be asked what arrives up to a time."""
    if outside is None:
        return False
    clock = outside.clock[0]
    if clock.moving > 0 and (clock.posted > 0 or clock.known_ns < limit_ns):
        clock.limit_ns = limit_ns
        clock.asks = 1
    return clock.asks > 0


@kernel(allocates=False)
def next_outside(outside: OutsideState | None) -> int:
    """Not before this something arrives; NEVER if nothing is on its way."""
    if outside is None or outside.clock[0].moving == 0:
        return NEVER
    return outside.clock[0].known_ns + 1


@kernel(allocates=False)
def arrive(state: LinkState, slots: I64, now_ns: int) -> None:
    """What the program said has arrived."""
    for k in range(len(slots)):
        put_event(state, slots[k], now_ns + max(state.slots[slots[k]].tail_ns, 0))
