"""How the kernels of this package are compiled."""

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile without reference counts and without checks for division by zero.

    The kernels allocate nothing and call one another for every event; counting references of the arrays they pass on
    took more than half of the time, and most of the compilation.
    """
    return njit(cache=True, error_model="numpy", _nrt=False)(function)
