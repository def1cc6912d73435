"""Files of the profiler, compressed or not, as host and device traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.capture.link.device import DeviceTrace, read_device
from etude.capture.link.host import HostTrace, read_host
from etude.store import chakra, compressed


def load_host(path: str | Path, max_bytes: int | None = None) -> HostTrace:
    """A host trace: `.json`, `.json.gz`, `.json.zst`."""
    heap, size = compressed.load(path, max_bytes)
    if b'"traceEvents"' in _head(heap) and b'"nodes"' not in _head(heap):
        raise FormatError("is a device trace, but a host trace is needed", path=path, hint="etude link HOST DEVICE")
    return read_host(heap, size, str(path))


def load_device(path: str | Path, max_bytes: int | None = None) -> DeviceTrace:
    """A device trace: the same endings."""
    heap, size = compressed.load(path, max_bytes)
    if b'"nodes"' in _head(heap) and b'"traceEvents"' not in _head(heap):
        hint = "etude link HOST DEVICE; a host trace alone is a job without times: etude convert HOST OUT"
        raise FormatError("is a host trace, but a device trace is needed", path=path, hint=hint)
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
