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


def as_read(column: NDArray[Any]) -> NDArray[Any]:
    """A column that a kernel only reads: contiguous, and not to be written. Numba compiles a kernel again for each mix
    of columns that may be written and strided ones."""
    view = np.ascontiguousarray(column).view()
    view.flags.writeable = False
    return view
