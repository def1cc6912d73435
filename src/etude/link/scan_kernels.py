"""Compiled scanning of JSON: arrays of objects into columns of numbers and offsets, no object per row.

The text must be followed by zero bytes (`etude.model.text.PAD`): a zero byte is never valid, so every loop stops at it.
A scan returns where it stopped and why; a value that no field asks for is passed over.
"""

from __future__ import annotations

import numpy as np
from numba import njit

UNKNOWN = np.int64(np.iinfo(np.int64).min)

# why a scan stopped
DONE, FULL, BAD = 0, 1, 2
# what becomes of a value
INT, TIME, TEXT, IDENTITY, ENTER, ATTRIBUTES = 1, 2, 3, 4, 5, 6

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _DOT = 34, 92, 44, 58, 45, 46
_OPEN, _CLOSE, _LIST, _END_LIST = 123, 125, 91, 93


@njit(cache=True, inline="always")
def skip_space(buf, p):
    while buf[p] <= 32 and buf[p] != 0:
        p += 1
    return p


@njit(cache=True, inline="always")
def _marks(w):
    """The high bit of each byte that is a quote, a backslash or zero; bits above the first may be set in error."""
    ones, high = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    quote, backslash = w ^ np.uint64(0x2222222222222222), w ^ np.uint64(0x5C5C5C5C5C5C5C5C)
    return (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((w - ones) & ~w)) & high


@njit(cache=True, inline="always")
def _first(marks):
    """Number of the first marked byte."""
    lowest = (marks & (~marks + np.uint64(1))) >> np.uint64(7)
    return np.int64((lowest * np.uint64(0x0001020304050607)) >> np.uint64(56))


@njit(cache=True)
def skip_string(buf, word, p):
    """Behind the string whose opening quote is at p; ~place where it breaks off."""
    p += 1
    while True:
        marks = _marks(word[p])
        if not marks:
            p += 8
            continue
        p += _first(marks)
        c = buf[p]
        if c == _QUOTE:
            return p + 1
        if c == 0 or buf[p + 1] == 0:
            return ~p
        p += 2


@njit(cache=True)
def _skip_container(buf, word, p):
    depth = 0
    while True:
        c = buf[p]
        if c == _QUOTE:
            p = skip_string(buf, word, p)
            if p < 0:
                return p
            continue
        if c == _LIST or c == _OPEN:
            depth += 1
        elif c == _END_LIST or c == _CLOSE:
            depth -= 1
            if depth == 0:
                return p + 1
        elif c == 0:
            return ~p
        p += 1


@njit(cache=True)
def skip_value(buf, word, p):
    """Behind the value at p (no space before it); ~place where it breaks off."""
    c = buf[p]
    if c == _QUOTE:
        return skip_string(buf, word, p)
    if c == _LIST or c == _OPEN:
        return _skip_container(buf, word, p)
    first = p
    while _in_word(buf[p]):
        p += 1
    return p if p > first else ~p


@njit(cache=True, inline="always")
def _in_word(c):
    """Bytes of numbers and of true, false, null, NaN, Infinity."""
    return 48 <= c <= 57 or c == _MINUS or c == _DOT or 97 <= c <= 122 or 65 <= c <= 90 or c == 43


@njit(cache=True)
def parse_int(buf, p):
    """The integer at p, also inside quotes; UNKNOWN where there is none. Wraps at 64 bits, as unsigned ids do."""
    if buf[p] == 116 or buf[p] == 102:  # true, false
        return np.int64(buf[p] == 116)
    quoted = buf[p] == _QUOTE
    if quoted:
        p += 1
    negative = buf[p] == _MINUS
    if negative:
        p += 1
    if not 48 <= buf[p] <= 57:
        return UNKNOWN
    value = np.uint64(0)
    while 48 <= buf[p] <= 57:
        value = value * np.uint64(10) + np.uint64(buf[p] - 48)
        p += 1
    if buf[p] != _DOT and (_in_word(buf[p]) or (quoted and buf[p] != _QUOTE)):
        return UNKNOWN  # digits and more: a name
    found = np.int64(value)
    return -found if negative else found


@njit(cache=True)
def parse_time(buf, p):
    """Decimal µs at p as whole ns, halves up; digits are counted, never made a float. UNKNOWN where there is none."""
    if buf[p] == _QUOTE:
        p += 1
    negative = buf[p] == _MINUS
    if negative or buf[p] == 43:
        p += 1
    if not 48 <= buf[p] <= 57:
        return UNKNOWN
    digits, scale, seen_dot, half = np.int64(0), np.int64(3), False, False
    while True:
        c = buf[p]
        if 48 <= c <= 57:
            if digits < np.int64(922337203685477580):
                digits = digits * 10 + np.int64(c - 48)
                scale -= np.int64(seen_dot)
            elif not seen_dot:
                return UNKNOWN
        elif c == _DOT and not seen_dot:
            seen_dot = True
        else:
            break
        p += 1
    if c == 101 or c == 69:  # e, E
        p += 1
        down = buf[p] == _MINUS
        if down or buf[p] == 43:
            p += 1
        power = np.int64(0)
        while 48 <= buf[p] <= 57 and power < 1000:
            power = power * 10 + np.int64(buf[p] - 48)
            p += 1
        scale += -power if down else power
    while scale > 0 and digits:
        if digits > np.int64(922337203685477580):
            return UNKNOWN
        digits *= 10
        scale -= 1
    while scale < 0 and (digits or half):
        half = digits % 10 >= 5
        digits //= 10
        scale += 1
    digits += np.int64(half)
    return -digits if negative else digits


@njit(cache=True, inline="always")
def hash_start(context):
    return np.uint64(0xCBF29CE484222325) ^ np.uint64(context)


@njit(cache=True, inline="always")
def hash_word(h, w):
    h = (h ^ w) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(29))


@njit(cache=True, inline="always")
def find(slots, numbers, h):
    """The field of a hashed key, -1 where none is known."""
    mask = np.uint64(len(slots) - 1)
    slot = h & mask
    while numbers[slot] >= 0:
        if slots[slot] == h:
            return numbers[slot]
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1)


@njit(cache=True, inline="always")
def _hashed(buf, word, p, context):
    """(behind the string whose opening quote is at p, hash); a string with escapes has the hash of none."""
    h = hash_start(context)
    p += 1
    while True:
        w = word[p]
        marks = _marks(w)
        if marks:
            break
        h = hash_word(h, w)
        p += 8
    size = _first(marks)
    if buf[p + size] != _QUOTE:
        return skip_string(buf, word, p + size - 1), np.uint64(0)
    w &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    return p + size + 1, hash_word(h, w)


@njit(cache=True, inline="always")
def _key(buf, word, p, context):
    """(behind the key and its colon and space, hash); p is at the opening quote."""
    p, h = _hashed(buf, word, p, context)
    if p < 0:
        return p, h
    p = skip_space(buf, p)
    if buf[p] != _COLON:
        return ~p, h
    return skip_space(buf, p + 1), h


@njit(cache=True, inline="always")
def _same(buf, word, a, b, length):
    """Are the `length` bytes at a and b equal?"""
    n = 0
    while n + 8 <= length:
        if word[a + n] != word[b + n]:
            return False
        n += 8
    while n < length:
        if buf[a + n] != buf[b + n]:
            return False
        n += 1
    return True


@njit(cache=True)
def _attribute(buf, word, p, context, names):
    """One {"name":, "type":, "value":} at p: (behind, name's hash, value's place or -1, does it end with the value)."""
    p = skip_space(buf, p + 1)
    name, value, last = np.uint64(0), np.int64(-1), False
    while buf[p] != _CLOSE:
        if buf[p] != _QUOTE:
            return ~p, name, value, False
        p, h = _key(buf, word, p, context)
        if p < 0:
            return p, name, value, False
        last = h == names[1]
        if h == names[0] and buf[p] == _QUOTE:
            p, name = _hashed(buf, word, p, context)
        else:
            if last:
                value = p
            p = skip_value(buf, word, p)
        if p < 0:
            return p, name, value, False
        p = skip_space(buf, p)
        if buf[p] == _COMMA:
            p = skip_space(buf, p + 1)
        elif buf[p] != _CLOSE:
            return ~p, name, value, False
    return p + 1, name, value, last


@njit(cache=True)
def _attributes(buf, word, p, context, names, slots, numbers, found):
    """(behind, entries) of a list of attributes. found[0]: field, found[1]: the value's place, one column each.

    found[2:]: of the attribute last seen at this position, its field, and where its text up to the value lies and how
    long it is: nearly all nodes have the same attributes, and equal bytes need not be parsed again.
    """
    p = skip_space(buf, p + 1)
    count = 0
    while buf[p] != _END_LIST:
        if buf[p] != _OPEN:
            return ~p, count
        k = min(count, found.shape[1] - 1)
        value, behind = p + found[4, k], np.int64(-1)
        if found[4, k] and value < len(word) and _same(buf, word, p, found[3, k], found[4, k]):
            behind = skip_value(buf, word, value)
            behind = behind + 1 if behind > 0 and buf[behind] == _CLOSE else np.int64(-1)
            found[0, k] = found[2, k]
        if behind < 0:
            behind, name, value, last = _attribute(buf, word, p, context, names)
            if behind < 0:
                return behind, count
            found[0, k] = found[2, k] = find(slots, numbers, name) if value >= 0 else -1
            found[3, k], found[4, k] = p, value - p if last else 0
        found[1, k] = value
        count = k + 1
        p = skip_space(buf, behind)
        if buf[p] == _COMMA:
            p = skip_space(buf, p + 1)
        elif buf[p] != _END_LIST:
            return ~p, count
    return p + 1, count


@njit(cache=True, inline="always")
def _store(buf, p, kind):
    """The number that stands for the value at p in its column."""
    if kind == INT:
        return parse_int(buf, p)
    if kind == TIME:
        return parse_time(buf, p)
    if kind == IDENTITY:
        number = parse_int(buf, p)
        return number if number != UNKNOWN else UNKNOWN + 1 + p
    return p


@njit(cache=True)
def _object(buf, word, p, slots, numbers, fields, names, row, dense, sparse, used, found):
    """(behind the object at p, sparse entries used). fields: kind, column or context, is sparse; one column each."""
    context, outer, outermost, depth = np.int64(0), np.int64(0), np.int64(0), 0
    p = skip_space(buf, p + 1)
    while True:
        if buf[p] == _CLOSE:
            p += 1
            if depth == 0:
                return p, used
            context, outer, depth = outer, outermost, depth - 1
        else:
            if buf[p] != _QUOTE:
                return ~p, used
            p, h = _key(buf, word, p, context)
            if p < 0:
                return p, used
            field = find(slots, numbers, h)
            kind = fields[0, field] if field >= 0 else 0
            if kind == ENTER and buf[p] == _OPEN and depth < 2:
                outermost, outer, context, depth = outer, context, fields[1, field], depth + 1
                p = skip_space(buf, p + 1)
                continue
            if kind == ATTRIBUTES and buf[p] == _LIST:
                p, count = _attributes(buf, word, p, fields[1, field], names, slots, numbers, found)
                for k in range(count):
                    if found[0, k] >= 0:
                        used = _keep(buf, found[1, k], fields, found[0, k], row, dense, sparse, used)
            else:
                if field >= 0 and kind != ENTER and kind != ATTRIBUTES:
                    used = _keep(buf, p, fields, field, row, dense, sparse, used)
                p = skip_value(buf, word, p)
            if p < 0 or used < 0:
                return p, used
        p = skip_space(buf, p)
        if buf[p] == _COMMA:
            p = skip_space(buf, p + 1)
        elif buf[p] != _CLOSE:
            return ~p, used


@njit(cache=True, inline="always")
def _keep(buf, p, fields, field, row, dense, sparse, used):
    """Sparse entries used, -1 if there is no room."""
    if used < 0:
        return used
    if fields[2, field]:
        if used >= sparse.shape[1]:
            return np.int64(-1)
        sparse[0, used], sparse[1, used] = row, fields[1, field]
        sparse[2, used] = _store(buf, p, fields[0, field])
        return used + 1
    dense[fields[1, field], row] = _store(buf, p, fields[0, field])
    return used


@njit(cache=True)
def scan_rows(buf, word, p, slots, numbers, fields, names, row, stop_row, dense, sparse, used):
    """Objects of the array whose next element (or end) is at p, until `stop_row` or an array is full.
    Returns (status, place, next row, sparse entries used); the columns of a new row must hold UNKNOWN."""
    found = np.zeros((5, 64), np.int64)
    while True:
        p = skip_space(buf, p)
        if buf[p] == _END_LIST:
            return DONE, p + 1, row, used
        if buf[p] != _OPEN:
            return BAD, p, row, used
        if row >= stop_row:
            return FULL, p, row, used
        behind, now = _object(buf, word, p, slots, numbers, fields, names, row, dense, sparse, used, found)
        if behind < 0:
            return BAD, ~behind, row, used
        if now < 0:
            dense[:, row] = UNKNOWN
            return FULL, p, row, used
        p, used, row = skip_space(buf, behind), now, row + 1
        if buf[p] == _COMMA:
            p = skip_space(buf, p + 1)
            if buf[p] != _OPEN:
                return BAD, p, row, used
        elif buf[p] != _END_LIST:
            return BAD, p, row, used
