"""The wire format of protobuf, as far as `.et` files need it: text, unknown fields, lists, and message boundaries.

Nothing reads past the end it is given.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.kernels.varint import read_varint

DONE, GROW_ROWS = 0, 1
BAD_VARINT, BAD_LENGTH, BAD_TAG, BAD_TEXT, BAD_LIST = 10, 11, 12, 13, 14
PROBLEM = {
    BAD_VARINT: "a number does not end within its message",
    BAD_LENGTH: "a field runs past the end of its message",
    BAD_TAG: "not a protobuf field",
    BAD_TEXT: "text that is not UTF-8",
    BAD_LIST: "a list attribute is malformed",
}
BAD = -100
"""BAD - code is the error result of a kernel that otherwise returns a position."""

MAX_DEPTH = 100
"""Most nested groups and messages, as protobuf counts them."""
MAX_MICROS = np.int64(np.iinfo(np.int64).max // 1000)

# wire type of each value kind; -1 for none
VALUE_WIRE = np.array(
    [-1, 1, 2, 5, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 5, 2, 1, 2, 5, 2, 1, 2, 0, 2, 2, 2, 2, 2], np.int64
)


@kernel(allocates=False, inline="llvm")
def is_ascii(word, p, end):
    """Whether all bytes from p to end are ASCII."""
    seen = np.uint64(0)
    while p + 8 <= end:
        seen |= word[p]
        p += 8
    if p < end:
        seen |= word[p] & ((np.uint64(1) << np.uint64(8 * (end - p))) - np.uint64(1))
    return seen & np.uint64(0x8080808080808080) == np.uint64(0)


@kernel(allocates=False)
def is_utf8(u8, word, p, end):
    if is_ascii(word, p, end):
        return True
    while p < end:
        a = u8[p]
        if a < 0x80:
            p += 1
            continue
        if a < 0xC2 or a > 0xF4:
            return False
        more = 1 if a < 0xE0 else (2 if a < 0xF0 else 3)
        if p + more >= end:
            return False
        b = u8[p + 1]
        low, top = 0x80, 0xBF
        if a == 0xE0:
            low = 0xA0
        elif a == 0xED:
            top = 0x9F
        elif a == 0xF0:
            low = 0x90
        elif a == 0xF4:
            top = 0x8F
        if b < low or b > top:
            return False
        for k in range(2, more + 1):
            if u8[p + k] & 0xC0 != 0x80:
                return False
        p += more + 1
    return True


@kernel(allocates=False)
def split(u8, size, p, starts, ends, count):
    """Message spans from byte p on. Returns (messages so far, next byte, status); stops when the arrays are full."""
    while p < size:
        if count == len(starts):
            return count, p, GROW_ROWS
        length, q = read_varint(u8, p, min(size, p + 10))
        if q < 0:
            return count, p, BAD_VARINT
        if length > np.uint64(size - q):
            return count, p, BAD_LENGTH
        starts[count] = q
        ends[count] = q + np.int64(length)
        count += 1
        p = q + np.int64(length)
    return count, p, DONE


@kernel(allocates=False)
def skip_field(u8, p, end, tag, max_depth, stack):
    """Next byte after an unknown field's value, or BAD - code. `stack` has room for MAX_DEPTH groups."""
    depth = 0
    while True:
        wire = tag & np.uint64(7)
        if tag >> np.uint64(32) != np.uint64(0) or (depth == 0 and tag < np.uint64(8)):
            return np.int64(BAD - BAD_TAG)
        if wire == np.uint64(0):
            _, p = read_varint(u8, p, end)
            if p < 0:
                return np.int64(BAD - BAD_VARINT)
        elif wire == np.uint64(1):
            p += 8
        elif wire == np.uint64(5):
            p += 4
        elif wire == np.uint64(2):
            length, p = read_varint(u8, p, end)
            if p < 0 or length > np.uint64(end - p):
                return np.int64(BAD - BAD_LENGTH)
            p += np.int64(length)
        elif wire == np.uint64(3):
            if depth == max_depth:
                return np.int64(BAD - BAD_TAG)
            stack[depth] = tag >> np.uint64(3)
            depth += 1
        elif wire == np.uint64(4):
            if depth == 0 or stack[depth - 1] != tag >> np.uint64(3):
                return np.int64(BAD - BAD_TAG)
            depth -= 1
        else:
            return np.int64(BAD - BAD_TAG)
        if p > end:
            return np.int64(BAD - BAD_LENGTH)
        if depth == 0:
            return p
        tag, p = read_varint(u8, p, min(end, p + 5))
        if p < 0:
            return np.int64(BAD - BAD_VARINT)


@kernel(allocates=False)
def check_list(u8, word, kind, p, end, stack):
    """0, or the problem with a list attribute's message; `stack` as in `skip_field`."""
    one = VALUE_WIRE[kind - 1]
    if kind == 28 and is_ascii(word, p, end):  # short ASCII strings: each is a tag, a length below 128, its bytes
        q = p
        while q + 1 < end and u8[q] == 10:
            q += 2 + np.int64(u8[q + 1])
        if q == end:
            return 0
    while p < end:
        tag = np.uint64(10)
        if u8[p] == 10:
            p += 1
        else:
            tag, p = read_varint(u8, p, min(end, p + 5))
            if p < 0:
                return BAD_VARINT
        if tag == np.uint64(10):
            length, p = read_varint(u8, p, end)
            if p < 0 or length > np.uint64(end - p):
                return BAD_LENGTH
            stop = p + np.int64(length)
            if kind == 28:
                if not is_utf8(u8, word, p, stop):
                    return BAD_TEXT
            elif one == 0:
                while p < stop:
                    _, p = read_varint(u8, p, stop)
                    if p < 0:
                        return BAD_VARINT
            elif (one == 1 and length % np.uint64(8) != 0) or (one == 5 and length % np.uint64(4) != 0):
                return BAD_LIST
            p = stop
        else:
            p = skip_field(u8, p, end, tag, MAX_DEPTH - 2, stack)
            if p < 0:
                return BAD - p
    return 0


@kernel
def check_lists(u8, word, kinds, starts, ends):
    """0, or the problem with the first bad one of many list messages."""
    stack = np.empty(MAX_DEPTH, np.uint64)
    for i in range(len(kinds)):
        problem = check_list(u8, word, kinds[i], starts[i], ends[i], stack)
        if problem:
            return problem
    return 0
