"""Files of the profiler, compressed or not, as host and device traces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.capture.link.device import DeviceTrace, read_device
from etude.capture.link.host import HostTrace, read_host
from etude.capture.link.squeeze import squeezed
from etude.store import chakra, compressed


def load_host(path: str | Path, max_bytes: int | None = None) -> HostTrace:
    """A host trace: `.json`, `.json.gz`, `.json.zst`."""
    return _host(*compressed.load(path, max_bytes), path)


def _host(heap: NDArray[np.uint8], size: int, path: str | Path) -> HostTrace:
    if b'"traceEvents"' in _head(heap) and b'"nodes"' not in _head(heap):
        raise FormatError("is a device trace, but a host trace is needed", path=path, hint="etude link HOST DEVICE")
    return read_host(heap, size, str(path))


def load_squeezed(path: str | Path, max_bytes: int | None = None) -> HostTrace:
    """The same without the space between the values of the text, which is most of what the official linker writes:
    its positions are not those in the file."""
    room = os.path.getsize(path) if os.path.isfile(path) else 0
    return _host(*squeezed(compressed.pieces(path, max_bytes), room), path)


def load_device(path: str | Path, max_bytes: int | None = None) -> DeviceTrace:
    """A device trace: the same endings."""
    heap, size = compressed.load(path, max_bytes)
    if b'"nodes"' in _head(heap) and b'"traceEvents"' not in _head(heap):
        hint = "etude link HOST DEVICE; a host trace alone is a job without times: etude convert HOST OUT"
        raise FormatError("is a host trace, but a device trace is needed", path=path, hint=hint)
    return read_device(heap, size, str(path))


def load_device_with(path: str | Path, text: bytes) -> DeviceTrace | None:
    """The same of a file that has this text somewhere; None if it has not."""
    heap, size = compressed.load(path, None)
    if re.search(re.escape(text), heap.data[:size]) is None:
        return None
    return read_device(heap, size, str(path))


def _head(heap: NDArray[np.uint8]) -> bytes:
    return heap[:65536].tobytes()


def packed(decoded: chakra.Decoded, path: Path) -> Iterator[bytes | memoryview]:
    """The pieces of an `.et` file; compressed for `.gz` and `.zst`."""
    return compressed.packed(chakra.encode_parts(decoded), path.suffix)


def stem(path: Path) -> str:
    """A name for the job of a file: without its file type endings."""
    name = path.name
    for ending in (".gz", ".zst", ".json", ".et", ".kineto", "_kineto", "_et"):
        name = name.removesuffix(ending)
    return name or "job"
