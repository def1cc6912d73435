"""Distinct rows of some columns, in linear time: by hashing, not by sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64

_FEW = 20_000
"""Rows up to which sorting is faster, since the hashing library takes long to import."""


def distinct(columns: Sequence[NDArray[Any]]) -> tuple[I64, I64]:
    """(one row of each distinct kind, ascending by the columns in order; the index of each row among them): the result
    of `np.unique(np.stack(columns, 1), axis=0, return_inverse=True)`."""
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
