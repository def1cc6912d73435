"""Varints, the numbers of protobuf: seven bits a byte, the lowest first, the high bit on all but the last."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.kernels.compile import kernel

LONGEST = 10
"""Bytes of 64 bits."""
_ALL = 0xFFFFFFFFFFFFFFFF


@kernel(allocates=False, inline="llvm")
def read_varint(buf, p, end):
    """(value as 64 bits, next byte); next byte is -1 if the number does not end before `end` or within 10 bytes."""
    if p >= end:
        return np.uint64(0), np.int64(-1)
    byte = buf[p]
    if byte < 128:
        return np.uint64(byte), p + 1
    value = np.uint64(byte & 127)
    shift = np.uint64(7)
    p += 1
    while p < end and shift < np.uint64(70):
        byte = buf[p]
        p += 1
        value |= np.uint64(byte & 127) << shift
        if byte < 128:
            return value, p
        shift += np.uint64(7)
    return value, np.int64(-1)


@kernel(allocates=False, inline="llvm")
def put_varint(out, p, value):
    """Writes a number without a sign at `p`; returns where it ends."""
    rest = np.uint64(value)
    while rest > np.uint64(127):
        out[p] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        p += 1
    out[p] = np.uint8(rest)
    return p + 1


@kernel(allocates=False, inline="llvm")
def varint_length(value):
    """Bytes that `put_varint` writes for a number without a sign."""
    n = 1
    while value > np.uint64(127):
        value >>= np.uint64(7)
        n += 1
    return n


# -- one number at a time, from Python, where a call into compiled code would take longer ------------------------------


def decode_varint(data: Any, p: int) -> tuple[int, int]:
    """(value as 64 bits, next byte) of the varint at `p` of some bytes; IndexError where they end before it does."""
    value = shift = 0
    while True:
        byte = data[p]
        p += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _ALL, p
        shift += 7


def encode_varint(value: int) -> bytes:
    """A number as a varint; a negative one as its 64 bits."""
    value &= _ALL
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
