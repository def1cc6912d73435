"""Storage nodes of newer Chakra in protobuf's JSON mapping: their types by name, and the field `storage`.

"type":"STORAGE_NODE", "storage":{"level":1,"fs":{"op":3,"pathname":"/data/a","sizeBytes":"4096"}}

Levels and operations are numbers, which protobuf reads for any enum.
"""

from __future__ import annotations

from typing import Any, Final

from etude.base.errors import FormatError
from etude.kernels.varint import encode_varint
from etude.store.et_irregular import delimited, fields

FIELD: Final = 11
"""Its field number in Node."""
TYPES: Final = {8: "STORAGE_NODE", 9: "BATCH_NODE", 10: "CHECKPOINT_NODE"}
_FS: Final = {1: "op", 2: "pathname", 3: "fd", 4: "offset", 5: "sizeBytes", 6: "flags"}
_TEXT: Final = 2
_WIDE: Final = (4, 5)
"""64-bit integers, which the mapping writes as text."""
_LEVEL, _DETAIL = 1, 10


def storage_object(payload: bytes) -> dict[str, Any] | None:
    """The object of a `storage` field; None if it would not give the same bytes again."""
    try:
        found: dict[str, Any] = {}
        for f in fields(payload, "", 0):
            if f.number == _LEVEL and f.wire == 0:
                found["level"] = f.value
            elif f.number == _DETAIL and f.wire == 2:
                found["fs"] = {_FS[g.number]: _shown(g) for g in fields(f.payload, "", 0)}
            else:
                return None
        return found if storage_bytes(found) == payload else None
    except (KeyError, ValueError, FormatError):
        return None


def _shown(field: Any) -> Any:
    if field.number == _TEXT:
        return field.payload.decode()
    return str(field.value) if field.number in _WIDE else field.value


def storage_bytes(given: Any) -> bytes:
    """The payload of a `storage` field. Raises ValueError, with the path below it, for anything else."""
    given = _object(given, {"level", "fs"}, "")
    level = _number(given.get("level", 0), ".level")
    body = encode_varint(_LEVEL << 3) + encode_varint(level) if level else b""
    if "fs" not in given:
        return body
    asked, inner = _object(given["fs"], set(_FS.values()), ".fs"), b""
    for number, name in _FS.items():
        value = asked.get(name)
        if number == _TEXT:
            if value is not None and not isinstance(value, str):
                raise ValueError("not text", f".fs.{name}")
            inner += delimited(number, value.encode()) if value else b""
        elif value is not None and (whole := _number(value, f".fs.{name}")):
            inner += encode_varint(number << 3) + encode_varint(whole)
    return body + delimited(_DETAIL, inner)


def _object(given: Any, known: set[str], below: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("expected an object", below)
    if unknown := set(given) - known:
        raise ValueError(f"unknown field `{min(unknown)}`; known: {', '.join(sorted(known))}", below)
    return given


def _number(given: Any, below: str) -> int:
    is_text = isinstance(given, str) and given.isdecimal()
    if isinstance(given, bool) or not (isinstance(given, int) or is_text) or not 0 <= int(given) < 1 << 64:
        raise ValueError(f"not a whole number: {given!r}", below)
    return int(given)
