"""Repeats in a sequence: layers, micro-batches and steps, found and written once.

A folded sequence is a list of numbers and of pairs `[times, folded sequence]`. `unfolded(folded(x))` is x.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.make.synth.grammar_kernels import best_repeat

Folded = list[Any]
"""Numbers, and [times, Folded]."""

MAX_PERIOD = 8192
"""The longest repeat that is searched for: a micro-batch of a deep model."""


def folded(sequence: NDArray[np.int64], least: int = 0) -> Folded:
    """The sequence with its repeats written once: the one that saves most first, then inside, before and after it.
    Repeats that save less than `least` numbers (a 500th of the whole) are ignored."""
    least = least or max(1, len(sequence) // 500)
    if len(sequence) < 4:
        return sequence.tolist()
    begin, period, times = best_repeat(np.ascontiguousarray(sequence), MAX_PERIOD)
    if times < 2 or (times - 1) * period < least:
        return sequence.tolist()
    end = begin + period * times
    inner = folded(sequence[begin : begin + period], least)
    return [*folded(sequence[:begin], least), [times, inner], *folded(sequence[end:], least)]


def unfolded(folds: Folded, depth: float = 1.0, whole: Collection[int] = ()) -> list[int]:
    """The sequence; with `depth`, outermost repeats occur `depth` times as often (at least once). For repeats that
    contain a number of `whole` it is those inside."""
    out: list[int] = []
    for item in folds:
        if not isinstance(item, list):
            out.append(item)
        elif depth != 1.0 and whole and _holds(item[1], whole):
            out += unfolded(item[1], depth, whole) * item[0]
        else:
            out += unfolded(item[1]) * max(1, round(item[0] * depth))
    return out


def _holds(folds: Folded, numbers: Collection[int]) -> bool:
    return any(_holds(item[1], numbers) if isinstance(item, list) else item in numbers for item in folds)


def size(folds: Folded) -> int:
    """Numbers needed to write it down."""
    return sum(1 + size(item[1]) if isinstance(item, list) else 1 for item in folds)
