"""Attribute values: from a cell or heap slice to a Python value and back. One value at a time; columns stay columns."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.varint import decode_varint, encode_varint
from etude.model.schema import ValueKind
from etude.model.text import slice_bytes

V = ValueKind
_PACK: Final = {V.DOUBLE: "<d", V.FLOAT: "<f", V.FIXED32: "<I", V.FIXED64: "<Q", V.SFIXED32: "<i", V.SFIXED64: "<q"}
_RANGE: Final = {
    V.INT32: (-(2**31), 2**31), V.SINT32: (-(2**31), 2**31), V.SFIXED32: (-(2**31), 2**31),
    V.UINT32: (0, 2**32), V.FIXED32: (0, 2**32), V.BOOL: (0, 2),
    V.INT64: (-(2**63), 2**63), V.SINT64: (-(2**63), 2**63), V.SFIXED64: (-(2**63), 2**63),
    V.UINT64: (0, 2**64), V.FIXED64: (0, 2**64),
}  # fmt: skip


def element(kind: ValueKind) -> ValueKind:
    """The scalar kind of a list kind."""
    return ValueKind(kind - 1) if kind.is_list else kind


def cell_to_scalar(kind: ValueKind, cell: int) -> Any:
    """The value whose 64 bits a cell holds."""
    if kind == V.DOUBLE:
        return struct.unpack("<d", struct.pack("<q", cell))[0]
    if kind == V.FLOAT:
        return struct.unpack("<f", struct.pack("<I", cell & 0xFFFFFFFF))[0]
    if kind == V.BOOL:
        return bool(cell)
    return cell & 0xFFFFFFFFFFFFFFFF if kind in (V.UINT64, V.FIXED64) else cell


def scalar_to_cell(kind: ValueKind, value: Any) -> int:
    """The signed 64 bits that represent a scalar."""
    if kind == V.DOUBLE:
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    if kind == V.FLOAT:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    low, high = _RANGE[kind]
    if not low <= int(value) < high:
        raise TraceError(f"value {value} does not fit {kind.wire_name}")
    return int(value) - 2**64 if int(value) >= 2**63 else int(value)


def varint_to_scalar(kind: ValueKind, raw: int) -> Any:
    """A varint's 64 bits as the kind reads them (32-bit kinds keep the low half, as protobuf does)."""
    if kind == V.BOOL:
        return raw != 0
    if kind in (V.SINT32, V.SINT64):
        raw = raw & 0xFFFFFFFF if kind == V.SINT32 else raw
        return (raw >> 1) ^ -(raw & 1)
    if kind in (V.INT32, V.UINT32):
        raw &= 0xFFFFFFFF
        return raw - 2**32 if kind == V.INT32 and raw >= 2**31 else raw
    return raw - 2**64 if kind == V.INT64 and raw >= 2**63 else raw


def scalar_to_varint(kind: ValueKind, value: Any) -> bytes:
    if kind in (V.SINT32, V.SINT64):
        return encode_varint((value << 1) ^ (value >> 63))
    return encode_varint(int(value))


def decode_value(heap: NDArray[np.uint8], kind: ValueKind, cell: int) -> Any:
    """The Python value of a cell: a number, str, bytes, or a list of those."""
    if not kind.is_heap:
        return cell_to_scalar(kind, cell)
    payload = slice_bytes(heap, cell)
    if kind == V.STRING:
        return payload.decode()
    return payload if kind == V.BYTES else decode_list(kind, payload)


def decode_list(kind: ValueKind, payload: bytes) -> list[Any]:
    """The elements of a list message, packed or not; other fields are skipped."""
    one = element(kind)
    out: list[Any] = []
    p = 0
    while p < len(payload):
        tag, p = decode_varint(payload, p)
        p = _list_field(one, payload, p, tag, out)
    return out


def _list_field(one: ValueKind, payload: bytes, p: int, tag: int, out: list[Any]) -> int:
    wire = tag & 7
    if wire == 2:
        length, p = decode_varint(payload, p)
        body, p = payload[p : p + length], p + length
        if tag >> 3 != 1:
            return p
        if one in (V.STRING, V.BYTES):
            out.append(body.decode() if one == V.STRING else body)
        elif one in _PACK:
            out.extend(v for (v,) in struct.iter_unpack(_PACK[one], body))
        else:
            q = 0
            while q < len(body):
                raw, q = decode_varint(body, q)
                out.append(varint_to_scalar(one, raw))
        return p
    if wire == 0:
        raw, p = decode_varint(payload, p)
        if tag >> 3 == 1 and one not in _PACK and one not in (V.STRING, V.BYTES):
            out.append(varint_to_scalar(one, raw))
        return p
    if wire in (1, 5):
        size = 8 if wire == 1 else 4
        if tag >> 3 == 1 and one in _PACK and struct.calcsize(_PACK[one]) == size:
            out.append(struct.unpack_from(_PACK[one], payload, p)[0])
        return p + size
    return _skip_group(payload, p)


def _skip_group(payload: bytes, p: int) -> int:
    while True:
        tag, p = decode_varint(payload, p)
        if tag & 7 == 4:
            return p
        if tag & 7 == 3:
            p = _skip_group(payload, p)
        else:
            p = _list_field(V.NONE, payload, p, tag | 1 << 60, [])


def encode_list(kind: ValueKind, values: list[Any]) -> bytes:
    """A list message, packed."""
    one = element(kind)
    if one in (V.STRING, V.BYTES):
        raws = [v.encode() if isinstance(v, str) else v for v in values]
        return b"".join(b"\x0a" + encode_varint(len(r)) + r for r in raws)
    if not values:
        return b""
    if one in _PACK:
        body = b"".join(struct.pack(_PACK[one], v) for v in values)
    else:
        body = b"".join(scalar_to_varint(one, v) for v in values)
    return b"\x0a" + encode_varint(len(body)) + body
