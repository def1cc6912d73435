"""Answers that continue elsewhere once their prompt is read, in compiled code: keys and values wait where they are
until the decoding replica has room, then pass an encoder, an output port, an input port and a decoder, first come first
served at each."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.adapters import may_enter, take_adapter
from etude.world.serve.pass_content import blocks_of
from etude.world.serve.prefix import release
from etude.world.serve.queues import put_last, take


@kernel(allocates=False)
def placed(q, replicas, clock, i):
    """The first answer to be routed is decoded by replica i."""
    r = take(q, clock.hand)
    asked = q[r]
    asked.decoder = i
    replicas[asked.replica].pending -= asked.output - asked.out
    replicas[i].pending += asked.output - asked.out
    put_last(q, replicas[i].coming, r)


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
    asked = q[r]
    here, there = replicas[asked.replica], replicas[asked.decoder]
    raw = asked.computed * wire.token_bytes
    part, encode, decode, fixed = wire.codec[codec, 0], wire.codec[codec, 1], wire.codec[codec, 2], wire.codec[codec, 3]
    encoded = max(now, here.encoder_ns) + np.int64(np.ceil(fixed + raw * encode))
    begin = max(encoded, here.port_out_ns, there.port_in_ns)
    if commit == at.MEANT and wire.choice == at.LEARNT:
        through = begin + np.int64(np.ceil(raw * part * link_ns))
    else:
        through = through_ns(wire, begin, raw * part)
    ready = max(through + wire.latency_ns, there.decoder_ns) + np.int64(np.ceil(fixed + raw * decode))
    if commit == at.SENT_NOW:
        here.encoder_ns = encoded
        here.port_out_ns = through
        there.port_in_ns = through
        there.decoder_ns = ready
        asked.ready_ns = ready
        asked.coded = codec
        asked.sent = np.int64(raw * part)
        asked.on_wire_ns = through - begin
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
    q, replicas, clock, mine = state.request, state.replica, state.clock[0], state.replica[i]
    while mine.coming.first != at.NOBODY and mine.waiting.first == at.NOBODY:
        r = mine.coming.first
        tokens = q[r].prompt + q[r].output if rules.reserve else q[r].computed + 1
        need = blocks_of(tokens, rules.block)
        if mine.used + need > mine.room or mine.running + mine.landing.count >= rules.max_seqs:
            break
        if rules.lora_slots and not may_enter(q, mine, state.adapter[i], rules.lora_slots, r):
            break
        codec = rules.wire.choice
        if codec == at.ASK_CODEC:
            if clock.chosen == at.NOBODY:
                return r
            codec = clock.chosen
            clock.chosen = at.NOBODY
        elif codec < 0:
            codec = _quickest(q, replicas, rules.wire, state.link_ns[i], r, now)
        take(q, mine.coming)
        mine.used += need
        mine.peak = max(mine.peak, mine.used)
        q[r].coming = need
        _sent(q, replicas, rules.wire, state.link_ns[i], r, codec, now, at.SENT_NOW)
        if rules.lora_slots:  # its adapter is loaded during the transfer
            take_adapter(q, mine, state.adapter[i], rules, r)
        put_last(q, mine.landing, r)
    return at.NOBODY


@kernel(allocates=False)
def land(state, rules, i, now):
    """Requests whose keys and values have arrived join the running ones: a place was reserved for each. The source
    releases them."""
    q, mine = state.request, state.replica[i]
    while mine.landing.first != at.NOBODY and q[mine.landing.first].ready_ns <= now:
        r = take(q, mine.landing)
        asked = q[r]
        if asked.sent:
            seen = asked.on_wire_ns / asked.sent
            known = state.link_ns[i]
            state.link_ns[i] = seen if known == 0.0 else known + rules.wire.weight * (seen - known)
        release(state, asked.replica, r)
        asked.held = asked.coming
        state.running[i, mine.running] = r
        mine.running += 1
        mine.most = max(mine.most, mine.running)
