"""JSON values as Python's `str()` shows them, which is what Chakra's own converter writes into `.et` files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.capture.link import text_kernels as k
from etude.capture.link.scan import Json
from etude.kernels.arrays import I64, U8
from etude.kernels.varint import encode_varint
from etude.model.text import PAD


class PythonTexts:
    """Builds a heap of slices, as in Trace."""

    def __init__(self, json: Json, room: int = 1 << 20) -> None:
        self._json, self._out, self._used = json, np.empty(room, np.uint8), 0

    def put_all(self, places: I64) -> I64:
        """Offsets of the texts of the values at these positions; -1: none."""
        offsets = np.empty(len(places), np.int64)
        row, status = 0, k.GROW
        while status != k.DONE:
            status, row, self._used = k.python_texts(
                self._json.heap, self._json.word, places, row, offsets, self._out, self._used
            )
            if status == k.GROW:
                self._grow(2 * len(self._json.slice(int(places[row]))) + 64)
            elif status == k.ODD:
                offsets[row] = self.put(str(self._json.value(int(places[row]))).encode())
                row += 1
        return offsets

    def put_distinct(self, places: NDArray[np.signedinteger[Any]]) -> I64:
        """The same for columns with few distinct values."""
        codes, unique = self._json.intern(places)
        return np.append(self.put_all(unique), -1)[codes]

    def put(self, text: bytes) -> int:
        raw = encode_varint(len(text)) + text
        self._grow(len(raw))
        at = self._used
        self._out[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        self._used += len(raw)
        return at

    def _grow(self, needed: int) -> None:
        if self._used + needed > len(self._out):
            bigger = np.empty(len(self._out) + max(len(self._out) // 2, needed), np.uint8)
            bigger[: self._used] = self._out[: self._used]
            self._out = bigger

    def heap(self) -> U8:
        """The heap; nothing can be added afterwards."""
        self._grow(PAD)
        self._out[self._used : self._used + PAD] = 0
        return self._out[: self._used + PAD]
