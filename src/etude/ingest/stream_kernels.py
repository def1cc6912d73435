"""Compiled matching of waits with the records of events."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel

RECORD, WAIT, SYNC = 1, 2, 3
_LOOK_BACK = 256


@kernel
def match_marks(role, thread, stream, event, given, given_end, due, noise, chosen):
    """For each wait the position of its record; -1: none found. All lie by time; see `streams.marks`."""
    unknown = np.int64(np.iinfo(np.int64).min)
    owner = np.full(len(role), unknown, np.int64)
    for i in range(len(role)):
        if role[i] == RECORD:
            continue
        for j in range(i - 1, max(-1, i - _LOOK_BACK), -1):
            if role[j] != RECORD:
                if event[i] != unknown and event[j] == event[i] and chosen[j] >= 0:
                    chosen[i] = chosen[j]  # the same event, and no record since
                    break
                continue
            if given[j] < 0 or (role[i] == WAIT and stream[j] == stream[i]):
                continue
            if owner[j] != unknown and owner[j] != event[i]:
                continue
            if given_end[j] > due[i] + noise:
                continue
            chosen[i] = j
            break
        if chosen[i] >= 0 and event[i] != unknown:
            owner[chosen[i]] = event[i]
