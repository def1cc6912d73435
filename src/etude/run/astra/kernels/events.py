"""The event queue: events of one instant run in the order in which they were scheduled.

A bucket holds the events of one instant. A hash table finds the bucket of a time, a binary heap the next time.
Ranks run in step, so a bucket usually holds many events and the heap stays small.
Times are compared as unsigned numbers, because one quirk of the original gives 2**63 ns.
"""

import numpy as np

from etude.kernels.compile import kernel
from etude.run.astra.kernels.heaps import pop_time, push_time
from etude.run.astra.state import (
    AMBIGUOUS,
    ANCHOR,
    CALL_COLLECTIVE_DONE,
    EVENT_AT_ZERO,
    EVENT_BATCH,
    NONE,
    POOL_FULL,
    RUNNING,
    SINK,
    UNUSED,
)

SIGN = np.int64(-(2**63))
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel(allocates=False, inline="llvm")
def stop(clock, status):
    """Ask the machine to stop; the first reason is kept."""
    if clock.status == RUNNING:
        clock.status = status


@kernel(allocates=False, inline="llvm")
def take(pool, clock):
    """A record of a pool, or the sink and a stop when there is none left."""
    record = pool[ANCHOR].next
    if record == NONE:
        stop(clock, POOL_FULL)
        return SINK
    after = pool[record].next
    pool[ANCHOR].next = after if after != UNUSED else record + 1
    return record


@kernel(allocates=False, inline="llvm")
def give(pool, record):
    """Put a record back on the free list of its pool."""
    if record != SINK:
        pool[record].next = pool[ANCHOR].next
        pool[ANCHOR].next = record


@kernel(allocates=False, inline="llvm")
def _hash(time, mask):
    return np.int64((np.uint64(time) * GOLDEN) >> np.uint64(32)) & mask


@kernel(allocates=False)
def _bucket_of(queue, time):
    """The bucket of an instant, made and put on the heap if there is none."""
    clock, mask = queue.clock[0], len(queue.times) - 1
    slot = _hash(time, mask)
    while queue.times[slot].bucket != UNUSED:
        if queue.times[slot].time == time:
            return queue.times[slot].bucket
        slot = (slot + 1) & mask
    number = take(queue.buckets, clock)
    if number == SINK:
        return number
    queue.times[slot].time, queue.times[slot].bucket = time, number
    bucket = queue.buckets[number]
    bucket.head, bucket.tail, bucket.time = NONE, NONE, time
    push_time(queue.heap, clock.heap_size, time ^ SIGN, number)
    clock.heap_size += 1
    return number


@kernel(allocates=False, inline="llvm")
def _forget_time(times, time):
    """Delete a key from the open-addressing table by shifting later entries of its run back."""
    mask = len(times) - 1
    hole = _hash(time, mask)
    while times[hole].time != time or times[hole].bucket == UNUSED:
        hole = (hole + 1) & mask
    slot = hole
    while True:
        slot = (slot + 1) & mask
        if times[slot].bucket == UNUSED:
            times[hole].bucket = UNUSED
            return
        home = _hash(times[slot].time, mask)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            times[hole].time, times[hole].bucket = times[slot].time, times[slot].bucket
            hole = slot


@kernel(allocates=False)
def push(queue, time, payload):
    """Put an event at the end of an instant's list."""
    clock = queue.clock[0]
    if time == clock.last_time and clock.last_bucket != NONE:
        number = clock.last_bucket
    else:
        number = _bucket_of(queue, time)
        clock.last_time, clock.last_bucket = time, number
    event = take(queue.events, clock)
    queue.events[event].next, queue.events[event].payload = NONE, payload
    if clock.status == POOL_FULL:
        return
    bucket = queue.buckets[number]
    if bucket.tail == NONE:
        bucket.head = event
    else:
        queue.events[bucket.tail].next = event
    bucket.tail = event


@kernel(allocates=False, inline="llvm")
def schedule(queue, time, payload):
    """Schedule an event; the original cannot process one at tick 0 and aborts."""
    if time == 0:
        stop(queue.clock[0], EVENT_AT_ZERO)
    push(queue, time, payload)


@kernel(allocates=False, inline="llvm")
def pop(queue):
    """The payload of the next event, with the clock set to its time; -1 when there is none."""
    clock = queue.clock[0]
    number = clock.bucket
    if number != NONE and queue.buckets[number].head == NONE:
        _forget_time(queue.times, queue.buckets[number].time)
        if clock.last_bucket == number:
            clock.last_bucket = NONE
        give(queue.buckets, number)
        number = NONE
    if number == NONE:
        if clock.heap_size == 0:
            clock.bucket = NONE
            return NONE
        number = pop_time(queue.heap, clock.heap_size)
        clock.heap_size -= 1
        clock.bucket, clock.now = number, queue.buckets[number].time
    bucket = queue.buckets[number]
    event = bucket.head
    after, payload = queue.events[event].next, queue.events[event].payload
    bucket.head = after
    if after == NONE:
        bucket.tail = NONE
    give(queue.events, event)
    return payload


@kernel(allocates=False, inline="llvm")
def find_batch(queue, rank, time):
    """The rank's pending list of calls at an instant, or -1."""
    batch = queue.first_batch[rank]
    while batch != NONE and queue.batches[batch].time != time:
        batch = queue.batches[batch].next
    return batch


@kernel(allocates=False, inline="llvm")
def _batch_of(queue, rank, time):
    """The rank's list of calls at an instant, made and scheduled if there is none; the sink if there is no room."""
    number = find_batch(queue, rank, time)
    if number == NONE:
        clock = queue.clock[0]
        number = take(queue.batches, clock)
        batch = queue.batches[number]
        batch.time, batch.rank, batch.head, batch.tail = time, rank, NONE, NONE
        if clock.status != POOL_FULL:
            batch.next = queue.first_batch[rank]
            queue.first_batch[rank] = number
            schedule(queue, time, EVENT_BATCH | (number << 3))
    return number


@kernel(allocates=False, inline="llvm")
def _insert_call(queue, batch, number):
    """Put a call where its time of registration belongs in a batch that has calls registered as late or later."""
    call, calls = queue.calls[number], queue.calls
    before, at = NONE, batch.head
    while at != NONE and calls[at].registered_ns <= call.registered_ns:
        if calls[at].registered_ns == call.registered_ns and (
            call.kind == CALL_COLLECTIVE_DONE or calls[at].kind == CALL_COLLECTIVE_DONE
        ):
            stop(queue.clock[0], AMBIGUOUS)
        before, at = at, calls[at].next
    call.next = at
    if before == NONE:
        batch.head = number
    else:
        calls[before].next = number
    if at == NONE:
        batch.tail = number


@kernel(allocates=False)
def call_at(queue, rank, time, kind, arg, then_ns, registered_ns):
    """Put a call on a rank's list for an instant, in the order of registration.

    All calls of a rank at one instant run as one batch, at the place of the first. A collective that is worked
    out ahead registers its finish in the future; if another call ties with it, only the full event order can
    tell which is first.
    """
    batch = queue.batches[_batch_of(queue, rank, time)]
    clock = queue.clock[0]
    if clock.status == POOL_FULL:
        return
    number = take(queue.calls, clock)
    call = queue.calls[number]
    call.next, call.kind, call.arg, call.then_ns, call.registered_ns = NONE, kind, arg, then_ns, registered_ns
    if clock.status == POOL_FULL:
        return
    if batch.tail == NONE:
        batch.head, batch.tail = number, number
        return
    last = queue.calls[batch.tail]
    if last.registered_ns < registered_ns or (
        last.registered_ns == registered_ns and kind != CALL_COLLECTIVE_DONE and last.kind != CALL_COLLECTIVE_DONE
    ):
        last.next = number
        batch.tail = number
    else:
        _insert_call(queue, batch, number)


@kernel(allocates=False, inline="llvm")
def call_after(queue, rank, delay_ns, kind, arg, then_ns):
    """Put a call on a rank's list for an instant after now."""
    now = queue.clock[0].now
    call_at(queue, rank, now + delay_ns, kind, arg, then_ns, now)


@kernel(allocates=False, inline="llvm")
def next_call(queue, number):
    """Take the first call off a batch; when none is left the batch is closed and -1 comes back."""
    batch = queue.batches[number]
    call = batch.head
    if call != NONE:
        batch.head = queue.calls[call].next
        if batch.head == NONE:
            batch.tail = NONE
        return call
    at = queue.first_batch[batch.rank]
    if at == number:
        queue.first_batch[batch.rank] = batch.next
    else:
        while queue.batches[at].next != number:
            at = queue.batches[at].next
        queue.batches[at].next = batch.next
    give(queue.batches, number)
    return NONE
