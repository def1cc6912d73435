"""Kernels and operators by time: their own, and with what they call or launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from etude.analyse.counting import OURS, Counting
from etude.analyse.device_work import on_device, uses_as
from etude.analyse.grouping import Tally, key_kinds, table
from etude.analyse.kernels import add_to_callers, outermost
from etude.kernels.arrays import I64, as_read
from etude.model.run import Run, RunPart
from etude.model.use import Use, segments, uses

__all__ = ["kernels", "operators"]


def kernels(run: Run, by: Sequence[str] = ("name", "kind"), counting: Counting = OURS) -> pa.Table:
    """What runs on the devices, grouped by any of `grouping.BY`: count, total_ns, share of the total, mean_ns, min_ns,
    max_ns, std_ns; the longest in all first.

    etude.kernels(run, by=["kind", "rank"])
    """
    tally = Tally(by, ("ns",))
    for part in run.parts():
        use = uses_as(part.trace, counting)
        rows = np.flatnonzero(on_device(part, use, counting))
        rows, lasted = _own_time_to_operators(part, rows)
        use[rows[use[rows] == Use.NONE]] = Use.COMPUTE  # operators on the host with what they do between others
        tally.add(part, rows, {"ns": lasted}, use, run.job.ranks[part.at].tolist())
    found = tally.rows()
    whole = sum(row["total_ns"] for row in found)
    for row in found:
        row["share"] = row["total_ns"] / whole if whole else 0.0
    found.sort(key=lambda row: -row["total_ns"])
    kinds = key_kinds(by) | {
        "count": pa.int64(),
        "total_ns": pa.int64(),
        "share": pa.float64(),
        "mean_ns": pa.float64(),
    }
    return table(found, kinds | {"min_ns": pa.int64(), "max_ns": pa.int64(), "std_ns": pa.float64()})


def _own_time_to_operators(part: RunPart, rows: I64) -> tuple[I64, I64]:
    """(rows, time): the time that a host operator spends between the operators it calls counts as its own, once."""
    lasted = part.end_ns[rows] - part.start_ns[rows]
    own = segments(part.trace)[rows] & (part.trace.parent[rows] >= 0)
    if not own.any():
        return rows, lasted
    operator, at = np.unique(part.trace.parent[rows[own]], return_inverse=True)
    total = np.zeros(len(operator), np.int64)
    np.add.at(total, at.reshape(-1), lasted[own])
    return np.concatenate([rows[~own], operator.astype(np.int64)]), np.concatenate([lasted[~own], total])


def operators(run: Run, by: Sequence[str] = ("name",)) -> pa.Table:
    """What runs on the hosts: count, how many launch something themselves, self_ns (without callees), total_ns, and the
    device time of what it launches itself (device_self_ns) or with its callees (device_total_ns); the longest on the
    device first. For recursive operators, totals count the outermost.

    etude.operators(run, by=["name", "shapes"])
    """
    values = ("launching", "self_ns", "total_ns", "device_self_ns", "device_total_ns")
    tally = Tally(by, values)
    for part in run.parts():
        rows, columns = _operator_times(part)
        tally.add(part, rows, columns, uses(part.trace), run.job.ranks[part.at].tolist())
    found = [{key: row.get(key, row.get(f"total_{key}")) for key in (*by, "count", *values)} for row in tally.rows()]
    found.sort(key=lambda row: (-(row["device_self_ns"] or 0), -(row["self_ns"] or 0)))
    return table(found, key_kinds(by) | dict.fromkeys(("count", *values), pa.int64()))


def _operator_times(part: RunPart) -> tuple[I64, dict[str, I64]]:
    trace, timed = part.trace, part.timed
    host = timed & (trace.cpu == 1) & ~segments(trace)
    lasted = np.where(timed, part.end_ns - np.where(timed, part.start_ns, 0), 0)
    called = np.bincount(trace.parent[host & (trace.parent >= 0)], lasted[host & (trace.parent >= 0)], len(trace))
    direct, below = device_times(part)
    rows = np.flatnonzero(host)
    top = outermost(as_read(trace.parent), trace.coded("name")[0])
    columns = {"launching": np.zeros(len(trace), np.int64)}
    columns["launching"][trace.parent[_launched(part)]] = 1
    columns |= {"self_ns": lasted - called.astype(np.int64), "total_ns": np.where(top, lasted, 0)}
    columns |= {"device_self_ns": direct, "device_total_ns": np.where(top, below, 0)}
    return rows, {name: column[rows] for name, column in columns.items()}


def _launched(part: RunPart) -> I64:
    """Device work that a node of the host launched."""
    return np.flatnonzero(on_device(part, uses(part.trace)) & (part.trace.cpu != 1) & (part.trace.parent >= 0))


def device_times(part: RunPart) -> tuple[I64, I64]:
    """Device time of what each node launched, and of what it and its callees launched."""
    trace, rows = part.trace, _launched(part)
    lasted = (part.end_ns - part.start_ns)[rows]
    direct, below = np.zeros(len(trace), np.int64), np.zeros(len(trace), np.int64)
    np.add.at(direct, trace.parent[rows], lasted)
    add_to_callers(as_read(trace.parent), rows, lasted, below)
    return direct, below
