"""Queues of requests in compiled code: linked lists through the requests, one number drawn, and a heap of those that
arrive later."""

from __future__ import annotations

from etude.kernels.compile import kernel
from etude.world.serve import state as at


@kernel(allocates=False)
def put_last(q, queue, r):
    q[r].next = at.NOBODY
    if queue.first == at.NOBODY:
        queue.first = r
    else:
        q[queue.last].next = r
    queue.last = r
    queue.count += 1


@kernel(allocates=False)
def put_first(q, queue, r):
    q[r].next = queue.first
    if queue.first == at.NOBODY:
        queue.last = r
    queue.first = r
    queue.count += 1


@kernel(allocates=False)
def put_by_key(q, queue, r):
    """Inserted after all whose key is not larger."""
    key = q[r].key
    if queue.first == at.NOBODY or q[queue.last].key <= key:
        put_last(q, queue, r)
    elif q[queue.first].key > key:
        put_first(q, queue, r)
    else:
        before = queue.first
        while q[q[before].next].key <= key:
            before = q[before].next
        q[r].next = q[before].next
        q[before].next = r
        queue.count += 1


@kernel(allocates=False)
def put_back(q, waiting, skipped):
    """Skipped requests go to the front of the queue."""
    if waiting.first == at.NOBODY:
        waiting.last = skipped.last
    q[skipped.last].next = waiting.first
    waiting.first = skipped.first
    waiting.count += skipped.count
    skipped.first = at.NOBODY
    skipped.last = at.NOBODY
    skipped.count = 0


@kernel(allocates=False)
def take(q, queue):
    r = queue.first
    queue.first = q[r].next
    if queue.first == at.NOBODY:
        queue.last = at.NOBODY
    queue.count -= 1
    return r


@kernel(allocates=False)
def draw(clock, n):
    """A number below n, by Park and Miller's generator: products stay below 2^63, so compiled code and plain Python
    agree."""
    clock.random = clock.random * 48271 % at.PRIME
    return clock.random % n


@kernel(allocates=False)
def push_later(q, heap, clock, r):
    """Request r arrives at its `at_ns`; ties by number."""
    k = clock.heap
    clock.heap += 1
    while k > 0:
        up = (k - 1) // 2
        if q[heap[up]].at_ns < q[r].at_ns or (q[heap[up]].at_ns == q[r].at_ns and heap[up] < r):
            break
        heap[k] = heap[up]
        k = up
    heap[k] = r


@kernel(allocates=False)
def pop_later(q, heap, clock):
    top = heap[0]
    clock.heap -= 1
    n = clock.heap
    r = heap[n]
    k = 0
    while 2 * k + 1 < n:
        down = 2 * k + 1
        right = down + 1
        if right < n and (
            q[heap[right]].at_ns < q[heap[down]].at_ns
            or (q[heap[right]].at_ns == q[heap[down]].at_ns and heap[right] < heap[down])
        ):
            down = right
        if q[r].at_ns < q[heap[down]].at_ns or (q[r].at_ns == q[heap[down]].at_ns and r < heap[down]):
            break
        heap[k] = heap[down]
        k = down
    heap[k] = r
    return top
