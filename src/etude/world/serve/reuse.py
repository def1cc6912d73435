"""Predicted reuse: when the session of an answer calls again, learned from the calls so far, in compiled code.

After an answer of a kind, its session is expected back after the mean return time of sessions, divided by the fraction
of them that returned. Nothing is known beforehand; before the first return, all are expected at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.requests import Requests

ANSWERED, FOLLOWED, BETWEEN_NS = 0, 1, 2
FAR: float = 1e17
"""ns: longer than any run, short enough to add to a time."""


class Reuse(NamedTuple):
    kinds: F64
    """Answers, those after which their session called again, and ns between: (kind, 3)."""
    last: I64
    """Kind and time of the last answer of a session, or NOBODY: (session, 2)."""


def reuse_of(requests: Requests, kinds: int = 1) -> Reuse:
    """An empty table."""
    sessions = int(requests.session.max()) + 1
    if requests.session.min() < 0 or sessions > 1 << 26:
        raise UsageError("--cache: `expected` needs smaller session numbers", where="session")
    last = np.zeros((sessions, 2), np.int64)
    last[:, 0] = at.NOBODY
    return Reuse(np.zeros((kinds, 3)), last)


def no_reuse() -> Reuse:
    return Reuse(np.zeros((1, 3)), np.zeros((0, 2), np.int64))


@kernel(allocates=False)
def called(reuse, session, now):
    """A session calls again: updates what was expected after its last answer."""
    if len(reuse.last):
        last = reuse.last[session]
        if last[0] != at.NOBODY:
            reuse.kinds[last[0], FOLLOWED] += 1
            reuse.kinds[last[0], BETWEEN_NS] += now - last[1]
            last[0] = at.NOBODY


@kernel(allocates=False)
def answered(reuse, session, kind, now):
    if len(reuse.last):
        reuse.kinds[kind, ANSWERED] += 1
        reuse.last[session, 0] = kind
        reuse.last[session, 1] = now


@kernel(allocates=False)
def again_ns(reuse, finish_ns, task):
    """Time after an answer until its session calls again. A preempted request returns at once."""
    if finish_ns == at.NEVER:
        return np.int64(0)
    return after_ns(reuse, task)


@kernel(allocates=False)
def after_ns(reuse, kind):
    known = reuse.kinds[kind]
    if known[FOLLOWED] == 0:
        # For the first few nothing is known; if none of many returned, none will.
        return np.int64(known[ANSWERED] / (known[ANSWERED] + 8.0) * FAR)
    return np.int64(min(known[BETWEEN_NS] / known[FOLLOWED] * max(known[ANSWERED] / known[FOLLOWED], 1.0), FAR))
