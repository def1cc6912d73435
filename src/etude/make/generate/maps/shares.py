"""Unequal parts: tokens of the sequence, and attention heads, that each context-parallel rank has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.kernels.arrays import I64


def check(name: str, parts: Sequence[int], ranks: int) -> None:
    """One positive number for each rank."""
    if len(parts) != ranks or min(parts) < 1:
        hint = "give a positive number for each, as in --cp 2 --cp-shares 3072,1024"
        raise ClusterError(f"{name} {list(parts)}: there are {ranks} context-parallel ranks", hint=hint)


def check_sum(name: str, parts: Sequence[int], whole: int, unit: int = 1) -> None:
    """Checks that the parts add up to the whole; each is a multiple of the unit."""
    if sum(parts) != whole:
        raise UsageError(
            f"{name} {list(parts)} add up to {sum(parts):,} of {whole:,}", hint=f"--{name} must cover all of it"
        )
    if any(part % unit for part in parts):
        raise UsageError(
            f"{name} {list(parts)}: {unit} heads share their keys and values", hint=f"use multiples of {unit}"
        )


def runs_of(shares: Sequence[int], how: str) -> tuple[I64, I64]:
    """(First token of each run, its owner). `contiguous`: a run for each rank; `zigzag`: one from the front and one,
    as large, from behind, so that causal work is in proportion to the tokens."""
    size = np.array(shares, np.int64)
    owner = np.arange(len(size))
    if how == "zigzag":
        size, owner = np.concatenate([size // 2, (size - size // 2)[::-1]]), np.concatenate([owner, owner[::-1]])
    return np.cumsum(size) - size, owner
