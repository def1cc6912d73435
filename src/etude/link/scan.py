"""JSON files of one big array of objects, as columns: which keys are wanted is data, the scan is compiled.

FIELDS = (Field("id", INT), Field("inputs", ENTER, into=1), Field("values", TEXT, context=1, column="in_values"))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.errors import FormatError
from etude.link import intern_kernels
from etude.link import scan_kernels as k
from etude.link.scan_kernels import ATTRIBUTES, ENTER, IDENTITY, INT, TEXT, TIME
from etude.model.schema import UNKNOWN
from etude.model.text import PAD, words

__all__ = ["ATTRIBUTES", "ENTER", "IDENTITY", "INT", "TEXT", "TIME", "Field", "Json", "Rows", "Scanner", "padded"]

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_BLOCK_ROWS = 1 << 16
"""Rows between two looks at signals: compiled code cannot be interrupted."""


@dataclass(frozen=True, slots=True)
class Field:
    """A key worth keeping, and where it goes."""

    key: str
    kind: int
    column: str = ""
    """By default the key."""
    context: int = 0
    """0: the object itself; others: the object that a field entered, or an attribute of its list of attributes."""
    into: int = 0
    """The context that ENTER and ATTRIBUTES lead to."""
    rare: bool = False
    """Kept as (row, value) pairs, not as a column."""


def padded(heap: U8, size: int) -> U8:
    """The heap of a text of `size` bytes, checked to end in zeros."""
    if len(heap) < size + PAD or heap[size : size + PAD].any():
        raise ValueError("a heap needs zero bytes behind its text")
    heap.flags.writeable = False
    return heap


def _hash(context: int, key: bytes) -> int:
    """As the kernels hash a key: eight bytes at a time, and the rest (which may be none)."""
    h = 0xCBF29CE484222325 ^ context
    for at in range(0, len(key) + 1, 8):
        h = (h ^ int.from_bytes(key[at : at + 8], "little")) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        h ^= h >> 29
    return h


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a scan found: dense columns, and rare fields as (rows ascending, values)."""

    count: int
    dense: dict[str, I64]
    rare: dict[str, tuple[I64, I64]]


class Scanner:
    """The compiled form of a list of fields."""

    def __init__(self, fields: Sequence[Field], attribute_context: int = 0) -> None:
        columns = dict.fromkeys(f.column or f.key for f in fields if f.kind not in (ENTER, ATTRIBUTES) and not f.rare)
        rare = dict.fromkeys(f.column or f.key for f in fields if f.rare)
        self.columns, self.rare = list(columns), list(rare)
        size = 64
        while size < 4 * len(fields):
            size *= 2
        self.slots, self.numbers = np.zeros(size, np.uint64), np.full(size, -1, np.int64)
        self.fields = np.zeros((3, len(fields)), np.int64)
        for number, f in enumerate(fields):
            h = _hash(f.context, f.key.encode())
            slot = h % size
            while self.numbers[slot] >= 0:
                slot = (slot + 1) % size
            self.slots[slot], self.numbers[slot] = h, number
            name = f.column or f.key
            place = f.into if f.kind in (ENTER, ATTRIBUTES) else (self.rare if f.rare else self.columns).index(name)
            self.fields[:, number] = f.kind, place, f.rare
        self.names = np.array([_hash(attribute_context, key) for key in (b"name", b"value")], np.uint64)


@dataclass(eq=False, slots=True)
class Json:
    """A JSON text that is read in place. `path` names it in errors."""

    heap: U8
    size: int
    path: str
    word: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.heap = padded(self.heap, self.size)
        self.word = words(self.heap)

    def error(self, place: int, problem: str = "") -> FormatError:
        if not problem:
            shown = self.heap[place : place + 1].tobytes().decode("latin-1")
            problem = f"not JSON: unexpected {shown!r}" if place < self.size else "not JSON: cut short"
        return FormatError(problem, path=self.path, offset=min(place, self.size))

    # -- the top of the file ----------------------------------------------------------------------------------------

    def top(self, array: str, scanner: Scanner) -> tuple[dict[str, Any], Rows]:
        """The members of the outermost object, and the rows of its member `array`; a bare array has no members."""
        p = int(k.skip_space(self.heap, 3 if self.heap[:3].tobytes() == b"\xef\xbb\xbf" else 0))
        members: dict[str, Any] = {}
        rows: Rows | None = None
        if self.heap[p] == ord("["):
            rows, p = self._rows(p + 1, scanner)
        elif self.heap[p] != ord("{"):
            raise self.error(p, "not JSON" if self.size else "the file is empty")
        else:
            p = int(k.skip_space(self.heap, p + 1))
            while self.heap[p] != ord("}"):
                key, p = self._member(p)
                if key == array and self.heap[p] == ord("["):
                    rows, p = self._rows(p + 1, scanner)
                else:
                    members[key], p = self._value(p)
                p = self._next(p)
            p += 1
        p = int(k.skip_space(self.heap, p))
        if p < self.size:
            raise self.error(p)
        if rows is None:
            found = ", ".join(list(members)[:8]) or "nothing"
            raise FormatError(f"no list `{array}` in it", path=self.path, hint=f"it has: {found}")
        return members, rows

    def _member(self, p: int) -> tuple[str, int]:
        if self.heap[p] != ord('"'):
            raise self.error(p)
        key, p = self._value(p)
        p = int(k.skip_space(self.heap, p))
        if self.heap[p] != ord(":"):
            raise self.error(p)
        return str(key), int(k.skip_space(self.heap, p + 1))

    def _next(self, p: int) -> int:
        p = int(k.skip_space(self.heap, p))
        if self.heap[p] == ord(","):
            return int(k.skip_space(self.heap, p + 1))
        if self.heap[p] != ord("}"):
            raise self.error(p)
        return p

    def _value(self, p: int) -> tuple[Any, int]:
        end = int(k.skip_value(self.heap, self.word, p))
        if end < 0:
            raise self.error(~end)
        return self.value(p), end

    def _rows(self, p: int, scanner: Scanner) -> tuple[Rows, int]:
        room = max(min((self.size - p) // 64, _BLOCK_ROWS), 64)
        dense = np.full((len(scanner.columns), room), UNKNOWN, np.int64)
        sparse = np.empty((3, 1024), np.int64)
        found, next_key = np.zeros((5, 64), np.int64), np.zeros((4, scanner.fields.shape[1] + 2), np.int64)
        row, used, status = 0, 0, k.FULL
        first = p = int(k.skip_space(self.heap, p))
        while status == k.FULL:
            stop = min(row + _BLOCK_ROWS, room)
            before = row
            status, p, row, used = k.scan_rows(
                self.heap, self.word, p, scanner.slots, scanner.numbers, scanner.fields, scanner.names,
                row, stop, dense, sparse, used, found, next_key,
            )  # fmt: skip
            if status == k.BAD:
                raise self.error(p)
            if row == room:
                # as many as the rest will have if it is like what was read, and some
                room += max((self.size - p) * row // (p - first) * 9 // 8, row // 4, 64)
                dense = _grown_rows(dense, room)
            elif row < stop or row == before:
                sparse = np.concatenate([sparse, np.empty_like(sparse)], axis=1)
        pairs = sparse[:, :used]
        rare = {}
        for number, name in enumerate(scanner.rare):
            mine = np.flatnonzero(pairs[1] == number)
            rare[name] = pairs[0, mine], pairs[2, mine]
        columns = {name: dense[i, :row] for i, name in enumerate(scanner.columns)}
        return Rows(row, columns, rare), p

    # -- values -----------------------------------------------------------------------------------------------------

    def slice(self, place: int) -> bytes:
        """The bytes of the value at a place."""
        end = int(k.skip_value(self.heap, self.word, place))
        if end < 0:
            raise self.error(~end)
        return self.heap[place:end].tobytes()

    def value(self, place: int) -> Any:
        """The Python value at a place; control characters in strings and bytes that are not UTF-8 are let through."""
        raw = self.slice(place)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            return json.loads(raw.decode("utf-8", "replace"), strict=False)
        except ValueError as problem:
            raise self.error(place + int(getattr(problem, "pos", 0)), f"not JSON: {problem}") from None

    def text(self, place: int) -> str:
        """The text at a place: a string's content, anything else as it stands."""
        if place < 0:
            return ""
        found = self.value(place) if self.heap[place] == ord('"') else None
        return found if isinstance(found, str) else self.slice(place).decode("utf-8", "replace")

    def intern(self, places: I64) -> tuple[I32, I64]:
        """(code per row, -1 where there is none; place of the first use per code), equal bytes having equal codes."""
        places = np.ascontiguousarray(places)
        codes = np.empty(len(places), np.int32)
        size, row, used = 1 << 12, 0, 0
        unique, lengths, hashes = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
        while True:
            room = size * 6 // 10 + 1
            unique, lengths, hashes = _grown(unique, room), _grown(lengths, room), _grown(hashes, room)
            table = _table(hashes[:used], size)
            row, used = intern_kernels.intern_values(
                self.heap, self.word, places, codes, table, hashes, unique, lengths, row, used
            )
            if row == len(places):
                return codes, unique[:used].copy()
            size *= 4

    def coded(self, places: I64) -> tuple[I32, tuple[str, ...]]:
        """A text column as codes and words."""
        codes, unique = self.intern(places)
        return codes, tuple(self.text(int(p)) for p in unique)


def _table(hashes: NDArray[np.uint64], size: int) -> I32:
    table = np.full(size, -1, np.int32)
    intern_kernels.fill_table(table, hashes)
    return table


def _grown_rows(dense: I64, room: int) -> I64:
    bigger = np.full((len(dense), room), UNKNOWN, np.int64)
    bigger[:, : dense.shape[1]] = dense
    return bigger


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    bigger = np.empty(size, array.dtype)
    bigger[: len(array)] = array
    return bigger
