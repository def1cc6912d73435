"""Compiled scanning of JSON: arrays of objects into columns of numbers and offsets, without an object per row.

The text must be followed by zero bytes (`etude.model.text.PAD`): a zero byte is never valid, so every loop stops at it.
A scan returns where it stopped and why; values without a field are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel

UNKNOWN = np.int64(np.iinfo(np.int64).min)

# why a scan stopped
DONE, FULL, BAD = 0, 1, 2
# how a value is stored
INT, TIME, TEXT, IDENTITY, ENTER, ATTRIBUTES, WORD = 1, 2, 3, 4, 5, 6, 7

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _DOT = 34, 92, 44, 58, 45, 46
_OPEN, _CLOSE, _LIST, _END_LIST = 123, 125, 91, 93


@kernel(allocates=False, inline="llvm")
def skip_space(buf, p):
    while buf[p] <= 32 and buf[p] != 0:
        p += 1
    return p


@kernel(allocates=False, inline="llvm")
def string_marks(w):
    """The high bit of each byte that is a quote, a backslash or zero; bits above the first may be set in error."""
    ones, high = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    quote, backslash = w ^ np.uint64(0x2222222222222222), w ^ np.uint64(0x5C5C5C5C5C5C5C5C)
    return (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((w - ones) & ~w)) & high


@kernel(allocates=False, inline="llvm")
def first_mark(marks):
    """Number of the first marked byte."""
    lowest = (marks & (~marks + np.uint64(1))) >> np.uint64(7)
    return np.int64((lowest * np.uint64(0x0001020304050607)) >> np.uint64(56))


@kernel(allocates=False)
def skip_string(buf, word, p):
    """Position after the string whose opening quote is at p; ~position if it breaks off."""
    p += 1
    while True:
        marks = string_marks(word[p])
        if not marks:
            p += 8
            continue
        p += first_mark(marks)
        c = buf[p]
        if c == _QUOTE:
            return p + 1
        if c == 0 or buf[p + 1] == 0:
            return ~p
        p += 2


@kernel(allocates=False, inline="llvm")
def _equal(w, pattern):
    """1 in each byte that equals that of the pattern, 0 in the others."""
    low = np.uint64(0x7F7F7F7F7F7F7F7F)
    w ^= pattern
    return (~(((w & low) + low) | w | low)) >> np.uint64(7)


@kernel(allocates=False)
def _skip_container(buf, word, p):
    """Eight bytes at a time: the depth after each is a byte of one sum, and the first zero is the end."""
    ones, high = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    depth = np.uint64(0)
    while True:
        w = word[p]
        quote = w ^ np.uint64(0x2222222222222222)
        stops = (((quote - ones) & ~quote) | ((w - ones) & ~w)) & high
        folded = w | np.uint64(0x2020202020202020)  # [ and { become one, ] and } too
        opens, closes = _equal(folded, np.uint64(0x7B7B7B7B7B7B7B7B)), _equal(folded, np.uint64(0x7D7D7D7D7D7D7D7D))
        depths = (depth + opens - closes) * ones
        ends = (depths - ones) & ~depths & high
        if ends and (not stops or first_mark(ends) < first_mark(stops)):
            return p + first_mark(ends) + 1
        if not stops:
            depth = depths >> np.uint64(56)
            if depth > np.uint64(100):
                return _skip_deep(buf, word, p + 8, np.int64(depth))
            p += 8
            continue
        size = first_mark(stops)
        if size:
            depth = (depths >> np.uint64(8 * (size - 1))) & np.uint64(255)
        p += size
        while buf[p] == _QUOTE:
            p = skip_string(buf, word, p)
            if p < 0:
                return p
            if buf[p] == _COMMA:
                p += 1
            if buf[p] == 32:
                p += 1
        if buf[p] == 0:
            return ~p


@kernel(allocates=False)
def _skip_deep(buf, word, p, depth):
    """Byte by byte, for nesting deeper than a byte can count."""
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


@kernel(allocates=False)
def skip_value(buf, word, p):
    """Position after the value at p (without leading space); ~position if it breaks off."""
    c = buf[p]
    if c == _QUOTE:
        return skip_string(buf, word, p)
    if c == _LIST or c == _OPEN:
        return _skip_container(buf, word, p)
    first = p
    while in_word(buf[p]):
        p += 1
    return p if p > first else ~p


@kernel(allocates=False, inline="llvm")
def in_word(c):
    """Bytes of numbers and of true, false, null, NaN, Infinity."""
    return 48 <= c <= 57 or c == _MINUS or c == _DOT or 97 <= c <= 122 or 65 <= c <= 90 or c == 43


@kernel(allocates=False, inline="llvm")
def ends_itself(c):
    """Whether a value that begins with this byte says where it ends: a text, a list, an object."""
    return c == _QUOTE or c == _LIST or c == _OPEN


@kernel(allocates=False)
def parse_int(buf, p):
    """(The integer at p, also inside quotes, and the position after its digits); UNKNOWN if there is none. Wraps at 64
    bits, as unsigned ids do."""
    if buf[p] == 116 or buf[p] == 102:  # true, false
        return np.int64(buf[p] == 116), p
    quoted = buf[p] == _QUOTE
    if quoted:
        p += 1
    negative = buf[p] == _MINUS
    if negative:
        p += 1
    if not 48 <= buf[p] <= 57:
        return UNKNOWN, p
    value = np.uint64(0)
    while 48 <= buf[p] <= 57:
        value = value * np.uint64(10) + np.uint64(buf[p] - 48)
        p += 1
    if buf[p] != _DOT and (in_word(buf[p]) or (quoted and buf[p] != _QUOTE)):
        return UNKNOWN, p  # digits followed by more: a name
    found = np.int64(value)
    return -found if negative else found, p


@kernel(allocates=False)
def parse_time(buf, p):
    """(Decimal µs at p as whole ns, halves up, and the position after it); computed from digits, without floats.
    UNKNOWN if there is none."""
    if buf[p] == _QUOTE:
        p += 1
    negative = buf[p] == _MINUS
    if negative or buf[p] == 43:
        p += 1
    if not 48 <= buf[p] <= 57:
        return UNKNOWN, p
    digits, scale, seen_dot, half = np.int64(0), np.int64(3), False, False
    while True:
        c = buf[p]
        if 48 <= c <= 57:
            if digits < np.int64(922337203685477580):
                digits = digits * 10 + np.int64(c - 48)
                scale -= np.int64(seen_dot)
            elif not seen_dot:
                return UNKNOWN, p
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
            return UNKNOWN, p
        digits *= 10
        scale -= 1
    while scale < 0 and (digits or half):
        half = digits % 10 >= 5
        digits //= 10
        scale += 1
    digits += np.int64(half)
    return -digits if negative else digits, p


@kernel(allocates=False, inline="llvm")
def hash_start(context):
    return np.uint64(0xCBF29CE484222325) ^ np.uint64(context)


@kernel(allocates=False, inline="llvm")
def hash_word(h, w):
    h = (h ^ w) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(29))


@kernel(allocates=False, inline="llvm")
def find(slots, numbers, h):
    """The field of a hashed key, -1: unknown."""
    mask = np.uint64(len(slots) - 1)
    slot = h & mask
    while numbers[slot] >= 0:
        if slots[slot] == h:
            return numbers[slot]
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1)


@kernel(allocates=False, inline="llvm")
def _hashed(buf, word, p, context):
    """(position after the string whose opening quote is at p, hash); a string with escapes matches no key."""
    h = hash_start(context)
    p += 1
    while True:
        w = word[p]
        marks = string_marks(w)
        if marks:
            break
        h = hash_word(h, w)
        p += 8
    size = first_mark(marks)
    if buf[p + size] != _QUOTE:
        return skip_string(buf, word, p + size - 1), np.uint64(0)
    w &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    return p + size + 1, hash_word(h, w)


@kernel(allocates=False, inline="llvm")
def _key(buf, word, p, context):
    """(position after the key, its colon and space; hash); p is at the opening quote."""
    p, h = _hashed(buf, word, p, context)
    if p < 0:
        return p, h
    p = skip_space(buf, p)
    if buf[p] != _COLON:
        return ~p, h
    return skip_space(buf, p + 1), h


@kernel(allocates=False, inline="llvm")
def same(word, a, b, length):
    """Whether the `length` bytes at a and b, both before the end of the text, are equal."""
    n = 0
    while n + 8 <= length:
        if word[a + n] != word[b + n]:
            return False
        n += 8
    rest = (np.uint64(1) << np.uint64(8 * (length - n))) - np.uint64(1)
    return ((word[a + n] ^ word[b + n]) & rest) == 0


@kernel(allocates=False)
def _attribute(buf, word, p, context, names):
    """One {"name":, "type":, "value":} at p: (position after it, name's hash, value's position or -1, whether it ends
    with the value)."""
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


class Wanted(NamedTuple):
    """The wanted keys, and how their values are stored."""

    slots: NDArray[np.uint64]  # hashes of keys
    numbers: NDArray[np.int64]  # the field of each, -1 where there is none
    fields: NDArray[np.int64]  # kind, column or context, is sparse; one column each
    names: NDArray[np.uint64]  # hashes of the keys `name` and `value` of an attribute


class Kept(NamedTuple):
    """Where values go."""

    dense: NDArray[np.int64]  # one row per column; those of a new row of the text must hold UNKNOWN
    sparse: NDArray[np.int64]  # row, column, value; one column each


class Last(NamedTuple):
    """The last text seen: equal bytes need not be parsed again; zeros at the start. See `_attributes`, `_object`."""

    attribute: NDArray[np.int64]
    next_key: NDArray[np.int64]


PLACE, ROW, USED = 0, 1, 2
"""Cells of a cursor: the position of the scan, the next row of `dense`, and entries of `sparse` in use."""


@kernel(allocates=False)
def _attributes(buf, word, p, context, wanted, found):
    """(position after, entries) of a list of attributes. found[0]: field, found[1]: the value's position, one column
    each.

    found[2:]: for the attribute last seen at this position, its field, and the position and length of its text up to
    the value: nearly all nodes have the same attributes, and equal bytes need not be parsed again.
    """
    p = skip_space(buf, p + 1)
    count = 0
    while buf[p] != _END_LIST:
        if buf[p] != _OPEN:
            return ~p, count
        k = min(count, found.shape[1] - 1)
        value, behind = p + found[4, k], np.int64(-1)
        if found[4, k] and value < len(word) and same(word, p, found[3, k], found[4, k]):
            behind = skip_value(buf, word, value)
            behind = behind + 1 if behind > 0 and buf[behind] == _CLOSE else np.int64(-1)
            found[0, k] = found[2, k]
        if behind < 0:
            behind, name, value, last = _attribute(buf, word, p, context, wanted.names)
            if behind < 0:
                return behind, count
            found[0, k] = found[2, k] = find(wanted.slots, wanted.numbers, name) if value >= 0 else -1
            found[3, k], found[4, k] = p, value - p if last else 0
        found[1, k] = value
        count = k + 1
        p = skip_space(buf, behind)
        if buf[p] == _COMMA:
            p = skip_space(buf, p + 1)
        elif buf[p] != _END_LIST:
            return ~p, count
    return p + 1, count


@kernel(allocates=False, inline="llvm")
def _store(buf, p, kind):
    """(The number stored for the value at p, a position after the value or in it)."""
    if kind == TIME:
        return parse_time(buf, p)
    if kind == TEXT or kind == WORD:
        return p, p
    number, behind = parse_int(buf, p)
    if kind == IDENTITY and number == UNKNOWN:
        number = UNKNOWN + 1 + p
    return number, behind


@kernel(allocates=False)
def _object(buf, word, p, wanted, kept, last_seen, first, cursor):
    """Position after the object at p, whose values go to the row of the cursor; USED is -1 if there was no room.

    next_key: for each field (and, first, for the start) the field whose key came next when it was last seen, its
    context, and the position and length of its text from there up to the value: as in `_attributes`, equal bytes need
    not be parsed again.
    """
    fields, found, next_key = wanted.fields, last_seen.attribute, last_seen.next_key
    row, used = cursor[ROW], cursor[USED]
    context, outer, outermost, depth = np.int64(0), np.int64(0), np.int64(0), 0
    p, last = p + 1, np.int64(0)
    while True:
        size, field = next_key[3, last], next_key[0, last]
        if size and next_key[1, last] == context and p + size < len(word) and same(word, p, next_key[2, last], size):
            p = skip_space(buf, p + size)
        else:
            begin = p
            p = skip_space(buf, p)
            field = np.int64(-2)
            if buf[p] != _CLOSE:
                if buf[p] != _QUOTE:
                    return ~p
                p, h = _key(buf, word, p, context)
                if p < 0:
                    return p
                field = find(wanted.slots, wanted.numbers, h)
                next_key[0, last], next_key[1, last] = field, context
                next_key[2, last], next_key[3, last] = begin, p - begin
        if field == -2:
            p += 1
            if depth == 0:
                cursor[USED] = used
                return p
            context, outer, depth = outer, outermost, depth - 1
        else:
            last = field + 2
            kind = fields[0, field] if field >= 0 else 0
            if kind == ENTER and buf[p] == _OPEN and depth < 2:
                outermost, outer, context, depth = outer, context, fields[1, field], depth + 1
                p += 1
                continue
            if kind == ATTRIBUTES and buf[p] == _LIST:
                p, count = _attributes(buf, word, p, fields[1, field], wanted, found)
                for k in range(count):
                    if found[0, k] >= 0:
                        used, _ = _keep(buf, found[1, k], fields, found[0, k], first + row, row, kept, used)
            else:
                behind = p
                if field >= 0 and kind != ENTER and kind != ATTRIBUTES:
                    used, behind = _keep(buf, p, fields, field, first + row, row, kept, used)
                # nothing follows a number; anything else is checked
                p = skip_value(buf, word, p) if behind == p or in_word(buf[behind]) or buf[p] == _QUOTE else behind
            if p < 0 or used < 0:
                cursor[USED] = used
                return p
        p = skip_space(buf, p)
        if buf[p] == _COMMA:
            p += 1
        elif buf[p] != _CLOSE:
            return ~p


@kernel(allocates=False, inline="llvm")
def _keep(buf, p, fields, field, number_of_row, row, kept, used):
    """(Sparse entries used, -1 if there is no room; a position after the value at p or in it)."""
    if used < 0:
        return used, p
    number, behind = _store(buf, p, fields[0, field])
    if not fields[2, field]:
        kept.dense[fields[1, field], row] = number
        return used, behind
    sparse = kept.sparse
    if used >= sparse.shape[1]:
        return np.int64(-1), p
    sparse[0, used], sparse[1, used], sparse[2, used] = number_of_row, fields[1, field], number
    return used + 1, behind


@kernel(allocates=False)
def scan_rows(buf, word, wanted, kept, last_seen, first, cursor):
    """Objects of the array whose next element (or end) is at the cursor, until an array is full; returns why it stops.
    Row 0 of `dense` is row `first` of the array."""
    while True:
        p = skip_space(buf, cursor[PLACE])
        cursor[PLACE] = p
        if buf[p] == _END_LIST:
            cursor[PLACE] = p + 1
            return DONE
        if buf[p] != _OPEN:
            return BAD
        row, used = cursor[ROW], cursor[USED]
        if row >= kept.dense.shape[1]:
            return FULL
        behind = _object(buf, word, p, wanted, kept, last_seen, first, cursor)
        if behind < 0:
            cursor[PLACE], cursor[USED] = ~behind, used
            return BAD
        if cursor[USED] < 0:
            for column in range(len(kept.dense)):
                kept.dense[column, row] = UNKNOWN
            cursor[USED] = used
            return FULL
        p = skip_space(buf, behind)
        is_last = buf[p] != _COMMA
        if not is_last:
            p = skip_space(buf, p + 1)
        cursor[PLACE], cursor[ROW] = p, row + 1
        if buf[p] != (_END_LIST if is_last else _OPEN):
            return BAD
