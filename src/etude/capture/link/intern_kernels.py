"""Compiled dictionary-encoding of JSON values by their bytes, and copies of only those values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.capture.link.scan_kernels import ends_itself, hash_word, same, skip_value
from etude.kernels.compile import kernel


class CodedValues(NamedTuple):
    """Values that have codes, and the table they are looked up in."""

    table: NDArray[np.int32]  # a code at its hash, -1 where there is none
    hashes: NDArray[np.uint64]  # of each code
    first: NDArray[np.int64]  # position of its first use
    lengths: NDArray[np.int64]
    behind: NDArray[np.int32]  # the code that last came behind each (and, first, at the start), -1 where none did


@kernel(allocates=False)
def intern_values(buf, word, places, begin, codes, known, used):
    """Codes for the values at places[begin:] (-1 for UNKNOWN) by their bytes, until the table is 60% full. Returns
    (next row, distinct values so far).

    Programs repeat themselves: the value that came behind the one before is compared first. Equal bytes are the same
    value only if it says itself where it ends, as texts, lists and objects do."""
    table, hashes, unique, lengths, behind = known.table, known.hashes, known.first, known.lengths, known.behind
    last = np.int64(-1)
    mask = np.uint64(len(table) - 1)
    limit = len(table) * 6 // 10
    for i in range(begin, len(places)):
        p = places[i]
        if p < 0:
            codes[i] = -1
            continue
        guess = behind[last + 1]
        known_end = guess >= 0 and ends_itself(buf[p]) and p + lengths[guess] < len(word)
        if known_end and same(word, p, unique[guess], lengths[guess]):
            codes[i] = last = guess
            continue
        if used >= limit:
            return i, used
        end = skip_value(buf, word, p)
        length = end - p
        h = np.uint64(length) * np.uint64(0x9E3779B97F4A7C15)
        q = p
        while q + 8 <= end:
            h = (h ^ word[q]) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
            q += 8
        if q < end:
            h = hash_word(h, word[q] & ((np.uint64(1) << np.uint64(8 * (end - q))) - np.uint64(1)))
        h ^= h >> np.uint64(31)
        slot = h & mask
        while True:
            code = table[slot]
            if code < 0:
                table[slot], hashes[used], unique[used], lengths[used] = used, h, p, length
                code = used
                used += 1
                break
            if hashes[code] == h and lengths[code] == length and same(word, p, unique[code], length):
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = behind[last + 1] = code
        last = np.int64(code)
    return len(places), used


@kernel(allocates=False)
def fill_table(table, hashes):
    mask = np.uint64(len(table) - 1)
    for code in range(len(hashes)):
        slot = hashes[code] & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = code


@kernel(allocates=False)
def measure(buf, word, places, lengths):
    """The length of the value at each place."""
    for i in range(len(places)):
        lengths[i] = skip_value(buf, word, places[i]) - places[i]


@kernel(allocates=False)
def copy(buf, places, lengths, to, out):
    """Copies the values, each to its position in another text."""
    for i in range(len(places)):
        for n in range(lengths[i]):
            out[to[i] + n] = buf[places[i] + n]
