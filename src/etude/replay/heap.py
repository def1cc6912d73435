"""Memory of the process, as the program that was recorded had it.

Whether memory that is let go goes back to the system, and has to be made anew, page by page, when it is next used,
depends on what else lies in the heap of a process, and can be a tenth of a step. So a player keeps its heap, and
touches as many new pages in a step as the program did without a profiler. Needs NumPy alone.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Final

import numpy as np

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Numbers of glibc's `mallopt`."""
_NEVER: Final = 2**31 - 1
_LARGEST: Final = 32 * 2**20
"""What is larger has pages of its own in any process."""
FEWEST: Final = 16
"""Pages that matter in a step."""


def keep_heap() -> None:
    """From here on what is let go stays with the process. Nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def touch_new_pages(count: int) -> None:
    """Makes the system allocate this many pages and take them back."""
    with mmap.mmap(-1, count * mmap.PAGESIZE) as memory:
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
