"""Times of a job's flows, as another simulator found them: a table that is read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import FormatError, MismatchError
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.model.job import Job
from etude.run.simulate.flows.table import Flows, flow_table
from etude.run.simulate.networks.given import FlowTimes

_NEEDED: Final = ("flow", "start_ns", "end_ns")
_SAME: Final = ("src", "dst", "bytes")
"""Columns that have to be as `convert --to flows` wrote them, if they are there."""
HINT: Final = "columns flow, start_ns, end_ns, a row for each flow that `etude convert --to flows` wrote"


def flow_times(
    found: pa.Table, job: Job, system: System, *, collective: Mapping[str, Any] | None = None, where: str = ""
) -> FlowTimes:
    """The times of the flows of this job on this system, from a table with `flow`, `start_ns` and `end_ns`. Other
    columns are not read, but `src`, `dst` and `bytes`, if there, have to be those of the flows."""
    for name in _NEEDED:
        if name not in found.column_names:
            raise FormatError(f"no column `{name}`", where=where, hint=HINT)
    number, start_ns, end_ns = (_whole(found, name, where) for name in _NEEDED)
    flows = flow_table(job, system, collective=dict(collective or {}))
    order = _order(number, len(flows.table), where)
    for name in _SAME:
        if name in found.column_names:
            _check_same(name, _whole(found, name, where)[order], flows, where)
    start_ns, took_ns = start_ns[order], (end_ns - start_ns)[order]
    if (took_ns < 0).any():
        raise FormatError(f"flow {int(took_ns.argmin())} ends before it starts", where=where, hint=HINT)
    operation = flows.table["operation"].to_numpy()
    return FlowTimes(operation, flows.transfer, start_ns, took_ns, flows.collective, flows.notes)


def _whole(found: pa.Table, name: str, where: str) -> I64:
    column = found[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise FormatError(f"column `{name}` is not whole numbers in every row", where=where, hint=HINT)
    return np.asarray(column.to_numpy(), np.int64)


def _order(number: I64, flows: int, where: str) -> I64:
    """The row of each flow."""
    strange = number[(number < 0) | (number >= flows)]
    if len(strange):
        problem = f"flow {strange[0]} is not one of the job, which has {flows:,} flows"
        raise MismatchError(problem, where=where, hint=HINT)
    count = np.bincount(number, minlength=flows)
    if (count > 1).any():
        raise FormatError(f"flow {int(count.argmax())} has several rows", where=where, hint=HINT)
    missing = np.flatnonzero(count == 0)
    if len(missing):
        raise MismatchError(
            f"flow {missing[0]} has no time; {len(missing):,} of {flows:,} flows have none", where=where, hint=HINT
        )
    return np.argsort(number)


def _check_same(name: str, given: I64, flows: Flows, where: str) -> None:
    wanted = flows.table[name].to_numpy()
    other = np.flatnonzero(given != wanted)
    if len(other):
        at = int(other[0])
        raise MismatchError(
            f"flow {at} has `{name}` {given[at]}, in this job on this system {wanted[at]}",
            where=where,
            hint="give the job and the system that the flows were written of",
        )
