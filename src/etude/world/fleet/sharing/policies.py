"""Order of jobs. A policy is a function of a job: the smallest result goes first.

    def mine(job: JobView, now_s: float) -> float:
        return job.left_s * job.gpus

With `mine.preempts = True` it may take devices from jobs that are worse. `fair` is not such a function: it shares
devices in proportion to weights, without placement; see fluid.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from etude.base.errors import UsageError

FAIR: Final = "fair"
QUEUES_S: Final = (3600.0, 36_000.0)
"""Device seconds of service at which `las` puts a job into the next queue."""


class JobView(NamedTuple):
    name: str
    arrival_s: float
    gpus: float
    duration_s: float
    left_s: float
    """Remaining time of the job with everything that it requests."""
    service_s: float
    """Device seconds that it has received."""
    weight: float
    priority: float
    deadline_s: float
    tenant: str


Key = Callable[[JobView, float], float]


class SharingPolicy(NamedTuple):
    name: str
    key: Key
    preempts: bool = False
    skips: bool = True
    """Whether jobs that do not fit are skipped; else all others wait for them."""
    steady: bool = True
    """Whether the key of a waiting job is constant."""


def fifo(job: JobView, now_s: float) -> float:
    return job.arrival_s


def sjf(job: JobView, now_s: float) -> float:
    return job.duration_s


def srtf(job: JobView, now_s: float) -> float:
    return job.left_s


def las(job: JobView, now_s: float) -> float:
    """Least attained service in queues, as in Tiresias; first come, first served in a queue."""
    return sum(job.service_s >= limit for limit in QUEUES_S) * 1e12 + job.arrival_s


def deadline(job: JobView, now_s: float) -> float:
    return job.deadline_s


def priority(job: JobView, now_s: float) -> float:
    return -job.priority * 1e12 + job.arrival_s


POLICIES: Final = {
    "fifo": SharingPolicy("fifo", fifo, skips=False),
    "backfill": SharingPolicy("backfill", fifo),
    "sjf": SharingPolicy("sjf", sjf),
    "srtf": SharingPolicy("srtf", srtf, preempts=True),
    "las": SharingPolicy("las", las, preempts=True),
    "deadline": SharingPolicy("deadline", deadline, preempts=True),
    "priority": SharingPolicy("priority", priority, preempts=True),
}


def sharing_policy(text: str) -> SharingPolicy:
    """A built-in policy by name, or one of a file as FILE.py:name. Raises UsageError."""
    if ":" in text:
        from etude.world.serve.pools import function_of

        found: Any = function_of(text)
        return SharingPolicy(text, found, preempts=bool(getattr(found, "preempts", False)), steady=False)
    if text not in POLICIES:
        known = ", ".join([*POLICIES, FAIR])
        raise UsageError(f"--policy: unknown policy `{text}`", hint=f"known: {known}, FILE.py:name")
    return POLICIES[text]
