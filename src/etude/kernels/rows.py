"""Tables of records: `requests[r].first_ns`, in kernels and in plain Python.

A table is an array whose rows have named fields, numbers of 64 bits or records of these. Kernels take the array
itself, and read a field with one load. In NumPy a column is `table["first_ns"]`. A record of NumPy has no attributes
and is slow to read, so the plain form of a kernel takes `TableRows`, which are the same memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.void]
WORD = 8


def record(*fields: str | tuple[str, Any]) -> np.dtype[np.void]:
    """The type of a record. A field is a whole number, or what is given with it: `np.float64`, or another record."""
    return np.dtype([(one, np.int64) if isinstance(one, str) else one for one in fields], align=True)


def field_of(kind: np.dtype[np.void], name: str) -> str:
    """The field that a name stands for in any case, with or without the unit of a time: `FINISH` is `finish_ns`."""
    found = name.lower()
    return found if found in (kind.names or ()) else f"{found}_ns"


class TableRow:
    """One record; its class has a property for each field of its type."""

    __slots__ = ("_reals", "_words")
    _words: memoryview
    _reals: Any


class TableRows(dict[int, Any]):
    """The records of a table for plain Python, made when they are first used."""

    def __init__(self, table: Table) -> None:
        self._words = table.view(np.int64).reshape(len(table), table.itemsize // WORD)
        self._row = _row_class(table.dtype)

    def __missing__(self, place: int) -> Any:
        self[place] = made = self._row(memoryview(self._words[place]))
        return made

    def __len__(self) -> int:
        return len(self._words)


@cache
def _row_class(kind: np.dtype[np.void]) -> Any:
    """A record in a record is made once, with the one that holds it."""
    whole: dict[str, slice] = {}
    members: dict[str, Any] = {"__slots__": []}
    for name in kind.names or ():
        inside, offset = kind.fields[name][:2]  # type: ignore[index]
        if inside.names:
            members["__slots__"].append(name)
            whole[name] = slice(offset // WORD, (offset + inside.itemsize) // WORD)
        else:
            members[name] = _real(offset // WORD) if inside == np.float64 else _word(offset // WORD)
    inner = {name: _row_class(kind.fields[name][0]) for name in whole}  # type: ignore[index]

    def start(self: Any, words: memoryview) -> None:
        self._words = words
        self._reals = words.cast("B").cast("d")
        for name, part in whole.items():
            setattr(self, name, inner[name](words[part]))

    return type("Record", (TableRow,), members | {"__init__": start})


def _word(place: int) -> property:
    def read(row: TableRow) -> int:
        return row._words[place]

    def write(row: TableRow, value: int) -> None:
        row._words[place] = value

    return property(read, write)


def _real(place: int) -> property:
    def read(row: TableRow) -> Any:
        return row._reals[place]

    def write(row: TableRow, value: float) -> None:
        row._reals[place] = value

    return property(read, write)
