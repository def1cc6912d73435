"""The names in an object file of Linux: what its code defines, and what it expects to find in the process."""

from __future__ import annotations

import struct
from typing import Final

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE: Final = 2
_UNDEFINED: Final = 0
_GLOBAL, _WEAK = 1, 2


def is_elf(code: bytes) -> bool:
    """64 bits, the lowest byte first."""
    return code[:6] == b"\x7fELF\x02\x01"


def symbols(code: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """(defined, expected): names that other code may use, and names that it has from elsewhere."""
    header = _HEADER.unpack_from(code)
    offset, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(code, offset + size * number) for number in range(count)]
    defined: set[str] = set()
    expected: set[str] = set()
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        names = sections[section[6]][4]
        for place in range(section[4], section[4] + section[5], _SYMBOL.size):
            name_at, info, _, where, _, _ = _SYMBOL.unpack_from(code, place)
            if name_at and info >> 4 in (_GLOBAL, _WEAK):
                name = code[names + name_at : code.index(b"\0", names + name_at)].decode()
                (expected if where == _UNDEFINED else defined).add(name)
    return frozenset(defined), frozenset(expected)
