"""Arrays as kernels take them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_read(column: NDArray[Any]) -> NDArray[Any]:
    """A column that a kernel only reads: contiguous, and not to be written. Numba compiles a kernel anew for each mix
    of columns that may be written and strided ones."""
    view = np.ascontiguousarray(column).view()
    view.flags.writeable = False
    return view
