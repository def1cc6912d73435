"""Arrays as kernels take them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_read(column: NDArray[Any]) -> NDArray[Any]:
    """A column that a kernel only reads: contiguous, and not to be written. Numba compiles a kernel anew for arrays that
    may be written and for strided ones, so that one with four columns would be compiled up to 81 times."""
    view = np.ascontiguousarray(column).view()
    view.flags.writeable = False
    return view
