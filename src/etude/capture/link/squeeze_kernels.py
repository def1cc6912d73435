"""Compiled removal of the space between the values of a JSON text, piece by piece."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.capture.link.scan_kernels import first_mark, in_word, string_marks
from etude.kernels.compile import kernel

SLACK = 16
"""Bytes behind a text that may be written too."""
IN_STRING, ESCAPED, SPACE = 0, 1, 2
"""Cells of the state between two pieces: the last byte was in a string; it was its backslash; it was space outside."""

_QUOTE, _BACKSLASH = 34, 92


class SqueezedPiece(NamedTuple):
    buf: NDArray[np.uint8]
    word: NDArray[np.uint64]
    size: int


@kernel(allocates=False, inline="llvm")
def _after_spaces(piece, q):
    """Where the blanks from q on end, as far as whole words are in the piece."""
    low, high = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)
    while q + 8 <= piece.size:
        w = piece.word[q] ^ np.uint64(0x2020202020202020)
        if w:
            return q + first_mark((w | ((w & low) + low)) & high)
        q += 8
    return q


@kernel(allocates=False, inline="llvm")
def _token_marks(w):
    """The high bit of each byte that is a quote or not above a blank; bits above the first may be set in error."""
    ones, high = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    quote = w ^ np.uint64(0x2222222222222222)
    return (((quote - ones) & ~quote) | ((w - np.uint64(0x2121212121212121)) & ~w)) & high


@kernel(allocates=False, inline="llvm")
def _run(piece, q, out, word, p, marks):
    """Length of the run of unmarked bytes at q, copied to p; all of them are in the word there."""
    word[p] = piece.word[q]
    return first_mark(marks) if marks else np.int64(8)


@kernel(allocates=False, inline="llvm")
def _string(piece, q, out, word, p, state):
    """The rest of a string from q on, as far as it is in the piece."""
    buf, size, escaped = piece.buf, piece.size, state[ESCAPED] != 0
    while q < size:
        if not escaped and q + 8 <= size:
            size_of_run = _run(piece, q, out, word, p, string_marks(piece.word[q]))
            p, q = p + size_of_run, q + size_of_run
            if size_of_run == 8:
                continue
        c = buf[q]
        out[p] = c
        p, q = p + 1, q + 1
        if c == _QUOTE and not escaped:
            state[IN_STRING] = 0
            break
        escaped = c == _BACKSLASH and not escaped
    state[ESCAPED] = escaped
    return q, p


@kernel(allocates=False)
def squeeze(piece, out, word, p, state):
    """Where the text of this piece ends in `out`. A space stays where two words would become one."""
    buf, size, q, space = piece.buf, piece.size, np.int64(0), state[SPACE] != 0
    while q < size:
        if state[IN_STRING]:
            q, p = _string(piece, q, out, word, p, state)
            continue
        c = buf[q]
        if c <= 32 and c != 0:
            q, space = _after_spaces(piece, q + 1), True
            continue
        if space and p and in_word(out[p - 1]) and in_word(c):
            out[p] = 32
            p += 1
        space = False
        if c != _QUOTE and c != 0 and q + 8 <= size:
            size_of_run = _run(piece, q, out, word, p, _token_marks(piece.word[q]))
            p, q = p + size_of_run, q + size_of_run
            continue
        out[p] = c
        p, q = p + 1, q + 1
        state[IN_STRING] = c == _QUOTE
    state[SPACE] = space
    return p
