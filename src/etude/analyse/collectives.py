"""Collectives matched across ranks: the time of the transfer, the time members wait for one another, and the rates.

A member waits from its own start until the last member arrives; the transfer time is that of the member that waited
least:

    transfer = min over members of (end - start)         needs no common clock
    wait of a member = (end - start) - transfer
    skew = last start - first start                      on one clock

Rates are those of nccl-tests: algorithm bandwidth is payload / transfer, bus bandwidth is that times the fraction of
the payload that crosses each member's port.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.clocks import offsets
from etude.analyse.operations import CollectiveCalls, calls, group_name, group_size
from etude.kernels.arrays import F64, I64
from etude.model.job import Job
from etude.model.match import match
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective

__all__ = ["collectives", "summarised"]


_GATHERS = (Collective.ALL_GATHER, Collective.GATHER)
_TWICE = (Collective.ALL_REDUCE,)
_SHARED = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER_BLOCK,
    Collective.ALL_TO_ALL,
    Collective.GATHER,
    Collective.SCATTER,
)


def payload_bytes(collective: NDArray[np.uint8], size_bytes: I64, members: I64) -> F64:
    """Payload that a rate refers to: the input, for gathers that of all members; NaN where unknown."""
    size = np.where(size_bytes == UNKNOWN, np.nan, size_bytes.astype(np.float64))
    gathers = np.isin(collective, _GATHERS)
    return np.where(gathers, size * np.maximum(members, 1), size)


def bus_factor(collective: NDArray[np.uint8], members: I64) -> F64:
    """Bus over algorithm bandwidth: 2(n-1)/n for an all-reduce, (n-1)/n where each member keeps or gets a share, else
    1."""
    n = np.maximum(members, 1).astype(np.float64)
    share = (n - 1) / n
    return np.where(np.isin(collective, _TWICE), 2 * share, np.where(np.isin(collective, _SHARED), share, 1.0))


def collectives(run: Run) -> pa.Table:
    """One row per call: group, number (its position among the calls of its group), collective, size_bytes (input of a
    member), group_size, ranks_seen, start_ns, end_ns, transfer_ns, skew_ns, wait_ns (mean over members), first_rank,
    last_rank, algbw_bytes_per_s, busbw_bytes_per_s.

    etude.collectives(run)
    """
    matching = match(run.job)
    found = calls(run, matching)
    offset = offsets(run, found)
    return _table(run.job, found, offset)


def _table(job: Job, found: CollectiveCalls, offset: I64) -> pa.Table:
    call, at = found.of, found.at.astype(np.int64)
    seen = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
    counted = np.bincount(call[seen], minlength=len(found))
    some = counted > 0
    big = np.iinfo(np.int64).max
    start = np.where(seen, found.start_ns + np.where(seen, offset[at], 0), big)
    end = np.where(seen, found.end_ns + np.where(seen, offset[at], 0), -big)
    duration = np.where(seen, found.end_ns - np.where(seen, found.start_ns, 0), big)
    heads = found.first[:-1]

    def least(values: I64) -> I64:
        return np.minimum.reduceat(values, heads) if len(heads) else values[:0]

    first_start, transfer = least(start), least(duration)
    late = np.where(seen, start, -big)
    last_start = -least(-late)
    last_end = -least(-end)
    lasted = np.bincount(call[seen], weights=duration[seen].astype(np.float64), minlength=len(found))
    size = group_size(job, found.group)
    members = np.where(size > 0, size, counted)
    with np.errstate(invalid="ignore", divide="ignore"):
        wait = lasted / counted - transfer
    algbw = _algorithm_bandwidth(found, members, transfer)
    names = [group_name(job, g) for g in found.group.tolist()]
    kinds = [Collective(c).name.lower() for c in range(len(Collective))]
    return pa.table(
        {
            "group": pa.array(found.group),
            "group_name": pa.array(names, pa.string()),
            "number": pa.array(found.number),
            "collective": pa.array([kinds[c] for c in found.collective.tolist()], pa.string()),
            "size_bytes": pa.array(found.size_bytes, mask=found.size_bytes == UNKNOWN),
            "group_size": pa.array(members),
            "ranks_seen": pa.array(counted),
            "start_ns": pa.array(first_start, mask=~some),
            "end_ns": pa.array(last_end, mask=~some),
            "transfer_ns": pa.array(transfer, mask=~some),
            "skew_ns": pa.array(last_start - np.where(some, first_start, 0), mask=~some),
            "wait_ns": pa.array(np.rint(np.nan_to_num(wait)).astype(np.int64), mask=~some),
            "first_rank": pa.array(job.ranks[_who(at, start, first_start, found)], mask=~some),
            "last_rank": pa.array(job.ranks[_who(at, late, last_start, found)], mask=~some),
            "algbw_bytes_per_s": pa.array(algbw, mask=np.isnan(algbw)),
            "busbw_bytes_per_s": pa.array(algbw * bus_factor(found.collective, members), mask=np.isnan(algbw)),
        }
    )


def _algorithm_bandwidth(found: CollectiveCalls, members: I64, transfer_ns: I64) -> F64:
    """Payload over transfer, bytes per second; NaN where one of them is not known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = payload_bytes(found.collective, found.size_bytes, members) / transfer_ns * 1e9
    rate[~np.isfinite(rate) | (transfer_ns <= 0)] = np.nan
    return rate


def _who(at: I64, value: I64, wanted: I64, found: CollectiveCalls) -> I64:
    """Position of the first member of each call that has the wanted value."""
    hit = np.flatnonzero(value == wanted[found.of])
    _, first = np.unique(found.of[hit], return_index=True)
    return at[hit[first]]


def summarised(table: pa.Table, *, by_group: bool = False) -> pa.Table:
    """The rows of `collectives` grouped: equal calls become one row, the longest total first."""
    keys = ["collective", "group_size", "size_bytes"] + (["group", "group_name"] if by_group else [])
    rows: dict[tuple[Any, ...], list[int]] = {}
    for number, key in enumerate(zip(*(table[name].to_pylist() for name in keys), strict=True)):
        rows.setdefault(key, []).append(number)
    columns = {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in _SUMMED}
    found = []
    for key, which in rows.items():
        values = {name: column[which] for name, column in columns.items()}
        found.append(dict(zip(keys, key, strict=True)) | {"calls": len(which)} | _summary(values))
    found.sort(key=lambda row: -(row["total_transfer_ns"] or 0) - (row["total_wait_ns"] or 0))
    return pa.Table.from_pylist(found, pa.schema(_schema(keys)))


_SUMMED = ("transfer_ns", "wait_ns", "skew_ns", "algbw_bytes_per_s", "busbw_bytes_per_s")


def _schema(keys: list[str]) -> list[tuple[str, Any]]:
    kinds = {"collective": pa.string(), "group_name": pa.string(), "group": pa.int32()}
    whole = ("calls", "total_transfer_ns", "median_transfer_ns", "total_wait_ns", "median_skew_ns")
    return (
        [(name, kinds.get(name, pa.int64())) for name in keys]
        + [(name, pa.int64()) for name in whole]
        + [("algbw_bytes_per_s", pa.float64()), ("busbw_bytes_per_s", pa.float64())]
    )


def _summary(values: dict[str, F64]) -> dict[str, Any]:
    def total(name: str) -> int:
        return int(np.nansum(values[name]))

    def middle(name: str) -> float | None:
        known = values[name][~np.isnan(values[name])]
        return float(np.median(known)) if len(known) else None

    def whole(name: str) -> int | None:
        value = middle(name)
        return None if value is None else round(value)

    return {
        "total_transfer_ns": total("transfer_ns"),
        "median_transfer_ns": whole("transfer_ns"),
        "total_wait_ns": total("wait_ns"),
        "median_skew_ns": whole("skew_ns"),
        "algbw_bytes_per_s": middle("algbw_bytes_per_s"),
        "busbw_bytes_per_s": middle("busbw_bytes_per_s"),
    }
