"""Answers that continue elsewhere once their prompt is read, in compiled code: keys and values wait where they are
until the decoding replica has room, then pass an encoder, an output port, an input port and a decoder, first come first
served at each."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.adapters import may_enter, take_adapter
from etude.world.serve.batching import blocks_of
from etude.world.serve.prefix import release
from etude.world.serve.queues import put_last, take


@kernel(allocates=False)
def hand_over(q, clock, r):
    """To be routed when all passes that end now are complete."""
    q[r, at.FOLLOWING] = at.NOBODY
    if clock[at.HAND] == at.NOBODY:
        clock[at.HAND] = r
    else:
        q[clock[at.HAND + 1], at.FOLLOWING] = r
    clock[at.HAND + 1] = r
    clock[at.HAND + 2] += 1


@kernel(allocates=False)
def placed(q, replicas, clock, i):
    """The first answer to be routed is decoded by replica i."""
    r = clock[at.HAND]
    clock[at.HAND] = q[r, at.FOLLOWING]
    clock[at.HAND + 2] -= 1
    q[r, at.DECODER] = i
    replicas[q[r, at.REPLICA], at.PENDING] -= q[r, at.OUTPUT] - q[r, at.OUT]
    replicas[i, at.PENDING] += q[r, at.OUTPUT] - q[r, at.OUT]
    put_last(q, replicas[i], at.COMING, r)


@kernel(allocates=False)
def through_ns(wire, begin, size):
    """When this many bytes, given to a port at `begin`, are through."""
    ns_per_byte, left, now = wire.ns_per_byte, float(size), np.int64(begin)
    for k in range(len(wire.later)):
        change = np.int64(wire.later[k, 0])
        if change > now:
            if now + np.int64(np.ceil(left * ns_per_byte)) <= change:
                break
            left -= (change - now) / ns_per_byte
            now = change
        ns_per_byte = wire.later[k, 1]
    return now + np.int64(np.ceil(left * ns_per_byte))


@kernel(allocates=False)
def _sent(q, replicas, wire, link_ns, r, codec, now, commit):
    """When the keys and values of a request arrive with this codec; SENT_NOW: they are sent. An estimate uses the
    observed rate of the link."""
    here, there = replicas[q[r, at.REPLICA]], replicas[q[r, at.DECODER]]
    raw = q[r, at.COMPUTED] * wire.token_bytes
    part, encode, decode, fixed = wire.codec[codec, 0], wire.codec[codec, 1], wire.codec[codec, 2], wire.codec[codec, 3]
    encoded = max(now, here[at.ENCODER]) + np.int64(np.ceil(fixed + raw * encode))
    begin = max(encoded, here[at.PORT_OUT], there[at.PORT_IN])
    if commit == at.MEANT and wire.choice == at.LEARNT:
        through = begin + np.int64(np.ceil(raw * part * link_ns))
    else:
        through = through_ns(wire, begin, raw * part)
    ready = max(through + wire.latency_ns, there[at.DECODES]) + np.int64(np.ceil(fixed + raw * decode))
    if commit == at.SENT_NOW:
        here[at.ENCODER] = encoded
        here[at.PORT_OUT] = through
        there[at.PORT_IN] = through
        there[at.DECODES] = ready
        q[r, at.LANDS] = ready
        q[r, at.CODED] = codec
        q[r, at.SENT] = np.int64(raw * part)
        q[r, at.ON_WIRE] = through - begin
    return ready


@kernel(allocates=False)
def _quickest(q, replicas, wire, link_ns, r, now):
    best, least = 0, at.NEVER
    for codec in range(len(wire.codec)):
        ready = _sent(q, replicas, wire, link_ns, r, codec, now, at.MEANT)
        if ready < least:
            best, least = codec, ready
    return best


@kernel(allocates=False)
def pull(state, rules, i, now):
    """Replica i makes room for answers that continue here, and requests their transfer. Returns a request whose codec
    must be asked for, or NOBODY."""
    q, replicas, clock, mine = state.request, state.replica, state.clock, state.replica[i]
    while mine[at.COMING] != at.NOBODY and mine[at.WAITING] == at.NOBODY:
        r = mine[at.COMING]
        tokens = q[r, at.PROMPT] + q[r, at.OUTPUT] if rules.reserve else q[r, at.COMPUTED] + 1
        need = blocks_of(tokens, rules.block)
        if mine[at.USED] + need > mine[at.ROOM] or mine[at.RUNNING] + mine[at.LANDING + 2] >= rules.max_seqs:
            break
        if rules.lora_slots and not may_enter(q, mine, state.adapter[i], rules.lora_slots, r):
            break
        codec = rules.wire.choice
        if codec == at.ASK_CODEC:
            if clock[at.CHOSEN] == at.NOBODY:
                return r
            codec = clock[at.CHOSEN]
            clock[at.CHOSEN] = at.NOBODY
        elif codec < 0:
            codec = _quickest(q, replicas, rules.wire, state.link_ns[i], r, now)
        take(q, mine, at.COMING)
        mine[at.USED] += need
        mine[at.PEAK] = max(mine[at.PEAK], mine[at.USED])
        q[r, at.HOLDS] = need
        _sent(q, replicas, rules.wire, state.link_ns[i], r, codec, now, at.SENT_NOW)
        if rules.lora_slots:  # its adapter is loaded during the transfer
            take_adapter(q, mine, state.adapter[i], rules, r)
        put_last(q, mine, at.LANDING, r)
    return at.NOBODY


@kernel(allocates=False)
def land(state, rules, i, now):
    """Requests whose keys and values have arrived join the running ones: a place was reserved for each. The source
    releases them."""
    q, mine = state.request, state.replica[i]
    while mine[at.LANDING] != at.NOBODY and q[mine[at.LANDING], at.LANDS] <= now:
        r = take(q, mine, at.LANDING)
        if q[r, at.SENT]:
            seen = q[r, at.ON_WIRE] / q[r, at.SENT]
            known = state.link_ns[i]
            state.link_ns[i] = seen if known == 0.0 else known + rules.wire.weight * (seen - known)
        release(state, q[r, at.REPLICA], r)
        q[r, at.HELD] = q[r, at.HOLDS]
        state.running[i, mine[at.RUNNING]] = r
        mine[at.RUNNING] += 1
        mine[at.MOST] = max(mine[at.MOST], mine[at.RUNNING])
