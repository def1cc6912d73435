"""Compiled matching of waits with the records of events."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.model.schema import UNKNOWN

RECORD, WAIT, SYNC = 1, 2, 3
_LOOK_BACK = 256


class MarkCalls(NamedTuple):
    """Calls that record events or wait for them, by time; see `streams.marks`."""

    role: NDArray[np.int64]
    stream: I64
    event: I64  # UNKNOWN where the trace does not say
    given: I64  # the activity before a record; -1: none
    given_end: I64  # and when that ended
    due: I64  # when the waiting work continued


@kernel
def match_marks(marks, noise, chosen):
    """For each wait the position of its record; -1: none found."""
    role, event = marks.role, marks.event
    owner = np.full(len(role), UNKNOWN, np.int64)
    for i in range(len(role)):
        if role[i] == RECORD:
            continue
        for j in range(i - 1, max(-1, i - _LOOK_BACK), -1):
            if role[j] != RECORD:
                if event[i] != UNKNOWN and event[j] == event[i] and chosen[j] >= 0:
                    chosen[i] = chosen[j]  # the same event, and no record since
                    break
                continue
            if marks.given[j] < 0 or (role[i] == WAIT and marks.stream[j] == marks.stream[i]):
                continue
            if owner[j] != UNKNOWN and owner[j] != event[i]:
                continue
            if marks.given_end[j] > marks.due[i] + noise:
                continue
            chosen[i] = j
            break
        if chosen[i] >= 0 and event[i] != UNKNOWN:
            owner[chosen[i]] = event[i]
