"""Rows of some columns that differ, in time that grows with their number: they are looked up, not sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_FEW = 20_000
"""Rows that are sorted as soon as they are looked up, by far sooner than the library for looking up is imported."""


def distinct(columns: Sequence[NDArray[Any]]) -> tuple[I64, I64]:
    """(a row for each that differs, ascending by the columns in their order; which of them each row is): what
    `np.unique(np.stack(columns, 1), axis=0, return_inverse=True)` gives."""
    which = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes, count = _coded(column)
        which, found = _coded(which * count + codes)
    first = np.zeros(found, np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    rows = np.stack([np.asarray(column[first], np.int64) for column in columns], 1)
    order = np.lexsort(rows.T[::-1])
    place = np.empty(found, np.int64)
    place[order] = np.arange(found)
    return rows[order], place[which]


def _coded(values: NDArray[Any]) -> tuple[I64, int]:
    """(a code for each value, how many codes)."""
    if len(values) <= _FEW:
        values_found, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), len(values_found)
    import pyarrow as pa

    found = pa.array(np.ascontiguousarray(values)).dictionary_encode()
    return found.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(found.dictionary)
