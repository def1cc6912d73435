"""Linked ranks, kept in files until an analysis needs their columns.

The columns of a rank take about as much room as its trace has text, and an analysis reads a third of them. In a file
they are memory that the system can reclaim, and passing them between processes needs no copy.
"""

from __future__ import annotations

import ctypes
import pickle
import shutil
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np

from etude.base.files import mapped

T = TypeVar("T")

SMALL: Final = 1 << 24
"""Bytes of columns that are not worth a file."""
_ALIGN: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Spilled(Generic[T]):
    """A value whose arrays are in a file."""

    rest: bytes
    path: Path
    spans: tuple[tuple[int, int], ...]
    """Begin and end of each array in the file."""

    def take(self) -> T:
        """The value, its arrays read-only and read from the file on access. The file's name is removed; its content
        stays for as long as one of the arrays does."""
        content = mapped(self.path)
        self.path.unlink()
        value: T = pickle.loads(self.rest, buffers=[content[a:b] for a, b in self.spans])
        return value


def spill(value: T, path: Path) -> T | Spilled[T]:
    """Moves the value to a new file; unchanged if its arrays are small or the disk is full."""
    buffers: list[pickle.PickleBuffer] = []
    out = BytesIO()
    _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
    raws = [buffer.raw() for buffer in buffers]
    size = sum(raw.nbytes + _ALIGN for raw in raws)
    if size < SMALL or shutil.disk_usage(path.parent).free < 2 * size:
        return value
    spans, at = [], 0
    with path.open("wb") as f:
        for raw in raws:
            f.write(bytes(-at % _ALIGN))
            at += -at % _ALIGN
            f.write(raw)
            spans.append((at, at + raw.nbytes))
            at += raw.nbytes
    return Spilled(out.getvalue(), path, tuple(spans))


class _Pickler(pickle.Pickler):
    """Keeps columns without recorded values compact: one value, repeated."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.strides == (0,) and len(value) > 1:
            return np.broadcast_to, (value[:1].copy(), value.shape)
        return NotImplemented


def release_memory() -> None:
    """Returns freed memory to the system. Reading a rank takes several times the room of its columns, and the C library
    would keep the gaps between them."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
