"""Text without objects: a string is the offset of a length-prefixed slice of a byte heap.

The prefix is a varint, as in protobuf, so the heap of a trace that was read can be the file's own bytes, and
writing copies slices. Every heap ends in PAD zero bytes, so kernels may load eight bytes at any offset of a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64, U8, as_read
from etude.kernels.compile import kernel
from etude.kernels.varint import LONGEST, decode_varint, encode_varint, put_varint, read_varint

PAD = 8


def pad(data: bytes | bytearray | memoryview | U8) -> U8:
    """Bytes as a heap: a copy followed by PAD zero bytes."""
    source = np.frombuffer(data, np.uint8)
    heap = np.empty(len(source) + PAD, np.uint8)
    heap[: len(source)] = source
    heap[len(source) :] = 0
    return heap


def words(heap: U8) -> NDArray[np.uint64]:
    """Element p is the eight bytes at offset p, unaligned."""
    writeable = heap.flags.writeable
    if len(heap) == 8:  # one word counts as contiguous, and kernels would be compiled again for it
        heap = np.append(heap, np.uint8(0))
    first = heap[:8].view(np.uint64)
    return np.lib.stride_tricks.as_strided(first, shape=(len(heap) - 7,), strides=(1,), writeable=writeable)


@kernel(allocates=False, inline="llvm")
def prefix(heap, offset):  # type: ignore[no-untyped-def]
    """(first byte, length) of the slice at offset; the heap was checked when it was made."""
    length, first = read_varint(heap, offset, len(heap))
    return first, np.int64(length)


def slice_bytes(heap: U8, offset: int) -> bytes:
    """The bytes of the slice at offset."""
    length, size = decode_varint(heap[offset : offset + LONGEST].tobytes(), 0)
    return heap[offset + size : offset + size + length].tobytes()


def string(heap: U8, offset: int) -> str:
    return "" if offset < 0 else slice_bytes(heap, offset).decode()


@kernel(allocates=False)
def _hash(heap, word, start, length):  # type: ignore[no-untyped-def]
    h = np.uint64(length) * np.uint64(0x9E3779B97F4A7C15)
    p = start
    end = start + length
    while p + 8 <= end:
        h = (h ^ word[p]) * np.uint64(0xFF51AFD7ED558CCD)
        h ^= h >> np.uint64(32)
        p += 8
    if p < end:
        tail = word[p] & ((np.uint64(1) << np.uint64(8 * (end - p))) - np.uint64(1))
        h = (h ^ tail) * np.uint64(0xFF51AFD7ED558CCD)
        h ^= h >> np.uint64(32)
    return h


@kernel(allocates=False)
def same_bytes(word, a, b, length):  # type: ignore[no-untyped-def]
    """Whether the `length` bytes at a and b of one heap are equal."""
    n = 0
    while n + 8 <= length:
        if word[a + n] != word[b + n]:
            return False
        n += 8
    if n < length:
        mask = (np.uint64(1) << np.uint64(8 * (length - n))) - np.uint64(1)
        return (word[a + n] ^ word[b + n]) & mask == np.uint64(0)
    return True


class Coded(NamedTuple):
    """The codes of one text column, and the table they are looked up in."""

    codes: NDArray[np.int32]
    table: NDArray[np.int32]  # a code at its hash, -1 where there is none
    hashes: NDArray[np.uint64]  # of each code
    unique: I64  # of each code, the offset of its first use


@kernel(allocates=False)
def _intern(heap, word, offsets, rows, coded, used):  # type: ignore[no-untyped-def]
    """Codes for the offsets of a range of rows, until the table is 60% full; returns (next row, strings so far)."""
    codes, table, hashes, unique = coded.codes, coded.table, coded.hashes, coded.unique
    mask = len(table) - 1
    limit = len(table) * 6 // 10
    last_offset = np.int64(-2)
    last_code = np.int32(-1)
    for i in range(rows[0], rows[1]):
        offset = offsets[i]
        if offset < 0:
            codes[i] = -1
            continue
        if offset == last_offset:
            codes[i] = last_code
            continue
        if used >= limit:
            return i, used
        start, length = prefix(heap, offset)
        h = _hash(heap, word, start, length)
        slot = np.int64(h & np.uint64(mask))
        while True:
            code = table[slot]
            if code < 0:
                table[slot] = used
                hashes[used] = h
                unique[used] = offset
                code = np.int32(used)
                used += 1
                break
            if hashes[code] == h:
                other, other_length = prefix(heap, unique[code])
                if other_length == length and same_bytes(word, start, other, length):
                    break
            slot = (slot + 1) & mask
        codes[i] = code
        last_offset = offset
        last_code = code
    return rows[1], used


@kernel(allocates=False)
def _rehash(table, hashes, used):  # type: ignore[no-untyped-def]
    mask = len(table) - 1
    for code in range(used):
        slot = np.int64(hashes[code] & np.uint64(mask))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = code


class _Dictionary:
    """The codes of one text column, and the table they are looked up in."""

    def __init__(self, offsets: I64) -> None:
        self.offsets = as_read(offsets)
        self.codes = np.empty(len(offsets), np.int32)
        self._row = self._used = 0
        self._make(1 << 12)
        self._hashes, self._unique = np.empty(self._room, np.uint64), np.empty(self._room, np.int64)

    def _make(self, size: int) -> None:
        self._size, self._room = size, size * 6 // 10
        self._table = np.full(size, -1, np.int32)

    def upto(self, heap: U8, word: NDArray[np.uint64], stop: int) -> None:
        """Codes for all rows before `stop`."""
        while True:
            coded = Coded(self.codes, self._table, self._hashes, self._unique)
            self._row, self._used = _intern(heap, word, self.offsets, (self._row, stop), coded, self._used)
            if self._row == stop:
                return
            self._make(self._size * (4 if self._size < 1 << 18 else 2))
            self._hashes, self._unique = _grown(self._hashes, self._room), _grown(self._unique, self._room)
            _rehash(self._table, self._hashes, self._used)

    def unique(self) -> I64:
        return self._unique[: self._used].copy()


def intern(heap: U8, offsets: I64) -> tuple[NDArray[np.int32], I64]:
    """Dictionary-encodes a text column: code per row (-1: absent), and per code the offset of its first use."""
    return intern_many(heap, [offsets])[0]


def intern_many(heap: U8, columns: Sequence[I64], rows: int = 2048) -> list[tuple[NDArray[np.int32], I64]]:
    """Dictionary-encodes several text columns, a few rows of all of them at a time, since the text of one row is stored
    together."""
    heap.flags.writeable = False
    word = words(heap)
    found = [_Dictionary(offsets) for offsets in columns]
    longest = max((len(d.offsets) for d in found), default=0)
    rows = rows if len(found) > 1 else max(longest, 1)
    for stop in range(rows, longest + rows, rows):
        for d in found:
            d.upto(heap, word, min(stop, len(d.offsets)))
    return [(d.codes, d.unique()) for d in found]


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    bigger = np.empty(size, array.dtype)
    bigger[: len(array)] = array
    return bigger


def strings(heap: U8, offsets: Iterable[int]) -> list[str]:
    """Python strings, one for each offset; for distinct values, names of slots and errors, not for whole columns."""
    return [string(heap, int(o)) for o in offsets]


class HeapWriter:
    """Collects slices for a new heap; equal slices are stored once."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._seen: dict[bytes, int] = {}

    def put(self, value: bytes | str) -> int:
        """The offset of this value, written once."""
        raw = value.encode() if isinstance(value, str) else value
        offset = self._seen.get(raw)
        if offset is None:
            offset = self._seen[raw] = len(self._buffer)
            self._buffer += encode_varint(len(raw)) + raw
        return offset

    def put_all(self, values: Sequence[bytes | str | None]) -> I64:
        return np.array([-1 if v is None else self.put(v) for v in values], np.int64)

    def join(self, heap: U8) -> int:
        """Adds all slices of another heap; returns the offset of its beginning."""
        offset = len(self._buffer)
        self._buffer += heap[: len(heap) - PAD].tobytes()
        return offset

    def heap(self) -> U8:
        return pad(self._buffer)


@kernel(allocates=False)
def _copy_slices(heap, unique, out, out_offset):  # type: ignore[no-untyped-def]
    p = 0
    for i in range(len(unique)):
        start, length = prefix(heap, unique[i])
        out_offset[i] = p
        for b in range(unique[i], start + length):
            out[p] = heap[b]
            p += 1
    return p


@kernel(allocates=False)
def _total(heap, unique):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(len(unique)):
        start, length = prefix(heap, unique[i])
        total += start + length - unique[i]
    return total


def gather(heap: U8, unique: I64) -> tuple[U8, I64]:
    """A new heap of just these slices, and the offset of each."""
    out = np.zeros(_total(heap, unique) + PAD, np.uint8)
    offsets = np.empty(len(unique), np.int64)
    _copy_slices(heap, unique, out, offsets)
    return out, offsets


@kernel(allocates=False)
def _flat(heap, unique, out, starts):  # type: ignore[no-untyped-def]
    p = 0
    for i in range(len(unique)):
        start, length = prefix(heap, unique[i])
        starts[i] = p
        for b in range(start, start + length):
            out[p] = heap[b]
            p += 1
    starts[len(unique)] = p


@kernel(allocates=False)
def _flat_size(heap, unique):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(len(unique)):
        total += prefix(heap, unique[i])[1]
    return total


def flat(heap: U8, unique: I64) -> tuple[U8, I64]:
    """These slices end to end without their lengths, as in Arrow, and where each one starts (one extra entry)."""
    out = np.empty(_flat_size(heap, unique), np.uint8)
    starts = np.empty(len(unique) + 1, np.int64)
    _flat(heap, unique, out, starts)
    return out, starts


@kernel
def _heaped(source, starts, out, p, offsets):  # type: ignore[no-untyped-def]
    for i in range(len(starts) - 1):
        offsets[i] = p
        length = starts[i + 1] - starts[i]
        p = put_varint(out, p, length)
        out[p : p + length] = source[starts[i] : starts[i + 1]]
        p += length
    return p


def heaped(parts: Sequence[tuple[U8, I64]]) -> tuple[U8, list[I64]]:
    """The inverse of `flat`: one heap of all parts, and for each part the offsets of its slices. Starts must ascend and
    end within their bytes."""
    bits = [np.frexp(np.diff(starts).astype(np.float64))[1] for _, starts in parts]  # 0 for a length of 0
    size = sum(int(starts[-1] - starts[0]) for _, starts in parts)
    size += sum(int(np.maximum((b + 6) // 7, 1).sum()) for b in bits)
    heap = np.zeros(size + PAD, np.uint8)
    # The first kernel of a process costs half a second, compiled or not: a few thousand slices are faster without.
    fill = _heaped if sum(len(starts) for _, starts in parts) > 4096 else _heaped.py_func
    found, p = [], 0
    for source, starts in parts:
        offsets = np.empty(len(starts) - 1, np.int64)
        p = fill(source, starts, heap, p, offsets)
        found.append(offsets)
    heap.flags.writeable = False
    return heap, found
