"""The event queue: events of one instant run in the order in which they were scheduled.

A bucket holds the events of one instant. A hash table finds the bucket of a time, a binary heap the next time.
Ranks run in step, so a bucket usually holds many events and the heap stays small.
Times are compared as unsigned numbers, because one quirk of the original gives 2**63 ns.
"""

import numpy as np

from etude.astra.kernels.compiling import kernel
from etude.astra.layout import (
    AMBIGUOUS,
    AT_BATCHES,
    AT_BUCKETS,
    AT_CALLS,
    AT_EVENTS,
    AT_HEAP,
    AT_RANKS,
    AT_TIMES,
    BATCH_HEAD,
    BATCH_NEXT,
    BATCH_RANK,
    BATCH_TAIL,
    BATCH_TIME,
    BUCKET_HEAD,
    BUCKET_TAIL,
    BUCKET_TIME,
    CALL_ARG,
    CALL_COLLECTIVE_DONE,
    CALL_DELAY,
    CALL_KIND,
    CALL_NEXT,
    CALL_REG,
    CURRENT,
    EVENT_AT_ZERO,
    EVENT_BATCH,
    EVENT_NEXT,
    EVENT_PAYLOAD,
    FREE_BATCH,
    FREE_BUCKET,
    FREE_CALL,
    FREE_EVENT,
    HEAP_BUCKET,
    HEAP_KEY,
    HEAP_SIZE,
    LAST_BUCKET,
    LAST_TIME,
    NONE,
    NOW,
    NUM_BATCH,
    NUM_BUCKET,
    NUM_CALL,
    NUM_EVENT,
    NUM_HEAP,
    NUM_TIME,
    POOL_FULL,
    RANK_BATCHES,
    RANK_WIDTH,
    RUNNING,
    STATUS,
    TIME_BUCKET,
    TIME_KEY,
    TIME_MASK,
    UNUSED,
)

SIGN = np.int64(-(2**63))
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def stop(mem, status):
    """Ask the machine to stop; the first reason stands."""
    if mem[STATUS] == RUNNING:
        mem[STATUS] = status


@kernel
def take(mem, at, free, width):
    """A record of the pool at `at`, or the pool's first record and a stop when there is none left."""
    record = mem[free]
    if record == NONE:
        if mem[STATUS] == RUNNING:
            mem[STATUS] = POOL_FULL
        return mem[at]
    after = mem[record]
    mem[free] = after if after != UNUSED else record + width
    return record


@kernel
def give(mem, at, free, record):
    if record != mem[at]:
        mem[record] = mem[free]
        mem[free] = record


@kernel
def _hash(time, mask):
    return np.int64((np.uint64(time) * GOLDEN) >> np.uint64(32)) & mask


@kernel
def _bucket_of(mem, time):
    """The bucket of an instant, made and put on the heap if there is none."""
    times, mask = mem[AT_TIMES], mem[TIME_MASK]
    slot = _hash(time, mask)
    while True:
        at = times + slot * NUM_TIME
        if mem[at + TIME_BUCKET] == UNUSED:
            break
        if mem[at + TIME_KEY] == time:
            return mem[at + TIME_BUCKET]
        slot = (slot + 1) & mask
    bucket = take(mem, AT_BUCKETS, FREE_BUCKET, NUM_BUCKET)
    if bucket == mem[AT_BUCKETS]:
        return bucket
    mem[at + TIME_KEY] = time
    mem[at + TIME_BUCKET] = bucket
    mem[bucket + BUCKET_HEAD] = NONE
    mem[bucket + BUCKET_TAIL] = NONE
    mem[bucket + BUCKET_TIME] = time
    heap, key = mem[AT_HEAP], time ^ SIGN
    i = mem[HEAP_SIZE]
    mem[HEAP_SIZE] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if mem[heap + up * NUM_HEAP + HEAP_KEY] <= key:
            break
        mem[heap + i * NUM_HEAP + HEAP_KEY] = mem[heap + up * NUM_HEAP + HEAP_KEY]
        mem[heap + i * NUM_HEAP + HEAP_BUCKET] = mem[heap + up * NUM_HEAP + HEAP_BUCKET]
        i = up
    mem[heap + i * NUM_HEAP + HEAP_KEY] = key
    mem[heap + i * NUM_HEAP + HEAP_BUCKET] = bucket
    return bucket


@kernel
def _heap_pop(mem):
    heap = mem[AT_HEAP]
    top = mem[heap + HEAP_BUCKET]
    n = mem[HEAP_SIZE] - 1
    mem[HEAP_SIZE] = n
    key, bucket = mem[heap + n * NUM_HEAP + HEAP_KEY], mem[heap + n * NUM_HEAP + HEAP_BUCKET]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and mem[heap + (down + 1) * NUM_HEAP + HEAP_KEY] < mem[heap + down * NUM_HEAP + HEAP_KEY]:
            down += 1
        if key <= mem[heap + down * NUM_HEAP + HEAP_KEY]:
            break
        mem[heap + i * NUM_HEAP + HEAP_KEY] = mem[heap + down * NUM_HEAP + HEAP_KEY]
        mem[heap + i * NUM_HEAP + HEAP_BUCKET] = mem[heap + down * NUM_HEAP + HEAP_BUCKET]
        i = down
    mem[heap + i * NUM_HEAP + HEAP_KEY] = key
    mem[heap + i * NUM_HEAP + HEAP_BUCKET] = bucket
    return top


@kernel
def _forget_time(mem, time):
    """Delete a key from the open-addressing table by shifting later entries of its run back."""
    times, mask = mem[AT_TIMES], mem[TIME_MASK]
    hole = _hash(time, mask)
    while mem[times + hole * NUM_TIME + TIME_KEY] != time or mem[times + hole * NUM_TIME + TIME_BUCKET] == UNUSED:
        hole = (hole + 1) & mask
    slot = hole
    while True:
        slot = (slot + 1) & mask
        at, to = times + slot * NUM_TIME, times + hole * NUM_TIME
        if mem[at + TIME_BUCKET] == UNUSED:
            mem[to + TIME_BUCKET] = UNUSED
            return
        home = _hash(mem[at + TIME_KEY], mask)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            mem[to + TIME_KEY] = mem[at + TIME_KEY]
            mem[to + TIME_BUCKET] = mem[at + TIME_BUCKET]
            hole = slot


@kernel
def push(mem, time, payload):
    """Put an event at the end of an instant's list."""
    if time == mem[LAST_TIME] and mem[LAST_BUCKET] != NONE:
        bucket = mem[LAST_BUCKET]
    else:
        bucket = _bucket_of(mem, time)
        mem[LAST_TIME] = time
        mem[LAST_BUCKET] = bucket
    event = take(mem, AT_EVENTS, FREE_EVENT, NUM_EVENT)
    mem[event + EVENT_NEXT] = NONE
    mem[event + EVENT_PAYLOAD] = payload
    if mem[STATUS] == POOL_FULL:
        return
    tail = mem[bucket + BUCKET_TAIL]
    if tail == NONE:
        mem[bucket + BUCKET_HEAD] = event
    else:
        mem[tail + EVENT_NEXT] = event
    mem[bucket + BUCKET_TAIL] = event


@kernel
def schedule(mem, time, payload):
    """Schedule an event; the original cannot process one at tick 0 and aborts."""
    if time == 0:
        stop(mem, EVENT_AT_ZERO)
    push(mem, time, payload)


@kernel
def pop(mem):
    """The payload of the next event, with NOW set to its time; -1 when there is none."""
    bucket = mem[CURRENT]
    if bucket != NONE and mem[bucket + BUCKET_HEAD] == NONE:
        _forget_time(mem, mem[bucket + BUCKET_TIME])
        if mem[LAST_BUCKET] == bucket:
            mem[LAST_BUCKET] = NONE
        give(mem, AT_BUCKETS, FREE_BUCKET, bucket)
        bucket = NONE
    if bucket == NONE:
        if mem[HEAP_SIZE] == 0:
            mem[CURRENT] = NONE
            return np.int64(-1)
        bucket = _heap_pop(mem)
        mem[CURRENT] = bucket
        mem[NOW] = mem[bucket + BUCKET_TIME]
    event = mem[bucket + BUCKET_HEAD]
    after = mem[event + EVENT_NEXT]
    mem[bucket + BUCKET_HEAD] = after
    if after == NONE:
        mem[bucket + BUCKET_TAIL] = NONE
    payload = mem[event + EVENT_PAYLOAD]
    give(mem, AT_EVENTS, FREE_EVENT, event)
    return payload


@kernel
def find_batch(mem, rank, time):
    """The rank's pending list of calls at an instant, or -1."""
    batch = mem[mem[AT_RANKS] + rank * mem[RANK_WIDTH] + RANK_BATCHES]
    while batch != NONE and mem[batch + BATCH_TIME] != time:
        batch = mem[batch + BATCH_NEXT]
    return batch


@kernel
def call_at(mem, rank, time, kind, arg, delay, registered):
    """Put a call on a rank's list for an instant, in the order of registration.

    All calls of a rank at one instant run as one batch, at the place of the first. A collective that is worked
    out ahead registers its finish in the future; if another call ties with it, only the full event order can
    tell which is first.
    """
    batch = find_batch(mem, rank, time)
    if batch == NONE:
        batch = take(mem, AT_BATCHES, FREE_BATCH, NUM_BATCH)
        first = mem[AT_RANKS] + rank * mem[RANK_WIDTH] + RANK_BATCHES
        mem[batch + BATCH_TIME], mem[batch + BATCH_RANK] = time, rank
        mem[batch + BATCH_HEAD], mem[batch + BATCH_TAIL] = NONE, NONE
        if mem[STATUS] == POOL_FULL:
            return
        mem[batch + BATCH_NEXT] = mem[first]
        mem[first] = batch
        schedule(mem, time, EVENT_BATCH | (batch << 3))
    call = take(mem, AT_CALLS, FREE_CALL, NUM_CALL)
    mem[call + CALL_NEXT], mem[call + CALL_KIND], mem[call + CALL_ARG] = NONE, kind, arg
    mem[call + CALL_DELAY], mem[call + CALL_REG] = delay, registered
    if mem[STATUS] == POOL_FULL:
        return
    tail = mem[batch + BATCH_TAIL]
    if tail == NONE:
        mem[batch + BATCH_HEAD] = call
        mem[batch + BATCH_TAIL] = call
        return
    ahead = kind == CALL_COLLECTIVE_DONE
    if mem[tail + CALL_REG] < registered or (
        mem[tail + CALL_REG] == registered and not ahead and mem[tail + CALL_KIND] != CALL_COLLECTIVE_DONE
    ):
        mem[tail + CALL_NEXT] = call
        mem[batch + BATCH_TAIL] = call
        return
    before, at = NONE, mem[batch + BATCH_HEAD]
    while at != NONE and mem[at + CALL_REG] <= registered:
        if mem[at + CALL_REG] == registered and (ahead or mem[at + CALL_KIND] == CALL_COLLECTIVE_DONE):
            stop(mem, AMBIGUOUS)
        before, at = at, mem[at + CALL_NEXT]
    mem[call + CALL_NEXT] = at
    if before == NONE:
        mem[batch + BATCH_HEAD] = call
    else:
        mem[before + CALL_NEXT] = call
    if at == NONE:
        mem[batch + BATCH_TAIL] = call


@kernel
def call_after(mem, rank, delay_ns, kind, arg, then_ns):
    now = mem[NOW]
    call_at(mem, rank, now + delay_ns, kind, arg, then_ns, now)


@kernel
def next_call(mem, batch):
    """Take the first call off a batch; when none is left the batch is closed and -1 comes back."""
    call = mem[batch + BATCH_HEAD]
    if call != NONE:
        mem[batch + BATCH_HEAD] = mem[call + CALL_NEXT]
        if mem[call + CALL_NEXT] == NONE:
            mem[batch + BATCH_TAIL] = NONE
        return call
    at = mem[AT_RANKS] + mem[batch + BATCH_RANK] * mem[RANK_WIDTH] + RANK_BATCHES
    while mem[at] != batch:
        at = mem[at] + BATCH_NEXT
    mem[at] = mem[batch + BATCH_NEXT]
    give(mem, AT_BATCHES, FREE_BATCH, batch)
    return NONE
