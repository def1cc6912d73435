"""Items: pieces of work that ranks own, what each reads, and the resulting transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import F64, I64


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Item i reads needs[needs_start[i]:needs_start[i + 1]]; what is read is `size` large, bytes or tokens."""

    work: F64
    size: I64
    needs_start: I64
    needs: I64

    def __len__(self) -> int:
        return len(self.work)


def transfers(items: Items, owner: I64) -> tuple[I64, I64, I64]:
    """(item, rank that has it, rank that gets it): each item once to every rank that owns a reader and not the item."""
    reader = np.repeat(owner, np.diff(items.needs_start))
    ranks = int(owner.max(initial=0)) + 1
    pair = np.unique(items.needs * ranks + reader)
    item, target = pair // ranks, pair % ranks
    away = owner[item] != target
    return item[away], owner[item[away]], target[away]


def moved(items: Items, owner: I64, ranks: int) -> I64:
    """What each rank (row) sends to each other (column)."""
    item, source, target = transfers(items, owner)
    found = np.zeros((ranks, ranks), np.int64)
    np.add.at(found, (source, target), items.size[item])
    return found
