"""Queues of requests in compiled code: linked lists through the requests, one number drawn, and a heap of those that
arrive later."""

from __future__ import annotations

from etude.kernels.compile import kernel
from etude.world.serve import state as at


@kernel(allocates=False)
def put_last(q, mine, queue, r):
    q[r, at.FOLLOWING] = at.NOBODY
    if mine[queue] == at.NOBODY:
        mine[queue] = r
    else:
        q[mine[queue + 1], at.FOLLOWING] = r
    mine[queue + 1] = r
    mine[queue + 2] += 1


@kernel(allocates=False)
def put_first(q, mine, queue, r):
    q[r, at.FOLLOWING] = mine[queue]
    if mine[queue] == at.NOBODY:
        mine[queue + 1] = r
    mine[queue] = r
    mine[queue + 2] += 1


@kernel(allocates=False)
def put_by_key(q, mine, queue, r):
    """Inserted after all whose key is not larger."""
    key = q[r, at.KEY]
    if mine[queue] == at.NOBODY or q[mine[queue + 1], at.KEY] <= key:
        put_last(q, mine, queue, r)
    elif q[mine[queue], at.KEY] > key:
        put_first(q, mine, queue, r)
    else:
        before = mine[queue]
        while q[q[before, at.FOLLOWING], at.KEY] <= key:
            before = q[before, at.FOLLOWING]
        q[r, at.FOLLOWING] = q[before, at.FOLLOWING]
        q[before, at.FOLLOWING] = r
        mine[queue + 2] += 1


@kernel(allocates=False)
def put_back(q, mine):
    """Skipped requests go to the front of the queue."""
    if mine[at.WAITING] == at.NOBODY:
        mine[at.WAITING + 1] = mine[at.SKIPPED + 1]
    q[mine[at.SKIPPED + 1], at.FOLLOWING] = mine[at.WAITING]
    mine[at.WAITING] = mine[at.SKIPPED]
    mine[at.WAITING + 2] += mine[at.SKIPPED + 2]
    mine[at.SKIPPED] = at.NOBODY
    mine[at.SKIPPED + 1] = at.NOBODY
    mine[at.SKIPPED + 2] = 0


@kernel(allocates=False)
def take(q, mine, queue):
    r = mine[queue]
    mine[queue] = q[r, at.FOLLOWING]
    if mine[queue] == at.NOBODY:
        mine[queue + 1] = at.NOBODY
    mine[queue + 2] -= 1
    return r


@kernel(allocates=False)
def draw(clock, n):
    """A number below n, by Park and Miller's generator: products stay below 2^63, so compiled code and plain Python
    agree."""
    clock[at.RANDOM] = clock[at.RANDOM] * 48271 % at.PRIME
    return clock[at.RANDOM] % n


@kernel(allocates=False)
def push_later(q, heap, clock, r):
    """Request r arrives at its `AT`; ties by number."""
    k = clock[at.HEAP]
    clock[at.HEAP] += 1
    while k > 0:
        up = (k - 1) // 2
        if q[heap[up], at.AT] < q[r, at.AT] or (q[heap[up], at.AT] == q[r, at.AT] and heap[up] < r):
            break
        heap[k] = heap[up]
        k = up
    heap[k] = r


@kernel(allocates=False)
def pop_later(q, heap, clock):
    top = heap[0]
    clock[at.HEAP] -= 1
    n = clock[at.HEAP]
    r = heap[n]
    k = 0
    while 2 * k + 1 < n:
        down = 2 * k + 1
        right = down + 1
        if right < n and (
            q[heap[right], at.AT] < q[heap[down], at.AT]
            or (q[heap[right], at.AT] == q[heap[down], at.AT] and heap[right] < heap[down])
        ):
            down = right
        if q[r, at.AT] < q[heap[down], at.AT] or (q[r, at.AT] == q[heap[down], at.AT] and r < heap[down]):
            break
        heap[k] = heap[down]
        k = down
    heap[k] = r
    return top
