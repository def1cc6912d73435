"""Types of arrays, and arrays as kernels take them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Those that differ, ascending: what `np.unique` gives. Of whole numbers it fills a table of hashes, which for many
    that differ takes fifty times as long as their order, and imports masked arrays."""
    if values.dtype.kind not in "biu":
        return np.unique(values)
    found = np.sort(values, axis=None)
    differs = np.ones(len(found), np.bool_)
    differs[1:] = found[1:] != found[:-1]
    return found[differs]


def sort_order(*keys: NDArray[Any]) -> I64:
    """Rows by the first of these whole numbers, then by the others, equal ones as they came: what
    `np.lexsort(keys[::-1])` gives, which sorts all rows by every key. What a profiler wrote is nearly in order, so it
    is sorted once, by as many keys as fit into one number, and by the rest only where those are equal."""
    packed, *rest = (key.astype(np.int64, copy=False) for key in keys)
    span = _span(packed) if rest and len(packed) else 0
    while rest and span > 0 and span * (more := _span(rest[0])) < 1 << 63:
        packed = (packed - packed.min()) * more + (rest[0] - rest[0].min())
        span *= more
        rest.pop(0)
    order = np.argsort(packed, kind="stable")
    if not rest:
        return order
    packed = packed[order]
    same = packed[1:] == packed[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same)) if len(order) else order
    rows = order[tied]
    order[tied] = rows[np.lexsort((*(key[rows] for key in reversed(rest)), packed[tied]))]
    return order


def _span(values: NDArray[Any]) -> int:
    return int(values.max()) - int(values.min()) + 1


def as_read(column: NDArray[Any]) -> NDArray[Any]:
    """A column that a kernel only reads: contiguous, and not to be written. Numba compiles a kernel again for each mix
    of columns that may be written and strided ones."""
    view = np.ascontiguousarray(column).view()
    view.flags.writeable = False
    return view
