"""What all algorithms share: who is where in a ring, and what a reduction costs."""

import numpy as np

from etude.kernels.compile import kernel

LOCAL_ENDPOINT_NS = np.int64(10)  # inside a group smaller than the cluster


@kernel(allocates=False, inline="llvm")
def reduction_ns(settings, size):
    """One write and two reads of the local memory."""
    if settings.memory_bytes_per_s <= 0.0:
        return np.int64(0)
    return 3 * np.int64(np.float64(size) / settings.memory_bytes_per_s * 1e9)


@kernel(allocates=False, inline="llvm")
def member(members, stream, index):
    """The rank at a place of the stream's ring."""
    index = index % stream.size
    if stream.group >= 0:
        return members[stream.group + index]
    return stream.base + index * stream.stride
