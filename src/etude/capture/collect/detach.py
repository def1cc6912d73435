"""Takes the device's profiler out of the process again.

CUPTI, once it has recorded anything, stays in every call of the driver and adds about 2 us to it; recording a call adds
one more. PyTorch can be asked to take it out (`TEARDOWN_CUPTI`), but does so at some later call, which may be in the
middle of the next recording. Here it happens at once, between two steps, with an idle device.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Any, Final

from etude.capture.collect import features
from etude.capture.collect.capture import on_device, settle

SINCE: Final = (12, 6)
"""Version of CUDA from which graphs survive it."""


def detach(torch: Any) -> bool:
    """Whether it was taken out; it returns with the next recording. Not among several ranks, whose communication has
    threads that call the driver at any moment."""
    if not on_device(torch) or _version(torch) < SINCE or features.distributed(torch) is not None:
        return False
    found = library()
    if not found:
        return False
    settle(torch)
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(found).cuptiFinalize()) == 0
    return False


def _version(torch: Any) -> tuple[int, ...]:
    """Of CUDA; (0,) of builds for other devices."""
    said = str(torch.version.cuda or "0").split(".")
    return tuple(int(part) for part in said if part.isdecimal())


def library() -> str:
    """The file of CUPTI that this process uses, if it does."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/libcupti.so" in line:
                return line.split(maxsplit=5)[-1]
    return ""
