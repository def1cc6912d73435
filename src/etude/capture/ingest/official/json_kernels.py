"""Compiled writing of the linked JSON: text of the host trace goes to indented text without an object in between.

What Python may write in another way than the file has it (an escape, a number of many digits, a key that is there
twice) is left to Python: the kernels say which row it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.capture.link.scan_kernels import skip_space, skip_value
from etude.capture.link.text_kernels import put_number
from etude.kernels.arrays import I64, U8, U64
from etude.kernels.compile import kernel

DONE, FULL, ODD = 0, 1, 2
"""Why writing stopped: no more rows; the next one does not fit; the next one is for Python."""
LEVELS, KEYS = 60, 64
"""Nesting, and keys of an object, that are written here."""
_ODD, _FULL = np.int64(-ODD), np.int64(-FULL)
_SLACK = 64
_ID, _NAME, _CALLER, _ADDED = 1, 2, 3, 4
OPEN, INCLUSIVE, EXCLUSIVE, START, HANDOVER, NULL, CLOSE = range(7)
"""Texts of the format, by their place in `Rows.labels`."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_BRACE, _END_BRACE, _LIST, _END_LIST = 123, 125, 91, 93


class TextHeap(NamedTuple):
    """Text i is heap[start[i]:start[i + 1]]."""

    heap: U8
    start: I64


class Source(NamedTuple):
    """The host trace's text."""

    buf: U8
    word: U64


class Target(NamedTuple):
    """Where text goes, and keys of the objects that are open."""

    out: U8
    word: U64
    keys: U64  # hashes, by level
    known: I64  # how many of each level
    holes: I64  # what, start, end of the values of a node that are others on the device; one row each


class HostRows(NamedTuple):
    """Rows of the host by id, some of them in a row, and what they launched."""

    place: I64
    id: I64
    caller: I64  # new id of the caller
    timed: NDArray[np.bool_]
    handover: I64  # new id, -1: null
    gpu_start: I64  # row i launched entries gpu_start[i]:gpu_start[i + 1] of name and tail
    name: I64
    tail: I64
    times: TextHeap  # of row i: 3 * i: inclusive, exclusive, start; then of each entry: its duration, start
    words: TextHeap  # names and tails of device activities
    labels: TextHeap


@kernel(allocates=False)
def element_places(buf, word, p, out):
    """Positions of the elements of the list at p; returns their number, or ~position where it is not a list."""
    p, count = skip_space(buf, p + 1), 0
    while buf[p] != _END_LIST:
        if count == len(out):
            return ~p
        out[count] = p
        count += 1
        p = skip_value(buf, word, p)
        if p < 0:
            return p
        p = skip_space(buf, p)
        if buf[p] == _COMMA:
            p = skip_space(buf, p + 1)
        elif buf[p] != _END_LIST:
            return ~p
    return count


@kernel(allocates=False, inline="llvm")
def _copy(source, start, stop, out, p):
    for k in range(stop - start):
        out[p + k] = source[start + k]
    return p + stop - start


@kernel(allocates=False, inline="llvm")
def _again(target, start, stop, p):
    """The text from start to stop again. Up to 7 bytes behind it are written too."""
    for k in range(0, stop - start, 8):
        target.word[p + k] = target.word[start + k]
    return p + stop - start


@kernel(allocates=False, inline="llvm")
def _label(texts, i, out, p):
    return _copy(texts.heap, texts.start[i], texts.start[i + 1], out, p)


@kernel(allocates=False, inline="llvm")
def _line(target, p, level):
    """A new line with its indentation. Up to 7 bytes behind it are written too."""
    target.out[p] = 10
    p += 1
    for k in range(0, 4 * level, 8):
        target.word[p + k] = np.uint64(0x2020202020202020)
    return p + 4 * level


@kernel(allocates=False)
def _integer(out, p, value):
    if value < 0:
        out[p] = 45
        p += 1
        value = -value
    size, rest = 1, value
    while rest >= 10:
        rest //= 10
        size += 1
    for k in range(size - 1, -1, -1):
        out[p + k] = 48 + value % 10
        value //= 10
    return p + size


@kernel(allocates=False, inline="llvm")
def _special(w):
    """Not zero if a byte is a quote, a backslash, or not printable ASCII."""
    ones, high = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    quote, backslash = w ^ np.uint64(0x2222222222222222), w ^ np.uint64(0x5C5C5C5C5C5C5C5C)
    delete = w ^ np.uint64(0x7F7F7F7F7F7F7F7F)
    found = ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((delete - ones) & ~delete)
    return (found | ((w - np.uint64(0x2020202020202020)) & ~w) | w) & high


@kernel(allocates=False, inline="llvm")
def _same_escape(c):
    """What follows a backslash is one of " \\ b f n r t, which Python writes the same."""
    return c == 34 or c == 92 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116


@kernel(allocates=False)
def _string(source, q, target, p):
    """(position after the string at q, position after its copy)."""
    buf, out, room = source.buf, target.out, len(target.out) - _SLACK
    out[p] = _QUOTE
    p, q = p + 1, q + 1
    while True:
        if p > room:
            return q, _FULL
        while not _special(source.word[q]):
            target.word[p] = source.word[q]
            p, q = p + 8, q + 8
            if p > room:
                return q, _FULL
        c = buf[q]
        while 32 <= c <= 126 and c != _QUOTE and c != _BACKSLASH:
            if p > room:
                return q, _FULL
            out[p] = c
            p, q = p + 1, q + 1
            c = buf[q]
        if c == _QUOTE:
            out[p] = c
            return q + 1, p + 1
        if c != _BACKSLASH or not _same_escape(buf[q + 1]):
            return q, _ODD
        out[p], out[p + 1] = c, buf[q + 1]
        p, q = p + 2, q + 2


@kernel(allocates=False)
def _scalar(source, q, target, p):
    """A number, true, false or null; anything else is for Python."""
    buf, out = source.buf, target.out
    c = buf[q]
    if 48 <= c <= 57 or c == 45:
        first = q + (c == 45)
        if buf[first] == 48 and 48 <= buf[first + 1] <= 57:
            return q, _ODD
        stop = q
        while 48 <= buf[stop] <= 57 or stop == q:
            stop += 1
        if stop - q > 18 or p + _SLACK > len(out):
            return q, _ODD if stop - q > 18 else _FULL
        q, p = put_number(buf, q, out, p)
        return (q, p) if p >= 0 else (q, _ODD)
    size = np.int64(5 if c == 102 else 4)
    wanted = np.uint64(0x65736C6166) if c == 102 else np.uint64(0x65757274) if c == 116 else np.uint64(0x6C6C756E)
    if source.word[q] & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)) != wanted:
        return q, _ODD
    if p + _SLACK > len(out):
        return q, _FULL
    return q + size, _copy(buf, q, q + size, out, p)


@kernel(allocates=False)
def _key(source, q, target, p, level):
    """A key with its colon; one that its object has had is for Python, which keeps the last."""
    buf, first = source.buf, q
    if buf[q] != _QUOTE:
        return q, _ODD
    q, p = _string(source, q, target, p)
    if p < 0:
        return q, p
    h = np.uint64(0xCBF29CE484222325)
    for k in range(first + 1, q - 1):
        h = (h ^ np.uint64(buf[k])) * np.uint64(0x100000001B3)
    count = target.known[level]
    if count == KEYS:
        return q, _ODD
    for k in range(count):
        if target.keys[level, k] == h:
            return q, _ODD
    target.keys[level, count] = h
    target.known[level] = count + 1
    q = skip_space(buf, q)
    if buf[q] != _COLON:
        return q, _ODD
    target.out[p], target.out[p + 1] = _COLON, 32
    return skip_space(buf, q + 1), p + 2


@kernel(allocates=False)
def _open(source, q, target, p, level):
    """An object or list up to its first value, or all of it if it is empty: (position, position, whether it is empty);
    `level` is that of its values."""
    buf, out, c = source.buf, target.out, source.buf[q]
    out[p] = c
    p, q = p + 1, skip_space(buf, q + 1)
    end = _END_BRACE if c == _BRACE else _END_LIST
    if buf[q] == end:
        out[p] = end
        return q + 1, p + 1, True
    p = _line(target, p, level)
    if c == _BRACE:
        target.known[level] = 0
        q, p = _key(source, q, target, p, level)
    return q, p, False


@kernel(allocates=False)
def _value(source, q, target, p, base):
    """The value at q, of any kind, whose lines are indented from level `base`."""
    buf, out, room = source.buf, target.out, len(target.out) - _SLACK - 4 * LEVELS
    level, objects = base, np.uint64(0)  # a bit for each open level: it is an object
    while True:
        c, empty = buf[q], True
        if p > room:
            return q, _FULL
        if c == _LIST or c == _BRACE:
            if level + 2 >= LEVELS:
                return q, _ODD
            q, p, empty = _open(source, q, target, p, level + 1)
            if not empty:
                level, objects = level + 1, objects << np.uint64(1) | np.uint64(c == _BRACE)
        elif c == _QUOTE:
            q, p = _string(source, q, target, p)
        else:
            q, p = _scalar(source, q, target, p)
        if p < 0:
            return q, p
        while empty:  # behind a value
            if level == base:
                return q, p
            if p > room:
                return q, _FULL
            q, in_object = skip_space(buf, q), objects & np.uint64(1)
            if buf[q] == _COMMA:
                out[p] = _COMMA
                p, q = _line(target, p + 1, level), skip_space(buf, q + 1)
                if in_object:
                    q, p = _key(source, q, target, p, level)
                    if p < 0:
                        return q, p
                break
            if buf[q] != (_END_BRACE if in_object else _END_LIST):
                return q, _ODD
            level, objects = level - 1, objects >> np.uint64(1)
            p = _line(target, p, level)
            out[p] = buf[q]
            p, q = p + 1, q + 1


@kernel(allocates=False)
def _which(source, q, size):
    """What a key of a node is to the linker; q is its first byte."""
    w = source.word[q]
    if size < 8:
        w &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    if size == 2:  # id, ph, ts
        return _ID if w == np.uint64(0x6469) else _ADDED * (w == np.uint64(0x6870) or w == np.uint64(0x7374))
    if size == 3:
        return _ADDED * (w == np.uint64(0x746163))  # cat
    if size == 4:
        return _NAME * (w == np.uint64(0x656D616E))
    if size == 6:
        return _ADDED * (w == np.uint64(0x6D6165727473))  # stream
    if size == 7:
        return _ADDED * (w == np.uint64(0x656D616E5F6770))  # pg_name
    if size == 9:
        return _CALLER * (w == np.uint64(0x7065645F6C727463) and source.buf[q + 8] == 115)  # ctrl_deps
    if size == 13:  # inclusive_dur, exclusive_dur
        return _ADDED * (w == np.uint64(0x766973756C636E69) or w == np.uint64(0x766973756C637865))
    return _ADDED * (size == 16 and w == np.uint64(0x68745F7265746E69))  # inter_thread_dep


@kernel(allocates=False)
def _members(source, rows, i, target, p):
    """The members of a host's node, up to its end: (position after, holes)."""
    buf, out = source.buf, target.out
    q, holes = skip_space(buf, rows.place[i] + 1), 0
    target.known[0] = 0
    while True:
        if p + 2 * _SLACK > len(out):
            return _FULL, holes
        p, key = _line(target, p, 3), q
        q, p = _key(source, q, target, p, 0)
        if p < 0:
            return p, holes
        size = 1
        while buf[key + size] != _QUOTE:
            size += 1
        what, value = _which(source, key + 1, size - 1), p
        is_whole = 48 <= buf[q] <= 57 or buf[q] == 45
        q, p = _value(source, q, target, p, 3)
        if p < 0:
            return p, holes
        if what == _ADDED or (what == _CALLER and not is_whole):
            return _ODD, holes
        if what:
            if what == _CALLER:
                for k in range(value, p):
                    if out[k] == 46:
                        return _ODD, holes
            if what != _NAME:
                p = _integer(out, value, rows.id[i] if what == _ID else rows.caller[i])
            target.holes[holes, 0], target.holes[holes, 1], target.holes[holes, 2] = what, value, p
            holes += 1
        q = skip_space(buf, q)
        if buf[q] != _COMMA:
            return (p, holes) if buf[q] == _END_BRACE else (_ODD, holes)
        out[p] = _COMMA
        p, q = p + 1, skip_space(buf, q + 1)


@kernel(allocates=False, inline="llvm")
def _times(rows, i, first, target, p):
    """What the linker adds to a node: the texts from `first` on; that of the row's thread, too."""
    out = target.out
    p = _label(rows.times, first[0], out, _label(rows.labels, INCLUSIVE, out, p))
    p = _label(rows.times, first[1], out, _label(rows.labels, EXCLUSIVE, out, p))
    p = _label(rows.times, first[2], out, _label(rows.labels, START, out, p))
    p = _label(rows.labels, HANDOVER, out, p)
    handover = rows.handover[i]
    return _integer(out, p, handover) if handover >= 0 else _label(rows.labels, NULL, out, p)


@kernel(allocates=False)
def _row(source, rows, i, target, p):
    """A row of the host and what it launched; where they end, or why not."""
    out = target.out
    if p + 2 * _SLACK > len(out):
        return _FULL
    p = first = _label(rows.labels, OPEN, out, p)
    p, holes = _members(source, rows, i, target, p)
    if p < 0:
        return p
    stop = p
    low, high = rows.gpu_start[i], rows.gpu_start[i + 1]
    if holes < 2 or (high > low and holes < 3):
        return _ODD
    if p + 8 * _SLACK > len(out):
        return _FULL
    if rows.timed[i]:
        p = _times(rows, i, (3 * i, 3 * i + 1, 3 * i + 2), target, p)
    p = _label(rows.labels, CLOSE, out, p)
    for g in range(low, high):
        name, tail = rows.name[g], rows.tail[g]
        words = rows.words.start[name + 1] - rows.words.start[name] + rows.words.start[tail + 1]
        if p + stop - first + words - rows.words.start[tail] + 8 * _SLACK > len(out):
            return _FULL
        p, at = _label(rows.labels, OPEN, out, p), first
        for k in range(holes):
            what = target.holes[k, 0]
            p = _again(target, at, target.holes[k, 1], p)
            if what == _NAME:
                p = _label(rows.words, name, out, p)
            else:
                p = _integer(out, p, rows.id[i] + g - low + 1 if what == _ID else rows.id[i])
            at = target.holes[k, 2]
        p = _again(target, at, stop, p)
        time = 3 * len(rows.place) + 2 * g
        p = _times(rows, i, (time, time, time + 1), target, p)
        p = _label(rows.labels, CLOSE, out, _label(rows.words, tail, out, p))
    return p


@kernel(allocates=False)
def write_rows(source, rows, begin, target):
    """Writes rows from `begin` on: (why it stopped, the next row, bytes written)."""
    p = np.int64(0)
    for i in range(begin, len(rows.place)):
        behind = _row(source, rows, i, target, p)
        if behind < 0:
            return -behind, i, p
        p = behind
    return np.int64(DONE), np.int64(len(rows.place)), p
