"""Messages: how long they take, which receive belongs to which send, and links that serve one at a time."""

import numpy as np

from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.events import GOLDEN, give, schedule, stop, take
from etude.astra.layout import (
    AT_LINKS,
    AT_MATCHES,
    AT_MESSAGES,
    BACK_HANDSHAKE_RECEIVE,
    BACK_HANDSHAKE_SEND,
    BAD_PEER,
    CONNECTED,
    DIM_KIND,
    DIM_SIZE,
    DIM_STRIDE,
    DIMS,
    EMPTY_MESSAGE,
    EVENT_ARRIVAL,
    EVENT_LINK_FREE,
    EVENT_RECEIVE,
    FREE_MESSAGE,
    HAS_RENDEZVOUS,
    IS_AWARE,
    LINK_BUSY,
    LINK_HEAD,
    LINK_TAIL,
    MATCH_COUNT,
    MATCH_HEAD,
    MATCH_KEY1,
    MATCH_KEY2,
    MATCH_MASK,
    MATCH_TAIL,
    MSG_AT,
    MSG_BEHIND,
    MSG_DST,
    MSG_HOPS,
    MSG_NEXT,
    MSG_RECV_ARG,
    MSG_RECV_BACK,
    MSG_SEND_ARG,
    MSG_SEND_BACK,
    MSG_SIZE,
    MSG_SRC,
    MSG_STEP,
    MSG_TAG,
    NONE,
    NOW,
    NPUS,
    NUM_DIM,
    NUM_LINK,
    NUM_MATCH,
    NUM_MSG,
    NUM_RATE,
    POOL_FULL,
    RINGED,
    STATUS,
    TAB_DIMS,
    UNUSED,
)

HANDSHAKE_BYTES = np.int64(8192)
HANDSHAKE_TAG = np.int64(1_000_000_000)
RANK_BITS = np.int64(20)
MIX = np.uint64(0xC2B2AE3D27D4EB4F)


@kernel
def delay_ns(tab, rate, src, dst, size):
    """Congestion-unaware: latency per hop plus one serialization, in the first dimension that differs."""
    for d in range(tab[DIMS]):
        dim = tab[TAB_DIMS] + d * NUM_DIM
        n, stride = tab[dim + DIM_SIZE], tab[dim + DIM_STRIDE]
        a, b = (src // stride) % n, (dst // stride) % n
        if a != b:
            hops = np.int64(2)
            if tab[dim + DIM_KIND] == RINGED:
                hops = min((b - a) % n, (a - b) % n)
            elif tab[dim + DIM_KIND] == CONNECTED:
                hops = np.int64(1)
            return np.int64(hops * rate[NUM_RATE + 2 * d + 1] + np.float64(size) / rate[NUM_RATE + 2 * d])
    return np.int64(0)


@kernel
def _match_hash(key1, key2, mask):
    h = np.uint64(key1) * GOLDEN + np.uint64(key2) * MIX
    h = (h ^ (h >> np.uint64(32))) * GOLDEN
    return np.int64(h >> np.uint64(32)) & mask


@kernel
def _find_match(mem, key1, key2):
    """Entry of a (tag, source, destination, size), or the empty one where it belongs."""
    matches, mask = mem[AT_MATCHES], mem[MATCH_MASK]
    slot = _match_hash(key1, key2, mask)
    while True:
        at = matches + slot * NUM_MATCH
        if mem[at + MATCH_HEAD] == UNUSED or (mem[at + MATCH_KEY1] == key1 and mem[at + MATCH_KEY2] == key2):
            return at
        slot = (slot + 1) & mask


@kernel
def _take_match(mem, entry):
    """Take the first record of an entry's list; the entry goes when the list is empty."""
    record = mem[entry + MATCH_HEAD]
    after = mem[record + MSG_NEXT]
    if after != NONE:
        mem[entry + MATCH_HEAD] = after
        return record
    matches, mask = mem[AT_MATCHES], mem[MATCH_MASK]
    hole = (entry - matches) // NUM_MATCH
    slot = hole
    while True:
        slot = (slot + 1) & mask
        at, to = matches + slot * NUM_MATCH, matches + hole * NUM_MATCH
        if mem[at + MATCH_HEAD] == UNUSED:
            mem[to + MATCH_HEAD] = UNUSED
            mem[MATCH_COUNT] -= 1
            return record
        home = _match_hash(mem[at + MATCH_KEY1], mem[at + MATCH_KEY2], mask)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            for column in range(NUM_MATCH):
                mem[to + column] = mem[at + column]
            hole = slot


@kernel
def _append_match(mem, entry, key1, key2, record):
    mem[record + MSG_NEXT] = NONE
    if mem[entry + MATCH_HEAD] == UNUSED:
        if 2 * mem[MATCH_COUNT] >= mem[MATCH_MASK]:
            stop(mem, POOL_FULL)
            return
        mem[MATCH_COUNT] += 1
        mem[entry + MATCH_KEY1] = key1
        mem[entry + MATCH_KEY2] = key2
        mem[entry + MATCH_HEAD] = record
    else:
        mem[mem[entry + MATCH_TAIL] + MSG_NEXT] = record
    mem[entry + MATCH_TAIL] = record


@kernel
def _link_of(mem, tab, msg):
    """The next link of a message on its way, and the device behind it."""
    n, kind = tab[NPUS], tab[tab[TAB_DIMS] + DIM_KIND]
    at, dst = mem[msg + MSG_AT], mem[msg + MSG_DST]
    if kind == RINGED:
        link = at if mem[msg + MSG_STEP] > 0 else n + at
        device = (at + mem[msg + MSG_STEP]) % n
    elif kind == CONNECTED:
        link, device = at * n + dst, dst
    elif at < n:
        link, device = at, n
    else:
        link, device = n + dst, dst
    return mem[AT_LINKS] + link * NUM_LINK, device


@kernel
def _transmit(mem, rate, link, msg):
    now, serialization = mem[NOW], np.float64(mem[msg + MSG_SIZE]) / rate[NUM_RATE]
    mem[link + LINK_BUSY] = 1
    schedule(mem, now + np.int64(rate[NUM_RATE + 1] + serialization), EVENT_ARRIVAL | (msg << 3))
    schedule(mem, now + np.int64(serialization), EVENT_LINK_FREE | (link << 3))


@kernel
def _enter_link(mem, tab, rate, msg):
    link, _ = _link_of(mem, tab, msg)
    if mem[link + LINK_BUSY] == 0:
        _transmit(mem, rate, link, msg)
        return
    # While it is on its way a message may also be in a list of unmatched ones, so the link's line has its own word.
    mem[msg + MSG_BEHIND] = UNUSED
    if mem[link + LINK_HEAD] == UNUSED:
        mem[link + LINK_HEAD] = msg
    else:
        mem[mem[link + LINK_TAIL] + MSG_BEHIND] = msg
    mem[link + LINK_TAIL] = msg


@kernel
def link_free(mem, rate, link):
    mem[link + LINK_BUSY] = 0
    msg = mem[link + LINK_HEAD]
    if msg != UNUSED:
        mem[link + LINK_HEAD] = mem[msg + MSG_BEHIND]
        _transmit(mem, rate, link, msg)


@kernel
def is_delivered(mem, tab, rate, msg):
    """A message reached the next device. True at the last one; else it goes on to the next link."""
    if tab[IS_AWARE] == 0:
        return True
    _, mem[msg + MSG_AT] = _link_of(mem, tab, msg)
    mem[msg + MSG_HOPS] -= 1
    if mem[msg + MSG_HOPS] == 0:
        return True
    _enter_link(mem, tab, rate, msg)
    return False


@kernel
def transfer(mem, tab, rate, src, dst, size, tag, back, arg):
    """Send a message now. `back` and `arg` say who is told when it arrives."""
    if size <= 0:
        stop(mem, EMPTY_MESSAGE)
        return
    n = tab[NPUS]
    if src == dst or dst < 0 or dst >= n:
        stop(mem, BAD_PEER)
        return
    key1, key2 = (tag << RANK_BITS) | src, (size << RANK_BITS) | dst
    entry = _find_match(mem, key1, key2)
    if mem[entry + MATCH_HEAD] != UNUSED and mem[mem[entry + MATCH_HEAD] + MSG_SRC] == NONE:
        msg = _take_match(mem, entry)  # a receive is waiting: the message takes over its record
    else:
        msg = take(mem, AT_MESSAGES, FREE_MESSAGE, NUM_MSG)
        if mem[STATUS] == POOL_FULL:
            return
        mem[msg + MSG_RECV_BACK] = NONE
        _append_match(mem, entry, key1, key2, msg)
    mem[msg + MSG_SRC], mem[msg + MSG_DST], mem[msg + MSG_SIZE] = src, dst, size
    mem[msg + MSG_SEND_BACK], mem[msg + MSG_SEND_ARG] = back, arg
    mem[msg + MSG_HOPS] = 0
    if tab[IS_AWARE] == 0:
        schedule(mem, mem[NOW] + delay_ns(tab, rate, src, dst, size), EVENT_ARRIVAL | (msg << 3))
        return
    kind = tab[tab[TAB_DIMS] + DIM_KIND]
    mem[msg + MSG_AT], mem[msg + MSG_STEP], mem[msg + MSG_HOPS] = src, 1, 1
    if kind == RINGED:
        clockwise = (dst - src) % n
        mem[msg + MSG_HOPS] = min(clockwise, n - clockwise)
        mem[msg + MSG_STEP] = -1 if clockwise > n - clockwise else 1
    elif kind != CONNECTED:
        mem[msg + MSG_HOPS] = 2
    _enter_link(mem, tab, rate, msg)


@kernel
def expect(mem, src, dst, size, tag, back, arg):
    """Post a receive now; if its message has already arrived it is told at the end of this instant."""
    key1, key2 = (tag << RANK_BITS) | src, (size << RANK_BITS) | dst
    entry = _find_match(mem, key1, key2)
    if mem[entry + MATCH_HEAD] != UNUSED and mem[mem[entry + MATCH_HEAD] + MSG_SRC] != NONE:
        msg = _take_match(mem, entry)
        mem[msg + MSG_RECV_BACK], mem[msg + MSG_RECV_ARG] = back, arg
        if mem[msg + MSG_HOPS] == NONE:
            schedule(mem, mem[NOW], EVENT_RECEIVE | (msg << 3))
        return
    msg = take(mem, AT_MESSAGES, FREE_MESSAGE, NUM_MSG)
    if mem[STATUS] == POOL_FULL:
        return
    mem[msg + MSG_SRC], mem[msg + MSG_RECV_BACK], mem[msg + MSG_RECV_ARG] = NONE, back, arg
    mem[msg + MSG_HOPS] = 0
    _append_match(mem, entry, key1, key2, msg)


@kernel
def mark_arrived(mem, msg):
    """The message is there, but nobody has asked for it yet."""
    mem[msg + MSG_HOPS] = NONE


@kernel
def _handshake(mem, src, dst, size, tag, back, arg):
    """The details of a transfer that waits for the receiver's handshake, kept in a message record."""
    msg = take(mem, AT_MESSAGES, FREE_MESSAGE, NUM_MSG)
    mem[msg + MSG_SRC], mem[msg + MSG_DST], mem[msg + MSG_SIZE], mem[msg + MSG_TAG] = src, dst, size, tag
    mem[msg + MSG_SEND_BACK], mem[msg + MSG_SEND_ARG] = back, arg
    return msg


@kernel
def send(mem, tab, rate, src, dst, size, tag, back, arg):
    """Send; under rendezvous only once the receiver's handshake has come in."""
    if tab[HAS_RENDEZVOUS] == 0:
        transfer(mem, tab, rate, src, dst, size, tag, back, arg)
    elif dst < 0 or dst >= tab[NPUS]:
        stop(mem, BAD_PEER)
    else:
        msg = _handshake(mem, src, dst, size, tag, back, arg)
        expect(mem, dst, src, HANDSHAKE_BYTES, tag + HANDSHAKE_TAG, BACK_HANDSHAKE_SEND, msg)


@kernel
def receive(mem, tab, rate, src, dst, size, tag, back, arg):
    """Receive; under rendezvous a handshake goes to the sender first."""
    if tab[HAS_RENDEZVOUS] == 0:
        expect(mem, src, dst, size, tag, back, arg)
    else:
        msg = _handshake(mem, src, dst, size, tag, back, arg)
        transfer(mem, tab, rate, dst, src, HANDSHAKE_BYTES, tag + HANDSHAKE_TAG, BACK_HANDSHAKE_RECEIVE, msg)


@kernel
def after_handshake(mem, tab, rate, msg, is_send):
    """The handshake is through on this side: start the transfer it was for."""
    src, dst, size, tag = mem[msg + MSG_SRC], mem[msg + MSG_DST], mem[msg + MSG_SIZE], mem[msg + MSG_TAG]
    back, arg = mem[msg + MSG_SEND_BACK], mem[msg + MSG_SEND_ARG]
    give(mem, AT_MESSAGES, FREE_MESSAGE, msg)
    if is_send:
        transfer(mem, tab, rate, src, dst, size, tag, back, arg)
    else:
        expect(mem, src, dst, size, tag, back, arg)
