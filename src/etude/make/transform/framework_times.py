"""A job of operators without times, with those that PyTorch's operators take by name: on the host, and on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.cost.aten_inputs import first_dtype
from etude.cost.framework import FrameworkOperators, recurrent_ns
from etude.cost.framework.operators import on_lists
from etude.kernels.arrays import F64, I64, Bool
from etude.machine.system import Device
from etude.make.transform.host_nodes import with_host
from etude.make.transform.recorded_operators import distinct_operators, formula_ns
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkTimes:
    job: Job
    strange: tuple[str, ...]
    """Operators of the device that have no row of their own or whose work is not known, most frequent first."""
    calls: float
    """Part of all operators that these are."""


def with_framework_times(
    job: Job, table: FrameworkOperators, device: Device, *, host_ns: int | None = None
) -> FrameworkTimes:
    """The job with a host that launches its operators. `host_ns`: what it takes for each, whatever the name."""
    strange: dict[str, int] = {}
    traces = tuple(_timed(trace, table, device, host_ns, strange) for trace in job.traces)
    count = sum(len(trace) for trace in job.traces)
    return FrameworkTimes(
        job=job.replace(traces=traces, values={}, timing=None),
        strange=tuple(sorted(strange, key=lambda name: -strange[name])),
        calls=sum(strange.values()) / max(count, 1),
    )


def _timed(
    trace: Trace, table: FrameworkOperators, device: Device, host_ns: int | None, strange: dict[str, int]
) -> Trace:
    if not len(trace):
        return trace
    keys, which = distinct_operators(trace, np.arange(len(trace)))
    formulas = formula_ns(trace, np.arange(len(trace)), device)
    one_of, count = (np.unique(which, return_index=True, return_counts=True)[at] for at in (1, 2))
    times = np.empty((len(keys), 3))
    follows = np.empty(len(keys))
    for number, (key, at, calls) in enumerate(zip(keys, one_of.tolist(), count.tolist(), strict=True)):
        row, chained = table.of(key.name, key.shapes), recurrent_ns(key.name, key.shapes, _dtype(key.types), device)
        works = trace.kind[at] == Kind.COMP and trace.cpu[at] == 0 and chained is None
        if works and (row is None or np.isnan(formulas[at])):
            strange[key.name] = strange.get(key.name, 0) + calls
        row = row or table.any
        device_ns = row.device_ns(formulas[at]) if chained is None else chained
        times[number] = *row.host_ns(key.name, len(key.types)), device_ns
        follows[number] = table.next_list_ns * len(key.types) if on_lists(key.name) else times[number, 0]
    ahead, inside, worked = times[which].T
    lists = np.array([on_lists(key.name) for key in keys])[which]
    ahead = np.where(_behind_another(trace, lists), np.minimum(ahead, follows[which]), ahead)
    if host_ns is not None:
        ahead, inside = np.zeros(len(trace)), np.full(len(trace), float(host_ns))
    on_device = trace.cpu == 0
    launched = on_device | (trace.kind != Kind.COMP)
    own = np.where(on_device, worked, inside)
    return with_host(trace, _whole(ahead + np.where(launched, inside, 0)), _whole(own))


def _behind_another(trace: Trace, chosen: Bool) -> Bool:
    """Whether the node before it in its thread is chosen."""
    order = np.argsort(trace.thread, kind="stable")
    found = np.zeros(len(trace), np.bool_)
    found[order[1:]] = chosen[order[:-1]] & (trace.thread[order[1:]] == trace.thread[order[:-1]])
    return found


def _dtype(types: Sequence[str]) -> str:
    return first_dtype([list(types)])


def _whole(times: F64) -> I64:
    return np.where(np.isfinite(times), np.rint(np.nan_to_num(times)), UNKNOWN).astype(np.int64)
