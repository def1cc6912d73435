"""Pickles of numbers, texts, lists, tuples and dicts; anything else in a pickle is refused, since it could run code.

Python's own reader allocates what a pickle claims before it checks the size: a few bytes may request gigabytes. So the
instructions are scanned first, and every length, and every index in the reader's memo, is checked against the size of
the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import FormatError
from etude.kernels.compile import kernel

LINE: Final = 64
"""The argument ends with the line."""
LENGTH: Final = 128
"""The first 1, 4 or 8 bytes of the argument (the low bits) give the length of the rest."""
PLACE: Final = 32
"""The argument, this many bytes, is an index in the reader's memo, or the length of a frame."""
REFUSED: Final = -1

_PLAIN: Final = {
    "NONE": 0, "NEWTRUE": 0, "NEWFALSE": 0, "MARK": 0, "STOP": 0, "POP": 0, "POP_MARK": 0, "DUP": 0, "MEMOIZE": 0,
    "EMPTY_LIST": 0, "APPEND": 0, "APPENDS": 0, "LIST": 0, "EMPTY_TUPLE": 0, "TUPLE": 0, "TUPLE1": 0, "TUPLE2": 0,
    "TUPLE3": 0, "EMPTY_DICT": 0, "DICT": 0, "SETITEM": 0, "SETITEMS": 0, "PROTO": 1, "BININT": 4, "BININT1": 1,
    "BININT2": 2, "BINFLOAT": 8, "INT": LINE, "LONG": LINE, "FLOAT": LINE, "STRING": LINE, "UNICODE": LINE,
    "LONG1": LENGTH | 1, "LONG4": LENGTH | 4, "SHORT_BINSTRING": LENGTH | 1, "BINSTRING": LENGTH | 4,
    "SHORT_BINUNICODE": LENGTH | 1, "BINUNICODE": LENGTH | 4, "BINUNICODE8": LENGTH | 8, "SHORT_BINBYTES": LENGTH | 1,
    "BINBYTES": LENGTH | 4, "BINBYTES8": LENGTH | 8, "FRAME": PLACE | 8, "GET": LINE | PLACE, "PUT": LINE | PLACE,
    "BINGET": PLACE | 1, "BINPUT": PLACE | 1, "LONG_BINGET": PLACE | 4, "LONG_BINPUT": PLACE | 4,
    "STACK_GLOBAL": 0, "REDUCE": 0, "BUILD": 0, "NEWOBJ": 0,  # the reader below names what they request, and refuses
}  # fmt: skip
_NAMES: Final = {ord(one.code): one.name for one in pickletools.opcodes}
_ARGUMENT: Final = np.array([_PLAIN.get(_NAMES.get(code, ""), REFUSED) for code in range(256)], np.int16)
_STOP: Final = ord(pickle.STOP)
_GLOBAL: Final = ord(pickle.GLOBAL)


class Walked(NamedTuple):
    at: int
    """Where the scan ended: after STOP, or at the invalid instruction."""
    wrong: int
    """0 nothing; 1 an instruction that is not plain; 2 more than the file has; 3 it has no end."""


@kernel
def _walk(raw, argument, stop):  # type: ignore[no-untyped-def]
    """(where the scan ended, what is wrong there), as in Walked."""
    size = len(raw)
    at: Any = 0
    while at < size:
        here = at
        code = raw[at]
        how = np.int64(argument[code])
        at += 1
        if how < 0:
            return here, 1
        place: Any = 0
        if how & 64:
            while at < size and raw[at] != 10:
                if how & 32 and 48 <= raw[at] <= 57 and place <= size:
                    place = place * 10 + (np.int64(raw[at]) - 48)
                at += 1
            at += 1
        else:
            width = how & 15
            if at + width > size:
                return here, 2
            value = np.uint64(0)
            if how & (128 | 32):
                for k in range(width):
                    value |= np.uint64(raw[at + k]) << np.uint64(8 * k)
                if value > np.uint64(size):
                    return here, 2
            place = np.int64(value)
            at += width + (place if how & 128 else 0)
        if at > size or (how & 32 and place > size):
            return here, 2
        if code == stop:
            return at, 0
    return size, 3


class _Code(Exception):  # noqa: N818 - never leaves this file
    pass


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise _Code(f"{module}.{name}")


_FAULTS: Final = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError,
    RecursionError, MemoryError,
)  # fmt: skip
"""Errors that Python's reader raises for a damaged pickle, whose instructions find wrong operands on the stack."""


def loads(raw: bytes, path: Path) -> Any:
    """The value in a pickle of plain values."""
    found = Walked(*_walk(np.frombuffer(raw, np.uint8), _ARGUMENT, _STOP))
    if found.wrong == 1 and raw[found.at] == _GLOBAL:
        asked = b".".join(raw[found.at + 1 :].split(b"\n", 2)[:2])[:80].decode(errors="replace")
        raise FormatError(f"the pickle would run code: it asks for {asked}", path=path, offset=found.at)
    if found.wrong:
        name = _NAMES.get(raw[found.at], "") if found.at < len(raw) else ""
        problem = {
            1: f"the pickle contains more than numbers, texts and lists: {name or raw[found.at : found.at + 1]!r}",
            2: f"the pickle claims more than the file has: instruction {name}",
            3: "the pickle is cut short",
        }[found.wrong]
        raise FormatError(problem, path=path, offset=found.at)
    try:
        return _Reader(io.BytesIO(raw)).load()
    except _Code as asked:
        raise FormatError(f"the pickle would run code: it asks for {asked}", path=path) from None
    except _FAULTS as problem:
        raise FormatError(f"damaged pickle: {type(problem).__name__}: {problem}", path=path) from None
