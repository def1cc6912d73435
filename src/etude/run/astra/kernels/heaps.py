"""Binary heaps: of times with their buckets, and of the keys of ready nodes."""

from etude.kernels.compile import kernel


@kernel(allocates=False, inline="llvm")
def push_time(heap, size, key, bucket):
    """Add a time to a heap that holds `size` of them."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if heap[up].key <= key:
            break
        heap[i].key, heap[i].bucket = heap[up].key, heap[up].bucket
        i = up
    heap[i].key, heap[i].bucket = key, bucket


@kernel(allocates=False, inline="llvm")
def pop_time(heap, size):
    """Take the first time off a heap of `size`; returns its bucket."""
    top = heap[0].bucket
    n = size - 1
    key, bucket = heap[n].key, heap[n].bucket
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and heap[down + 1].key < heap[down].key:
            down += 1
        if key <= heap[down].key:
            break
        heap[i].key, heap[i].bucket = heap[down].key, heap[down].bucket
        i = down
    heap[i].key, heap[i].bucket = key, bucket
    return top


@kernel(allocates=False, inline="llvm")
def push_key(keys, start, size, key):
    """Add a key to the heap of `size` keys that begins at `start`."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if keys[start + up] <= key:
            break
        keys[start + i] = keys[start + up]
        i = up
    keys[start + i] = key


@kernel(allocates=False, inline="llvm")
def pop_key(keys, start, size):
    """Take the smallest key, which is keys[start], off a heap of `size`."""
    n = size - 1
    key = keys[start + n]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and keys[start + down + 1] < keys[start + down]:
            down += 1
        if key <= keys[start + down]:
            break
        keys[start + i] = keys[start + down]
        i = down
    keys[start + i] = key
