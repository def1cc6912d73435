"""Compiled reading of tensors out of recorded values: `[id, storage, offset, elements, element bytes, "device"]`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.capture.link.scan_kernels import skip_string
from etude.kernels.arrays import I64
from etude.kernels.compile import kernel

_QUOTE, _COMMA, _LIST, _END_LIST = 34, 44, 91, 93


@kernel(allocates=False)
def _tensor(buf, p, five):
    """Position after the fifth number of the list at p and its comma, if a string follows; -1 otherwise."""
    p += 1
    for i in range(5):
        while buf[p] == 32:
            p += 1
        if not 48 <= buf[p] <= 57:
            return -1
        value = np.int64(0)
        while 48 <= buf[p] <= 57:
            value = value * 10 + np.int64(buf[p] - 48)
            p += 1
        five[i] = value
        if buf[p] != _COMMA:
            return -1
        p += 1
    while buf[p] == 32:
        p += 1
    return p if buf[p] == _QUOTE else -1


@kernel(allocates=False)
def read_tensors(buf, word, places, row, out, used, five):
    """Writes (row, id, storage, offset, elements, element bytes) of every tensor of the values at places[row:], lists
    of them included, from `used` on. Returns (the next row, used); a row that does not fit is not begun. `five` is
    scratch space for five numbers."""
    while row < len(places):
        p = places[row]
        first = used
        depth = 0
        while p >= 0:
            c = buf[p]
            if c == 0:
                break
            if c == _QUOTE:
                p = skip_string(buf, word, p)
                continue
            if c == _LIST:
                behind = _tensor(buf, p, five)
                if behind >= 0:
                    if used == out.shape[1]:
                        return row, first
                    out[0, used] = row
                    for i in range(5):
                        out[i + 1, used] = five[i]
                    used += 1
                    p = behind
                else:
                    p += 1
                depth += 1
                continue
            if c == _END_LIST:
                depth -= 1
                if depth <= 0:
                    break
            elif depth == 0:
                break  # not a list
            p += 1
        row += 1
    return row, used


class TensorUses(NamedTuple):
    """Tensors that operators read or write: those of operator i are start[i]:start[i+1]."""

    start: I64
    code: I64  # which tensor
    storage: I64  # the memory that it is a view of


class Activities(NamedTuple):
    """Device activities of each operator."""

    first: I64  # -1: nothing
    last: I64
    is_leaf: NDArray[np.bool_]  # the operator calls no other


@kernel(allocates=False)
def flows(order, inputs, outputs, activities, host_only, made, pairs):
    """What each operator reads that another wrote: pairs of activities, or of leaf operators if nothing runs on a
    device. `order`: operators by start. `made`, -1 at the start, is the last writer of each tensor: an activity, or an
    operator. Returns the number of pairs."""
    first, last, is_leaf = activities.first, activities.last, activities.is_leaf
    n = 0
    for op in order:
        works = is_leaf[op] if host_only else first[op] >= 0
        if not works and not is_leaf[op]:
            continue
        begin = op if host_only else first[op]
        if works:
            for k in range(inputs.start[op], inputs.start[op + 1]):
                writer = made[inputs.code[k]]
                if writer >= 0 and writer != begin and not (not host_only and first[op] <= writer <= last[op]):
                    pairs[0, n], pairs[1, n] = writer, begin
                    n += 1
        for k in range(outputs.start[op], outputs.start[op + 1]):
            if works:
                made[outputs.code[k]] = op if host_only else last[op]
                continue
            made[outputs.code[k]] = -1
            for j in range(inputs.start[op], inputs.start[op + 1]):  # a view: the writer of the storage wrote it
                if inputs.storage[j] == outputs.storage[k] and made[inputs.code[j]] >= 0:
                    made[outputs.code[k]] = made[inputs.code[j]]
                    break
    return n
