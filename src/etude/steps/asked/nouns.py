"""A run, a job, a system or a device of what a caller has: the noun, what holds one, or a path or name of one."""

from __future__ import annotations

import os
from typing import Any, Final

from etude.base.errors import UsageError

_OF_RUN: Final = 'etude.open_run("run/") opens a recorded run, etude.simulate(job, system) makes one'
_OF_JOB: Final = 'etude.open("job/") opens a job, etude.generate("llama3-8b", gpus=8).job makes one'
_OF_SYSTEM: Final = 'etude.open_system("dgx-h100") opens one'


def as_run(name: str, value: Any, others: dict[str, Any] | None = None) -> Any:
    """A run: itself, that of a prediction, the recorded times of a job, or what is at a path."""
    from etude.model.job import Job
    from etude.model.run import Run, recorded

    value = getattr(value, "simulated", value)
    if isinstance(value, Run):
        return value
    if _is_path(value):
        from etude.capture.opening import open_run

        return open_run(value)
    job = getattr(value, "job", value)
    if isinstance(job, Job):
        return recorded(job)
    raise _unfit(name, value, "a Run, a Job with times, or a path", _OF_RUN)


def as_job(name: str, value: Any, others: dict[str, Any] | None = None) -> Any:
    """A job: itself, that of a run or of what was generated, or what is at a path."""
    from etude.model.job import Job

    value = getattr(value, "generated", value)
    job = getattr(value, "job", value)
    if isinstance(job, Job):
        return job
    if _is_path(value):
        from etude.capture import opening

        return opening.open(value)
    raise _unfit(name, value, "a Job, or a path", _OF_JOB)


def as_columns(name: str, value: Any, others: dict[str, Any] | None = None) -> Any:
    """A job, or the path of one in Parquet as it is: nothing of that has to be loaded."""
    from pathlib import Path

    from etude.capture.opening import is_columns

    return value if _is_path(value) and is_columns(Path(value)) else as_job(name, value)


def as_system(name: str, value: Any, others: dict[str, Any]) -> Any:
    """A system: itself, or of that name or file. One of the catalogue has room for the ranks of the job."""
    from etude.machine import System, open_system, system_names

    if isinstance(value, System):
        return value
    if not _is_path(value):
        raise _unfit(name, value, "a System, a name of the catalogue, or a path", _OF_SYSTEM)
    named, job = open_system(value), others.get("job")
    if value not in system_names() or job is None:
        return named
    return named.for_ranks(as_job("job", job).world_size)


def as_device(name: str, value: Any, others: dict[str, Any] | None = None) -> Any:
    """A device: itself, that of a system, or of that name."""
    from etude.machine import Device, System, open_system

    if isinstance(value, System):
        return value.device
    if isinstance(value, Device):
        return value
    if not _is_path(value):
        raise _unfit(name, value, "a device, or the name of one", 'etude.open_system("dgx-h100").device')
    return open_system(value).device


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _unfit(name: str, value: Any, wanted: str, hint: str) -> UsageError:
    return UsageError(f"`{name}` is of type `{type(value).__name__}`, expected {wanted}", hint=hint)


_TAKES: Final = {"Columns": as_columns, "Run": as_run, "Job": as_job, "System": as_system, "Device": as_device}
NOUNS: Final = frozenset(_TAKES)
"""Types that can be made of a path, a name, or what holds one."""


def fitting(name: str, value: Any, kinds: set[str], others: dict[str, Any]) -> Any:
    """A value as one of these types; what fits none is refused by name."""
    if value is None and "None" in kinds:
        return value
    if type(value).__name__ in kinds or (_is_path(value) and "str" in kinds):
        return value
    return next(make for kind, make in _TAKES.items() if kind in kinds)(name, value, others)
