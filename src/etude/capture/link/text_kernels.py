"""Compiled rewriting of JSON values as Python shows them: `[[1,"a"],true]` becomes `[[1, 'a'], True]`."""

from __future__ import annotations

import numpy as np

from etude.capture.link.scan_kernels import skip_value
from etude.kernels.compile import kernel

DONE, GROW, ODD = 0, 1, 2
_PREFIX = 5  # room for the length of a slice, until it is known


@kernel(allocates=False)
def _small(buf, first, last, power, out, p):
    """The digits of a number below 1e-4 with an exponent: 0.000015 is 1.5e-05."""
    out[p] = buf[first]
    p += 1
    if last > first:
        out[p] = 46
        p += 1
    for k in range(first + 1, last + 1):
        out[p] = buf[k]
        p += 1
    if power > 99:
        return np.int64(-1)
    out[p], out[p + 1], out[p + 2], out[p + 3] = 101, 45, 48 + power // 10, 48 + power % 10
    return p + 4


@kernel(allocates=False)
def put_number(buf, q, out, p):
    """(position after in buf, position after in out); -1 for out if Python may show another text than the file has."""
    first = q
    if buf[q] == 45:
        out[p] = 45
        p += 1
        q += 1
    whole = q
    while 48 <= buf[q] <= 57:
        out[p] = buf[q]
        p += 1
        q += 1
    if q == whole:
        return q, np.int64(-1)
    zero = buf[whole] == 48
    if buf[q] != 46:
        if buf[q] == 101 or buf[q] == 69 or (zero and (q > whole + 1 or whole > first)):
            return q, np.int64(-1)
        return q, p
    q += 1
    fraction, last, leading = q, q, np.int64(-1)
    while 48 <= buf[q] <= 57:
        if buf[q] != 48:
            last = q
            if leading < 0:
                leading = q - fraction
        q += 1
    if buf[q] == 101 or buf[q] == 69 or q == fraction:
        return q, np.int64(-1)
    if zero and leading > 3 and fraction == whole + 2 and last - fraction - leading < 15:
        return q, _small(buf, fraction + leading, last, leading + 1, out, p - 1)
    # up to 15 digits are shown unchanged
    if (last - whole) > 15 or (zero and leading > 3):
        return q, np.int64(-1)
    out[p] = 46
    p += 1
    for k in range(fraction, last + 1):
        out[p] = buf[k]
        p += 1
    return q, p


@kernel(allocates=False)
def _python(buf, q, end, out, p):
    """Where the text of the value buf[q:end] ends in `out`; -1 if only Python itself can decide."""
    while q < end:
        c = buf[q]
        if c == 34:
            out[p] = 39
            p += 1
            q += 1
            while buf[q] != 34:
                c = buf[q]
                if c < 32 or c > 126 or c == 92 or c == 39:
                    return np.int64(-1)
                out[p] = c
                p += 1
                q += 1
            out[p] = 39
            p += 1
            q += 1
        elif c == 44:
            out[p], out[p + 1] = 44, 32
            p += 2
            q += 1
        elif c == 91 or c == 93:
            out[p] = c
            p += 1
            q += 1
        elif c == 32 or c == 10 or c == 13 or c == 9:
            q += 1
        elif 48 <= c <= 57 or c == 45:
            q, p = put_number(buf, q, out, p)
            if p < 0:
                return np.int64(-1)
        elif c == 116 and buf[q + 1] == 114 and buf[q + 2] == 117 and buf[q + 3] == 101:
            out[p], out[p + 1], out[p + 2], out[p + 3] = 84, 114, 117, 101
            p += 4
            q += 4
        elif c == 102 and buf[q + 1] == 97 and buf[q + 2] == 108 and buf[q + 3] == 115 and buf[q + 4] == 101:
            out[p], out[p + 1], out[p + 2], out[p + 3], out[p + 4] = 70, 97, 108, 115, 101
            p += 5
            q += 5
        elif c == 110 and buf[q + 1] == 117 and buf[q + 2] == 108 and buf[q + 3] == 108:
            out[p], out[p + 1], out[p + 2], out[p + 3] = 78, 111, 110, 101
            p += 4
            q += 4
        else:
            return np.int64(-1)
    return p


@kernel(allocates=False)
def python_texts(buf, word, places, begin, offsets, out, used):
    """Slices (length first) of the lists at `places[begin:]`; -1: none. Returns (status, next row, bytes used); ODD:
    Python has to write the row."""
    for i in range(begin, len(places)):
        place = places[i]
        if place < 0:
            offsets[i] = -1
            continue
        end = skip_value(buf, word, place)
        if used + 2 * (end - place) + 16 > len(out):
            return GROW, i, used
        if buf[place] != 91:
            return ODD, i, used
        start = used + _PREFIX
        stop = _python(buf, place, end, out, start)
        if stop < 0:
            return ODD, i, used
        offsets[i] = used
        length = stop - start
        rest = length
        while rest > 127:
            out[used] = rest & 127 | 128
            used += 1
            rest >>= 7
        out[used] = rest
        used += 1
        for k in range(length):
            out[used + k] = out[start + k]
        used += length
    return DONE, len(places), used
