"""How the kernels of this package are compiled."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile without reference counts and without checks for division by zero.

    The kernels allocate nothing and call one another for every event; counting references of the arrays they pass on
    took more than half of the time, and most of the compilation.
    """
    return njit(cache=True, error_model="numpy", _nrt=False)(function)
