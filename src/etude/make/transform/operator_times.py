"""A job of operators without times, with those of a recording: of the same program at another size, or of its parts.

    found = with_operator_times(job, recorded, device)
    found.job, found.by_key          # with the host that launches them; the part that was recorded with these shapes

An operator is what the job calls one: in the recording, the outermost one of such a name, with all that it calls. Its
work on the device takes as long as that of the recorded operator with the same name, shapes and types; else of that
which differs in the fewest sizes, times the ratio of what the device's formulas give for both; none takes less than the
shortest recorded one, however small it is. The host's time before and in an operator is the mean of those with the same
name that come after the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.base.errors import MismatchError
from etude.kernels.arrays import F64
from etude.machine.system import Device
from etude.make.transform.host_nodes import with_host
from etude.make.transform.recorded_operators import (
    OperatorKey,
    RecordedOperators,
    distinct_operators,
    distinct_pairs,
    formula_ns,
)
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

BY_KEY, BY_NAME, BY_FORMULA = range(3)
EACH: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    job: Job
    by_key: float
    """Part of the operators' time that was recorded with the same shapes."""
    by_name: float
    """... with other shapes. The rest has the time of the device's formulas, times recorded operators over theirs in
    the median."""
    placed: float
    """Part of the recording's device time that belongs to operators of the job; 1 without a device."""


def with_operator_times(job: Job, recorded: Job, device: Device | None) -> OperatorTimes:
    """The job with times. `device`: whose formulas scale an operator to another size; None: its elements do."""
    names = {word for trace in job.traces for word in trace.coded("name")[1]}
    table = RecordedOperators.of(recorded, names, device)
    if not table.sums:
        raise MismatchError(
            "no operator of the job is in the recording", hint="--times-of takes what `etude collect` recorded"
        )
    sums, traces = np.zeros(EACH), []
    for trace in job.traces:
        timed, spent = _timed(trace, table)
        traces.append(timed)
        sums += spent
    by_key, by_name = (sums[:BY_FORMULA] / max(float(sums.sum()), 1.0)).tolist()
    changed = job.replace(traces=tuple(traces), values={}, timing=None)
    placed = table.placed_ns / table.device_ns if table.device_ns else 1.0
    return OperatorTimes(job=changed, by_key=by_key, by_name=by_name, placed=placed)


def _timed(trace: Trace, table: RecordedOperators) -> tuple[Trace, F64]:
    """(The trace with times and its host, the time of operators by how it is known.)"""
    if not len(trace):
        return trace, np.zeros(EACH)
    rows = np.arange(len(trace))
    keys, which = distinct_operators(trace, rows)
    formula, factor = formula_ns(trace, rows, table.device), table.formula_factor()
    one_of = np.unique(which, return_index=True)[1]
    found = [_looked_up(table, key, float(formula[at]), factor) for key, at in zip(keys, one_of, strict=True)]
    device_ns, inside_ns, how = (np.array(column)[which] for column in zip(*found, strict=True))
    codes, words = trace.coded("name")
    pairs, pair = distinct_pairs(codes, rows == 0)
    host = [table.host_time(words[last] if last >= 0 else "", words[name]) for last, name in pairs]
    ahead, inside = (np.array(column)[pair] for column in zip(*host, strict=True))
    on_device, calls = trace.cpu == 0, trace.kind != Kind.COMP
    launched = on_device | calls
    own = np.where(on_device, device_ns, np.where(np.isnan(inside_ns), inside, inside_ns))
    spent = np.bincount(how[~calls], np.nan_to_num(own[~calls]), EACH).astype(np.float64)
    own_ns = np.where(np.isfinite(own), np.rint(np.nan_to_num(own)), UNKNOWN).astype(np.int64)
    host_ns = np.rint(ahead + np.where(launched, inside, 0)).astype(np.int64)
    return with_host(trace, host_ns, own_ns), spent


def _looked_up(table: RecordedOperators, key: OperatorKey, formula: float, factor: float) -> tuple[float, float, int]:
    """(Device time, NaN if nothing is known of it; host time inside, likewise; how it is known.)"""
    exact = table.time_of(key)
    if exact is not None:
        return exact.device_ns, exact.inside_ns, BY_KEY
    near = table.nearest(key)
    if near is None:
        on_cpu = table.device is not None and table.device.cpu
        return formula * factor, formula * factor if on_cpu else np.nan, BY_FORMULA
    other, time = near
    if np.isfinite(formula) and np.isfinite(time.formula_ns):
        scale = max(formula, table.least_ns) / max(time.formula_ns, table.least_ns)
    else:
        scale = table.moved_ns(key.elements) / table.moved_ns(other.elements)
    return time.device_ns * scale, time.inside_ns * (1.0 if time.device_ns > 0 else scale), BY_NAME
