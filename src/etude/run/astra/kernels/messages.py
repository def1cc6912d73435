"""Messages: how long they take, which receive belongs to which send, and links that serve one at a time."""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.events import GOLDEN, give, schedule, stop, take
from etude.run.astra.state import (
    BAD_PEER,
    CONNECTED,
    EMPTY_MESSAGE,
    EVENT_ARRIVAL,
    EVENT_LINK_FREE,
    EVENT_RECEIVE,
    NONE,
    OVERLONG,
    POOL_FULL,
    RINGED,
    TELL_HANDSHAKE_RECEIVE,
    TELL_HANDSHAKE_SEND,
    UNUSED,
)

HANDSHAKE_BYTES = np.int64(8192)
HANDSHAKE_TAG = np.int64(1_000_000_000)
RANK_BITS = np.int64(20)
MIX = np.uint64(0xC2B2AE3D27D4EB4F)
LONGEST_NS = np.float64(1 << 62)


@kernel(allocates=False)
def as_int(size):
    """The size of a message after it was kept in an `int` of 32 bits, as the rendezvous protocol does: from 2 GiB on
    another one, which may be below 0."""
    return ((size + np.int64(1 << 31)) & np.int64(0xFFFFFFFF)) - np.int64(1 << 31)


@kernel(allocates=False)
def real_bytes(size):
    """The bytes that are sent: a size below 0 is read as one of 64 bits without a sign."""
    return np.float64(size) if size >= 0 else np.float64(size) + np.float64(2.0**64)


@kernel(allocates=False)
def delay_ns(dims, src, dst, size):
    """Congestion-unaware: latency per hop plus one serialization, in the first dimension that differs."""
    for d in range(len(dims)):
        dim = dims[d]
        a, b = (src // dim.stride) % dim.size, (dst // dim.stride) % dim.size
        if a != b:
            hops = np.int64(2)
            if dim.kind == RINGED:
                hops = min((b - a) % dim.size, (a - b) % dim.size)
            elif dim.kind == CONNECTED:
                hops = np.int64(1)
            return np.int64(hops * dim.latency_ns + real_bytes(size) / dim.bytes_per_ns)
    return np.int64(0)


# --- matching sends and receives --------------------------------------------------------------------------------------


@kernel(allocates=False)
def _match_hash(key1, key2, mask):
    h = np.uint64(key1) * GOLDEN + np.uint64(key2) * MIX
    h = (h ^ (h >> np.uint64(32))) * GOLDEN
    return np.int64(h >> np.uint64(32)) & mask


@kernel(allocates=False)
def _find_match(matches, key1, key2):
    """Slot of a (tag, source, destination, size), or the empty one where it belongs."""
    mask = len(matches) - 1
    slot = _match_hash(key1, key2, mask)
    while matches[slot].head != UNUSED and (matches[slot].key1 != key1 or matches[slot].key2 != key2):
        slot = (slot + 1) & mask
    return slot


@kernel(allocates=False)
def _take_match(clock, wires, hole):
    """Take the first record of a slot's list; the slot is emptied when the list is."""
    matches, mask = wires.matches, len(wires.matches) - 1
    record = matches[hole].head
    after = wires.messages[record].next
    if after != NONE:
        matches[hole].head = after
        return record
    slot = hole
    while True:
        slot = (slot + 1) & mask
        at = matches[slot]
        if at.head == UNUSED:
            matches[hole].head = UNUSED
            clock.match_count -= 1
            return record
        home = _match_hash(at.key1, at.key2, mask)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            to = matches[hole]
            to.key1, to.key2, to.head, to.tail = at.key1, at.key2, at.head, at.tail
            hole = slot


@kernel(allocates=False)
def _append_match(clock, wires, slot, key1, key2, record):
    wires.messages[record].next = NONE
    match = wires.matches[slot]
    if match.head == UNUSED:
        if 2 * clock.match_count >= len(wires.matches) - 1:
            stop(clock, POOL_FULL)
            return
        clock.match_count += 1
        match.key1, match.key2, match.head = key1, key2, record
    else:
        wires.messages[match.tail].next = record
    match.tail = record


# --- links, in the congestion-aware backend ---------------------------------------------------------------------------


@kernel(allocates=False)
def _link_of(wires, message):
    """The next link of a message on its way, and the device behind it."""
    n, kind = wires.settings[0].npus, wires.dims[0].kind
    at, dst = message.at, message.dst
    if kind == RINGED:
        return at if message.step > 0 else n + at, (at + message.step) % n
    if kind == CONNECTED:
        return at * n + dst, dst
    if at < n:
        return at, n
    return n + dst, dst


@kernel(allocates=False)
def _transmit(queue, wires, link, number):
    now = queue.clock[0].now
    serialization = real_bytes(wires.messages[number].size) / wires.dims[0].bytes_per_ns
    wires.links[link].is_busy = 1
    schedule(queue, now + np.int64(wires.dims[0].latency_ns + serialization), EVENT_ARRIVAL | (number << 3))
    schedule(queue, now + np.int64(serialization), EVENT_LINK_FREE | (link << 3))


@kernel(allocates=False)
def _enter_link(queue, wires, number):
    message = wires.messages[number]
    place, _ = _link_of(wires, message)
    link = wires.links[place]
    if link.is_busy == 0:
        _transmit(queue, wires, place, number)
        return
    # While it is on its way a message may also be in a list of unmatched ones, so the link's line has its own field.
    message.behind = UNUSED
    if link.head == UNUSED:
        link.head = number
    else:
        wires.messages[link.tail].behind = number
    link.tail = number


@kernel(allocates=False)
def link_free(queue, wires, place):
    """A link has sent a message: the next one in its line enters."""
    link = wires.links[place]
    link.is_busy = 0
    number = link.head
    if number != UNUSED:
        link.head = wires.messages[number].behind
        _transmit(queue, wires, place, number)


@kernel(allocates=False)
def is_delivered(queue, wires, number):
    """A message reached the next device. True at the last one; else it goes on to the next link."""
    if wires.settings[0].is_aware == 0:
        return True
    message = wires.messages[number]
    _, device = _link_of(wires, message)
    message.at = device
    message.hops -= 1
    if message.hops == 0:
        return True
    _enter_link(queue, wires, number)
    return False


# --- sending and receiving --------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _is_overlong(dims, size):
    """Whether a message whose size overflowed takes longer on some link than the clock can count."""
    for d in range(len(dims)):
        if real_bytes(size) / dims[d].bytes_per_ns > LONGEST_NS:
            return True
    return False


@kernel(allocates=False)
def _route(wires, message):
    """Hops and direction of a message that is about to enter its first link."""
    n, kind = wires.settings[0].npus, wires.dims[0].kind
    message.at, message.step, message.hops = message.src, 1, 1
    if kind == RINGED:
        clockwise = (message.dst - message.src) % n
        message.hops = min(clockwise, n - clockwise)
        message.step = -1 if clockwise > n - clockwise else 1
    elif kind != CONNECTED:
        message.hops = 2


@kernel(allocates=False)
def transfer(queue, wires, src, dst, size, tag, tell, sender):
    """Send a message now. `tell` and `sender` say who is notified when it arrives."""
    clock, settings = queue.clock[0], wires.settings[0]
    if size == 0 or (size < 0 and settings.has_rendezvous == 0):
        stop(clock, EMPTY_MESSAGE)
        return
    if size < 0 and _is_overlong(wires.dims, size):
        stop(clock, OVERLONG)
        return
    if src == dst or dst < 0 or dst >= settings.npus:
        stop(clock, BAD_PEER)
        return
    key1, key2 = (tag << RANK_BITS) | src, (size << RANK_BITS) | dst
    slot = _find_match(wires.matches, key1, key2)
    waiting = wires.matches[slot].head
    if waiting != UNUSED and wires.messages[waiting].src == NONE:
        number = _take_match(clock, wires, slot)  # a receive is waiting: the message takes over its record
    else:
        number = take(wires.messages, clock)
        if clock.status == POOL_FULL:
            return
        wires.messages[number].tell_receiver = NONE
        _append_match(clock, wires, slot, key1, key2, number)
    message = wires.messages[number]
    message.src, message.dst, message.size = src, dst, size
    message.tell_sender, message.sender, message.hops = tell, sender, 0
    if settings.is_aware == 0:
        schedule(queue, clock.now + delay_ns(wires.dims, src, dst, size), EVENT_ARRIVAL | (number << 3))
        return
    _route(wires, message)
    _enter_link(queue, wires, number)


@kernel(allocates=False)
def expect(queue, wires, src, dst, size, tag, tell, receiver):
    """Post a receive now; if its message has already arrived the receiver is notified at the end of this instant."""
    clock = queue.clock[0]
    key1, key2 = (tag << RANK_BITS) | src, (size << RANK_BITS) | dst
    slot = _find_match(wires.matches, key1, key2)
    waiting = wires.matches[slot].head
    if waiting != UNUSED and wires.messages[waiting].src != NONE:
        number = _take_match(clock, wires, slot)
        message = wires.messages[number]
        message.tell_receiver, message.receiver = tell, receiver
        if message.hops == NONE:
            schedule(queue, clock.now, EVENT_RECEIVE | (number << 3))
        return
    number = take(wires.messages, clock)
    if clock.status == POOL_FULL:
        return
    message = wires.messages[number]
    message.src, message.tell_receiver, message.receiver, message.hops = NONE, tell, receiver, 0
    _append_match(clock, wires, slot, key1, key2, number)


@kernel(allocates=False)
def mark_arrived(wires, number):
    """The message has arrived, but no receive was posted yet."""
    wires.messages[number].hops = NONE


@kernel(allocates=False)
def _handshake(queue, wires, src, dst, size, tag, tell, arg):
    """The details of a transfer that waits for the receiver's handshake, kept in a message record."""
    number = take(wires.messages, queue.clock[0])
    message = wires.messages[number]
    message.src, message.dst, message.size, message.tag = src, dst, size, tag
    message.tell_sender, message.sender = tell, arg
    return number


@kernel(allocates=False)
def send(queue, wires, src, dst, size, tag, tell, arg):
    """Send; under rendezvous only once the receiver's handshake has come in."""
    if wires.settings[0].has_rendezvous == 0:
        transfer(queue, wires, src, dst, size, tag, tell, arg)
    elif dst < 0 or dst >= wires.settings[0].npus:
        stop(queue.clock[0], BAD_PEER)
    else:
        number = _handshake(queue, wires, src, dst, size, tag, tell, arg)
        expect(queue, wires, dst, src, HANDSHAKE_BYTES, tag + HANDSHAKE_TAG, TELL_HANDSHAKE_SEND, number)


@kernel(allocates=False)
def receive(queue, wires, src, dst, size, tag, tell, arg):
    """Receive; under rendezvous a handshake goes to the sender first."""
    if wires.settings[0].has_rendezvous == 0:
        expect(queue, wires, src, dst, size, tag, tell, arg)
    else:
        number = _handshake(queue, wires, src, dst, size, tag, tell, arg)
        transfer(queue, wires, dst, src, HANDSHAKE_BYTES, tag + HANDSHAKE_TAG, TELL_HANDSHAKE_RECEIVE, number)


@kernel(allocates=False)
def after_handshake(queue, wires, number, is_send):
    """The handshake is through on this side: start the transfer it was for."""
    message = wires.messages[number]
    src, dst, size, tag = message.src, message.dst, as_int(message.size), message.tag
    if is_send and size != message.size:
        queue.clock[0].num_overflowed += 1
    tell, arg = message.tell_sender, message.sender
    give(wires.messages, number)
    if is_send:
        transfer(queue, wires, src, dst, size, tag, tell, arg)
    else:
        expect(queue, wires, src, dst, size, tag, tell, arg)
