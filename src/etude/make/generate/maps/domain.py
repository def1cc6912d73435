"""Domains: a field cut into tiles that ranks own, and the halos that they read from their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64


@dataclass(frozen=True, slots=True)
class Domain:
    """A field of any number of dimensions on a grid of ranks, the last dimension fastest."""

    field: tuple[int, ...]
    grid: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.field) != len(self.grid) or min(*self.field, *self.grid, 1) < 1:
            raise UsageError(f"a field of {self.field} on a grid of {self.grid}", hint="8192x8192 on 8x8")
        if any(g > f for f, g in zip(self.field, self.grid, strict=True)):
            raise UsageError(f"a field of {self.field} has no tile for each of {self.grid}")

    @property
    def ranks(self) -> int:
        return prod(self.grid)

    def tile(self, rank: int) -> list[tuple[int, int]]:
        """First and last + 1 cell in each dimension."""
        place = np.unravel_index(rank, self.grid)
        return [(f * int(i) // g, f * (int(i) + 1) // g) for f, g, i in zip(self.field, self.grid, place, strict=True)]

    def halo(self, radius: int) -> I64:
        """Cells that each rank (row) sends to each other (column), where each needs `radius` cells around its tile."""
        found = np.zeros((self.ranks, self.ranks), np.int64)
        tiles = np.array([self.tile(r) for r in range(self.ranks)], np.int64)
        for rank in range(self.ranks):
            low = np.maximum(tiles[rank, :, 0] - radius, 0)
            high = np.minimum(tiles[rank, :, 1] + radius, np.array(self.field))
            overlap = np.minimum(tiles[:, :, 1], high) - np.maximum(tiles[:, :, 0], low)
            found[:, rank] = np.maximum(overlap, 0).prod(axis=1)
            found[rank, rank] = 0
        return found
