"""Work that is not the same on all ranks: kernels that take longer in all on some of them than on their peers, because
of what these have to do there (experts, tables, lengths of inputs) or of their device. Times alone do not say which."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.analyse.outliers import grouped_median
from etude.analyse.what_if import Retimed
from etude.kernels.arrays import F64, I64, Bool

__all__ = ["LONGER", "UnevenWork", "uneven_work"]

PEERS: Final = 3
"""Fewest ranks of a stage whose middle is what a kernel usually takes."""
LONGER: Final = 1.1
"""Times the middle of the peers from which it takes longer."""


class UnevenWork(NamedTuple):
    row: int
    """Position of the rank that has most more, ..."""
    name: str
    """... its kernel, ..."""
    longer: float
    """... and by how much that takes longer, as a fraction."""
    buys_ns: int
    """How much shorter the run is if all kernels that take longer took what they do in the middle."""


def uneven_work(retimed: Retimed, stage: I64, left_out: Bool) -> UnevenWork | None:
    """Of the ranks that are not left out; None where no kernel takes longer on one of them."""
    events = retimed.chosen("compute")
    node = events // 2
    row = np.searchsorted(retimed.base[: len(stage)], node, side="right") - 1
    label = retimed.label[node]
    shape = len(stage), len(retimed.words)
    known = (label >= 0) & (retimed.add[events] > 0)
    row, label, events = row[known], label[known], events[known]
    cell, took = row * shape[1] + label, retimed.add[events].astype(np.float64)
    each: F64 = np.bincount(cell, took, shape[0] * shape[1]).astype(np.float64).reshape(shape)
    middle = grouped_median(cell, took, shape[0] * shape[1]).reshape(shape)
    usual, usually = _of_peers(each, stage), _of_peers(middle, stage)
    # by the sum and by the middle one: not by a few that take far longer
    longer = (usual > 0) & (each > LONGER * usual) & (middle > LONGER * usually) & ~left_out[:, None]
    if not longer.any():
        return None
    at, name = (int(i) for i in np.unravel_index(np.argmax(np.where(longer, each - usual, 0.0)), shape))
    part = np.where(longer, 1 - usual / np.maximum(each, 1), 0.0)[row, label]
    words = {number: word for word, number in retimed.words.items()}
    more = float(each[at, name] / usual[at, name] - 1)
    return UnevenWork(at, words[name], more, max(retimed.buys(events, part), 0))


def _of_peers(values: F64, stage: I64) -> F64:
    """The middle of the ranks of the same stage; 0 where these are few."""
    found = np.zeros_like(values)
    for one in np.unique(stage):
        mine = stage == one
        if mine.sum() >= PEERS:
            found[mine] = np.median(np.nan_to_num(values[mine]), axis=0)
    return found
