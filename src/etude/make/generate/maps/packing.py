"""Packing: which rank owns which item.

contiguous    the items in order, cut into as many runs as there are ranks
zigzag        cut into twice as many runs, of which rank r has the r-th and the r-th from behind
ring          as zigzag; what is read is sent to all ranks all the same (documents.py)
lpt           the longest first, each to the rank with the least work so far: at most 4/3 - 1/(3 m) of the best
whole_first   groups (documents) whole, longest first, where they fit under the mean; the rest cut and packed by lpt
search        all of these, and other sizes of blocks and limits of whole_first (documents.py)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.make.generate.maps.items import Items

ROOM: Final = 0.02
"""How far a rank may exceed the mean when it takes a whole document."""


def lpt(work: F64, ranks: int, load: Sequence[float] | None = None) -> I64:
    """Longest first onto ranks that have `load` already; ties by number."""
    heap = [(float(x), r) for r, x in enumerate(load if load is not None else [0.0] * ranks)]
    heapq.heapify(heap)
    owner = np.zeros(len(work), np.int64)
    for item in np.argsort(-work, kind="stable").tolist():
        least, rank = heap[0]
        owner[item] = rank
        heapq.heapreplace(heap, (least + float(work[item]), rank))
    return owner


def runs(size: I64, ranks: int) -> I64:
    """In order, with as many tokens per rank as given: an item goes to the run that contains its middle."""
    end = np.cumsum(size)
    middle = end - size / 2
    return np.minimum((middle * ranks / max(int(end[-1]), 1)).astype(np.int64), ranks - 1)


def zigzag(size: I64, ranks: int) -> I64:
    piece = runs(size, 2 * ranks)
    return np.minimum(piece, 2 * ranks - 1 - piece)


def whole_first(work: F64, group: I64, ranks: int, room: float = ROOM) -> I64:
    """`group`: the document of each item."""
    each = np.bincount(group, weights=work)
    limit = float(work.sum()) / ranks * (1 + room)
    load, at = [0.0] * ranks, np.full(len(each), -1, np.int64)
    for document in np.argsort(-each, kind="stable").tolist():
        rank = min(range(ranks), key=lambda r: (load[r], r))
        if load[rank] + each[document] <= limit * (1 + 1e-9):
            at[document], load[rank] = rank, load[rank] + float(each[document])
    owner = at[group]
    cut = np.flatnonzero(owner < 0)
    owner[cut] = lpt(work[cut], ranks, load)
    return owner


def pack(how: str, items: Items, group: I64, ranks: int, room: float = ROOM) -> I64:
    """The owner of each item; `group` is the document of each item, `room` how full `whole_first` makes a rank."""
    if how == "contiguous":
        return runs(items.size, ranks)
    if how in ("zigzag", "ring"):
        return zigzag(items.size, ranks)
    if how == "lpt":
        return lpt(items.work, ranks)
    return whole_first(items.work, group, ranks, room)
