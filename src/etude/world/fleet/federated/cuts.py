"""Where each client is cut: the layers below run on the client, the rest on devices of the server that all share.

A round ends neither before the slowest client, with a server of its own, nor before the server's devices have done what
all clients ask of them. `least` finds the cuts for which the later of the two is earliest, exactly; since a queue also
makes clients wait, `chosen` runs a round with these cuts, with those that ask less of the server, and with every cut
that is the same for all, and takes the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64

USED: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Fractions of the server's time that cuts are chosen for."""


def least(own_s: F64, load_s: F64, fits: NDArray[np.bool_], capacity: float) -> I64:
    """For a round, [client, cut]: time alone with the server, and time of a server's device. A choice with the least
    max(longest own, sum of loads / capacity); for that, the least load, then the least time."""
    alone = np.where(fits, own_s, np.inf)
    times = np.unique(alone[np.isfinite(alone)])
    first = int(np.searchsorted(times, alone.min(axis=1).max()))

    def loads(until: float) -> F64:
        return np.where(alone <= until, load_s, np.inf).min(axis=1)

    low, high = first, len(times) - 1
    while low < high:  # the first time at which the server keeps up; before it the server decides
        middle = (low + high) // 2
        if loads(times[middle]).sum() / capacity <= times[middle]:
            high = middle
        else:
            low = middle + 1
    best = min((max(times[k], loads(times[k]).sum() / capacity), k) for k in {max(low - 1, first), low})[1]
    within = np.where(alone <= times[best], load_s, np.inf)
    small = within <= within.min(axis=1)[:, None]
    return np.where(small, alone, np.inf).argmin(axis=1).astype(np.int64)


def chosen(own_s: F64, load_s: F64, fits: NDArray[np.bool_], capacity: float, round_s: Callable[[I64], float]) -> I64:
    """Cut of each client; `round_s` runs rounds with given cuts."""
    tries = [least(own_s, load_s, fits, capacity * used) for used in USED]
    everywhere = np.flatnonzero(fits.all(axis=0))
    tries += [np.full(len(own_s), cut, np.int64) for cut in everywhere]
    return tries[best_of(tries, round_s)]


def best_of(tries: Sequence[I64], round_s: Callable[[I64], float]) -> int:
    """The first of the best; equal cuts are run once."""
    known: dict[bytes, float] = {}
    for cuts in tries:
        if cuts.tobytes() not in known:
            known[cuts.tobytes()] = round_s(cuts)
    return min(range(len(tries)), key=lambda k: (known[tries[k].tobytes()], k))


def given(cut: int, fits: NDArray[np.bool_], names: Sequence[str]) -> I64:
    """One cut for all."""
    layers = fits.shape[1] - 1
    if not 0 <= cut <= layers:
        raise UsageError(f"--split: {cut} of {layers} layers", hint=f"auto, or 0 to {layers}")
    if not fits[:, cut].all():
        who = int(np.flatnonzero(~fits[:, cut])[0])
        most = int(np.flatnonzero(fits[who])[-1])
        raise UsageError(f"--split: `{names[who]}` has memory for {most} layers, not {cut}", hint="--split auto")
    return np.full(len(names), cut, np.int64)
