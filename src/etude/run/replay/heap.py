"""Memory of the process, made to behave as in the recorded program.

Whether freed memory returns to the system, and must be allocated again page by page at its next use, depends on what
else is in the heap of a process; it can cost a tenth of a step. So a player keeps its heap, and touches as many new
pages in a step as the program did without a profiler. Needs only NumPy.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Final

import numpy as np

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameter numbers of glibc's `mallopt`."""
_NEVER: Final = 2**31 - 1
_LARGEST: Final = 32 * 2**20
"""Larger allocations have their own pages in any process."""
FEWEST: Final = 16
"""Fewer new pages in a step than this are ignored."""


def keep_heap() -> None:
    """From now on, freed memory stays with the process. Does nothing if the C library is not glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def touch_new_pages(count: int) -> None:
    """Makes the system allocate this many pages, and frees them."""
    with mmap.mmap(-1, count * mmap.PAGESIZE) as memory:
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
