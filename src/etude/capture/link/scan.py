"""JSON files of one big array of objects, as columns: the wanted keys are data, the scan is compiled.

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

from etude.base.errors import FormatError
from etude.capture.link import intern_kernels
from etude.capture.link import scan_kernels as k
from etude.capture.link.scan_kernels import ATTRIBUTES, ENTER, IDENTITY, INT, TEXT, TIME, WORD
from etude.kernels.arrays import I32, I64, U8
from etude.model.schema import UNKNOWN
from etude.model.text import PAD, words

__all__ = [
    "ATTRIBUTES",
    "ENTER",
    "IDENTITY",
    "INT",
    "TEXT",
    "TIME",
    "WORD",
    "Json",
    "JsonField",
    "Rows",
    "Scanner",
    "padded",
]


_BLOCK_ROWS = 1 << 12
"""Rows that are scanned at a time. Their texts are coded while still in the processor's cache; and compiled code cannot
be interrupted, so signals are checked in between."""


@dataclass(frozen=True, slots=True)
class JsonField:
    """A key to keep, and where it goes."""

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
    """Hashes a key like the kernels: eight bytes at a time, then the rest (which may be empty)."""
    h = 0xCBF29CE484222325 ^ context
    for at in range(0, len(key) + 1, 8):
        h = (h ^ int.from_bytes(key[at : at + 8], "little")) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        h ^= h >> 29
    return h


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The result of a scan: dense columns, texts as (codes, -1: none; position of the first use per code), and rare
    fields as (rows ascending, values)."""

    count: int
    dense: dict[str, I64]
    words: dict[str, tuple[I32, I64]]
    rare: dict[str, tuple[I64, I64]]

    def places(self, column: str) -> I64:
        """Positions of the texts of a column, the same for equal ones; UNKNOWN: none."""
        codes, first = self.words[column]
        return np.append(first, UNKNOWN)[codes]


class Scanner:
    """The compiled form of a list of fields."""

    def __init__(self, fields: Sequence[JsonField], attribute_context: int = 0) -> None:
        columns = dict.fromkeys(f.column or f.key for f in fields if f.kind not in (ENTER, ATTRIBUTES) and not f.rare)
        rare = dict.fromkeys(f.column or f.key for f in fields if f.rare)
        self.columns, self.rare = list(columns), list(rare)
        self.words = [f.column or f.key for f in fields if f.kind == WORD]
        size = 64
        while size < 4 * len(fields):
            size *= 2
        slots, numbers = np.zeros(size, np.uint64), np.full(size, -1, np.int64)
        about = np.zeros((3, len(fields)), np.int64)
        for number, f in enumerate(fields):
            h = _hash(f.context, f.key.encode())
            slot = h % size
            while numbers[slot] >= 0:
                slot = (slot + 1) % size
            slots[slot], numbers[slot] = h, number
            name = f.column or f.key
            place = f.into if f.kind in (ENTER, ATTRIBUTES) else (self.rare if f.rare else self.columns).index(name)
            about[:, number] = f.kind, place, f.rare
        names = np.array([_hash(attribute_context, key) for key in (b"name", b"value")], np.uint64)
        self.wanted = k.Wanted(slots, numbers, about, names)


@dataclass(eq=False, slots=True)
class Json:
    """A JSON text that is parsed in place. `path` names it in errors."""

    heap: U8
    size: int
    path: str
    whole: bool = True
    """The text is the whole file, so that positions in it can be reported; otherwise only some of its values."""
    word: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.heap = padded(self.heap, self.size)
        self.word = words(self.heap)

    def error(self, place: int, problem: str = "") -> FormatError:
        if not problem:
            shown = self.heap[place : place + 1].tobytes().decode("latin-1")
            problem = f"not JSON: unexpected {shown!r}" if place < self.size else "not JSON: cut short"
        hint = "it was cut while it was written or copied" if problem.endswith("cut short") else ""
        return FormatError(problem, path=self.path, offset=min(place, self.size) if self.whole else None, hint=hint)

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
        return self.value(p), self._behind(p)

    def _rows(self, p: int, scanner: Scanner) -> tuple[Rows, int]:
        block = np.empty((len(scanner.columns), _BLOCK_ROWS), np.int64)
        sparse = np.empty((3, 1024), np.int64)
        last = k.Last(np.zeros((5, 64), np.int64), np.zeros((4, scanner.wanted.fields.shape[1] + 2), np.int64))
        coders = {name: Coder(self) for name in scanner.words}
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in scanner.columns}
        rows, status, cursor = 0, k.FULL, np.array([k.skip_space(self.heap, p), 0, 0], np.int64)
        while status == k.FULL:
            block.fill(UNKNOWN)
            cursor[k.ROW], stop = 0, False
            while not stop:
                before = cursor[k.ROW]
                kept = k.Kept(block, sparse)
                status = k.scan_rows(self.heap, self.word, scanner.wanted, kept, last, rows, cursor)
                if status == k.BAD:
                    raise self.error(int(cursor[k.PLACE]))
                row = int(cursor[k.ROW])
                stop = status == k.DONE or row == _BLOCK_ROWS
                if not stop or row == before:
                    sparse = np.concatenate([sparse, np.empty_like(sparse)], axis=1)
            for values, (name, part) in zip(block[:, :row], parts.items(), strict=True):
                part.append(coders[name].code(values) if name in coders else values.copy())
            rows += row
        pairs = sparse[:, : cursor[k.USED]]
        rare = {}
        for number, name in enumerate(scanner.rare):
            mine = np.flatnonzero(pairs[1] == number)
            rare[name] = pairs[0, mine], pairs[2, mine]
        columns = {name: np.concatenate(parts.pop(name)) for name in scanner.columns}
        words = {name: (columns.pop(name), coders[name].first) for name in coders}
        return Rows(rows, columns, words, rare), int(cursor[k.PLACE])

    # -- inside -------------------------------------------------------------------------------------------------------

    def members_at(self, place: int) -> dict[str, int]:
        """Position of each member of the object at a position; empty if it is not an object."""
        p = int(k.skip_space(self.heap, place))
        found: dict[str, int] = {}
        if self.heap[p] != ord("{"):
            return found
        p = int(k.skip_space(self.heap, p + 1))
        while self.heap[p] != ord("}"):
            key, p = self._member(p)
            found[key] = p
            p = self._next(self._behind(p))
        return found

    def elements_at(self, place: int) -> list[int]:
        """Position of each element of the list at a position; for anything else the position itself."""
        p = int(k.skip_space(self.heap, place))
        if self.heap[p] != ord("["):
            return [p]
        found: list[int] = []
        p = int(k.skip_space(self.heap, p + 1))
        while self.heap[p] != ord("]"):
            found.append(p)
            p = int(k.skip_space(self.heap, self._behind(p)))
            if self.heap[p] == ord(","):
                p = int(k.skip_space(self.heap, p + 1))
            elif self.heap[p] != ord("]"):
                raise self.error(p)
        return found

    def rows_at(self, place: int, scanner: Scanner) -> Rows:
        """The objects of the list at a place as columns."""
        p = int(k.skip_space(self.heap, place))
        if self.heap[p] != ord("["):
            raise self.error(p)
        return self._rows(p + 1, scanner)[0]

    def _behind(self, p: int) -> int:
        end = int(k.skip_value(self.heap, self.word, p))
        if end < 0:
            raise self.error(~end)
        return end

    # -- values -----------------------------------------------------------------------------------------------------

    def slice(self, place: int) -> bytes:
        """The bytes of the value at a place."""
        end = int(k.skip_value(self.heap, self.word, place))
        if end < 0:
            raise self.error(~end)
        return self.heap[place:end].tobytes()

    def value(self, place: int) -> Any:
        """The Python value at a position; control characters in strings and bytes that are not UTF-8 are accepted."""
        raw = self.slice(place)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            return json.loads(raw.decode("utf-8", "replace"), strict=False)
        except ValueError as problem:
            raise self.error(place + int(getattr(problem, "pos", 0)), f"not JSON: {problem}") from None

    def values(self, places: I64) -> list[Any]:
        """The Python values at these positions, decoded all at once."""
        text, _ = self._gathered(places, b",")
        raw = b"[%s]" % text[: max(len(text) - 1, 0)].tobytes()
        try:
            return list(msgspec.json.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [self.value(int(place)) for place in places]

    def text(self, place: int) -> str:
        """The text at a position: a string's content, anything else verbatim."""
        if place < 0:
            return ""
        found = self.value(place) if self.heap[place] == ord('"') else None
        return found if isinstance(found, str) else self.slice(place).decode("utf-8", "replace")

    def intern(self, places: NDArray[np.signedinteger[Any]]) -> tuple[I32, I64]:
        """(code per row, -1: none; position of the first use per code); equal bytes have equal codes."""
        if not self.whole:  # `only` kept equal texts of a column once: their positions distinguish them
            code = np.full(self.size + 1, -1, np.int32)
            code[places] = 0
            first = np.flatnonzero(code[:-1] == 0)
            code[first], code[-1] = np.arange(len(first)), -1
            return code[places], first
        coder = Coder(self)
        return coder.code(np.ascontiguousarray(places).astype(np.int64, copy=False)), coder.first

    def only(self, places: I64) -> tuple[Json, I64]:
        """A text of only the values at these positions, and their new positions."""
        text, to = self._gathered(places, b" ")
        return Json(np.append(text, np.zeros(PAD, np.uint8)), len(text), self.path, whole=False), to

    def _gathered(self, places: I64, behind: bytes) -> tuple[U8, I64]:
        """The values at these positions, a byte behind each, and where they start."""
        lengths = np.empty(len(places), np.int64)
        intern_kernels.measure(self.heap, self.word, places, lengths)
        to = np.cumsum(lengths + 1) - lengths - 1
        text = np.full(int(lengths.sum()) + len(lengths), ord(behind), np.uint8)
        intern_kernels.copy(self.heap, places, lengths, to, text)
        return text, to

    def coded(self, places: NDArray[np.signedinteger[Any]]) -> tuple[I32, tuple[str, ...]]:
        """A text column as codes and words."""
        codes, first = self.intern(places)
        return codes, self.texts(first)

    def texts(self, places: I64) -> tuple[str, ...]:
        return tuple(self.text(int(p)) for p in places)


class Coder:
    """Assigns codes to texts by their bytes, in order of first use."""

    def __init__(self, json: Json) -> None:
        self._json, self._used = json, 0
        self._table = np.full(1 << 12, -1, np.int32)
        self._first, self._lengths = np.empty(0, np.int64), np.empty(0, np.int64)
        self._hashes, self._behind = np.empty(0, np.uint64), np.full(1, -1, np.int32)
        self._make_room()

    @property
    def first(self) -> I64:
        """The position of the first use of each code."""
        return self._first[: self._used].copy()

    def code(self, places: I64) -> I32:
        """The codes of the values at these positions; -1: none."""
        codes, row = np.empty(len(places), np.int32), 0
        while True:
            known = intern_kernels.CodedValues(self._table, self._hashes, self._first, self._lengths, self._behind)
            row, self._used = intern_kernels.intern_values(
                self._json.heap, self._json.word, places, row, codes, known, self._used
            )
            if row == len(places):
                return codes
            self._table = np.full(4 * len(self._table), -1, np.int32)
            intern_kernels.fill_table(self._table, self._hashes[: self._used])
            self._make_room()

    def _make_room(self) -> None:
        room = len(self._table) * 6 // 10 + 1
        self._first, self._lengths = _grown(self._first, room), _grown(self._lengths, room)
        self._hashes, used = _grown(self._hashes, room), len(self._behind)
        self._behind = _grown(self._behind, room + 1)
        self._behind[used:] = -1


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    bigger = np.empty(size, array.dtype)
    bigger[: len(array)] = array
    return bigger
