"""Answers that go on elsewhere once their prompt is read, in compiled code: keys and values wait where they are until
the replica that decodes has room, then pass an encoder, a port out, a port in and a decoder, first come first served
at each."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.serve import state as at
from etude.serve.batching import blocks_of
from etude.serve.prefix import release
from etude.serve.queues import put_last, take


@kernel(allocates=False)
def hand_over(q, clock, r):
    """To be placed when all passes that end now are through."""
    q[r, at.FOLLOWING] = at.NOBODY
    if clock[at.HAND] == at.NOBODY:
        clock[at.HAND] = r
    else:
        q[clock[at.HAND + 1], at.FOLLOWING] = r
    clock[at.HAND + 1] = r
    clock[at.HAND + 2] += 1


@kernel(allocates=False)
def placed(q, replicas, clock, i):
    """The first of those to be placed is decoded by replica i."""
    r = clock[at.HAND]
    clock[at.HAND] = q[r, at.FOLLOWING]
    clock[at.HAND + 2] -= 1
    q[r, at.DECODER] = i
    replicas[q[r, at.REPLICA], at.PENDING] -= q[r, at.OUTPUT] - q[r, at.OUT]
    replicas[i, at.PENDING] += q[r, at.OUTPUT] - q[r, at.OUT]
    put_last(q, replicas[i], at.COMING, r)


@kernel(allocates=False)
def _sent(q, replicas, wire, r, codec, now, commit):
    """When the keys and values of a request are there, coded by this codec; SENT_NOW: they are sent."""
    here, there = replicas[q[r, at.REPLICA]], replicas[q[r, at.DECODER]]
    raw = q[r, at.COMPUTED] * wire.token_bytes
    part, encode, decode, fixed = wire.codec[codec, 0], wire.codec[codec, 1], wire.codec[codec, 2], wire.codec[codec, 3]
    encoded = max(now, here[at.ENCODER]) + np.int64(np.ceil(fixed + raw * encode))
    begin = max(encoded, here[at.PORT_OUT], there[at.PORT_IN])
    through = begin + np.int64(np.ceil(raw * part * wire.ns_per_byte))
    ready = max(through + wire.latency_ns, there[at.DECODES]) + np.int64(np.ceil(fixed + raw * decode))
    if commit == at.SENT_NOW:
        here[at.ENCODER] = encoded
        here[at.PORT_OUT] = through
        there[at.PORT_IN] = through
        there[at.DECODES] = ready
        q[r, at.LANDS] = ready
        q[r, at.CODED] = codec
        q[r, at.SENT] = np.int64(raw * part)
    return ready


@kernel(allocates=False)
def _quickest(q, replicas, wire, r, now):
    best, least = 0, at.NEVER
    for codec in range(len(wire.codec)):
        ready = _sent(q, replicas, wire, r, codec, now, at.MEANT)
        if ready < least:
            best, least = codec, ready
    return best


@kernel(allocates=False)
def pull(q, replicas, clock, rules, i, now):
    """Replica i makes room for answers that are to go on here, and has them sent. A request whose codec is to be asked
    for, or NOBODY."""
    mine = replicas[i]
    while mine[at.COMING] != at.NOBODY and mine[at.WAITING] == at.NOBODY:
        r = mine[at.COMING]
        tokens = q[r, at.PROMPT] + q[r, at.OUTPUT] if rules.reserve else q[r, at.COMPUTED] + 1
        need = blocks_of(tokens, rules.block)
        if mine[at.USED] + need > mine[at.ROOM] or mine[at.RUNNING] + mine[at.LANDING + 2] >= rules.max_seqs:
            break
        codec = rules.wire.choice
        if codec == at.ASK:
            if clock[at.CHOSEN] == at.NOBODY:
                return r
            codec = clock[at.CHOSEN]
            clock[at.CHOSEN] = at.NOBODY
        elif codec == at.BEST:
            codec = _quickest(q, replicas, rules.wire, r, now)
        take(q, mine, at.COMING)
        mine[at.USED] += need
        mine[at.PEAK] = max(mine[at.PEAK], mine[at.USED])
        q[r, at.HOLDS] = need
        _sent(q, replicas, rules.wire, r, codec, now, at.SENT_NOW)
        put_last(q, mine, at.LANDING, r)
    return at.NOBODY


@kernel(allocates=False)
def land(state, i, now):
    """Requests whose keys and values are there by now join those that run: a place was kept for each. What was sent is
    given up where it came from."""
    q, mine = state.request, state.replica[i]
    while mine[at.LANDING] != at.NOBODY and q[mine[at.LANDING], at.LANDS] <= now:
        r = take(q, mine, at.LANDING)
        release(state, q[r, at.REPLICA], r)
        q[r, at.HELD] = q[r, at.HOLDS]
        state.running[i, mine[at.RUNNING]] = r
        mine[at.RUNNING] += 1
        mine[at.MOST] = max(mine[at.MOST], mine[at.RUNNING])
