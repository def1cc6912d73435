"""How long work should have taken: a rank with longer samples has more work and is not slow because of that."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.kernels.arrays import F64

__all__ = ["expected"]


BINS: Final = 32
VARIES: Final = 0.005
"""Amounts of work that differ by less than this fraction are the same."""


def expected(time: F64, work: F64) -> F64:
    """The time that each amount of work should take, for each measured time: a constant and a rate, both from medians,
    so that slow ranks do not affect them. Neither is negative."""
    seen = ~np.isnan(time) & ~np.isnan(work)
    t, w = time[seen], work[seen]
    found = np.full(time.shape, np.nan)
    if not len(t):
        return found
    middle_w, middle_t = _bins(w, t)
    apart = middle_w[:, None] - middle_w[None, :]
    pairs = apart > VARIES * float(np.median(w))
    if not pairs.any():
        found[seen] = np.median(t)
        return found
    slope = max(float(np.median((middle_t[:, None] - middle_t[None, :])[pairs] / apart[pairs])), 0.0)
    constant = float(np.median(t - slope * w))
    if constant < 0:
        constant, slope = 0.0, float(np.median(t / w))
    found[~np.isnan(work)] = constant + slope * work[~np.isnan(work)]
    return found


def _bins(w: F64, t: F64) -> tuple[F64, F64]:
    """Median amount and median time of groups of samples with similar work."""
    order = np.argsort(w, kind="stable")
    w, t = w[order], t[order]
    unique, first = np.unique(w, return_index=True)
    if len(unique) > BINS:
        first = np.unique(np.linspace(0, len(w), BINS + 1).astype(np.int64)[:-1])
    parts = np.split(np.arange(len(w)), first[1:])
    return np.array([np.median(w[p]) for p in parts]), np.array([np.median(t[p]) for p in parts])
