"""Which nodes of the graph communicate, and their columns."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.collectives import Communications
from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.link.python_text import PythonTexts
from etude.kernels.arrays import I64, distinct_values
from etude.model.attrs import encode_list
from etude.model.schema import UNKNOWN, Kind, ValueKind
from etude.model.trace import Attr, Layout

UNKNOWN_GROUP = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class CommWork:
    """What ran each communication: an activity of the device, or a host event; -1: not that."""

    table: Communications
    activity: I64
    event: I64
    asked: I64
    """The host event of the call; -1: not recorded."""
    first: NDArray[np.bool_]
    """False for a communication that shares its kernel with an earlier one."""


def comm_work(table: Communications, host: HostEvents, device: DeviceEvents) -> CommWork:
    activity, event = _positions(table.work, device.row), _positions(table.work, host.row)
    first = np.zeros(len(table), np.bool_)
    first[np.unique(table.work, return_index=True)[1]] = True
    return CommWork(table, activity, event, _positions(table.event, host.row), first | (table.work < 0))


def _positions(rows: I64, among: I64) -> I64:
    """Index of each row in an unordered list; -1: not in it."""
    order = np.argsort(among, kind="stable")
    at = np.searchsorted(among[order], rows)
    found = np.append(among[order], -1)[at] == rows
    return np.where(found & (rows >= 0), np.append(order, -1)[at], -1)


def comm_groups(table: Communications) -> list[tuple[str, Sequence[int] | None]]:
    """Name and members of each group slot; the last is for unrecorded groups, if there are any."""
    unknown = ((table.group < 0) & (table.kind == Kind.COLL)).any()
    return [*table.groups, *([(UNKNOWN_GROUP, None)] if unknown else [])]


def groups_text(table: Communications) -> str:
    """The groups as in PyTorch's `process_group:init`: a list that holds one JSON text."""
    entries = [
        {"pg_name": name, "pg_desc": "", "backend_config": "", "ranks": list(members), "group_size": len(members),
         "group_count": len(table.groups)}
        for name, members in table.groups
        if members
    ]  # fmt: skip
    return str([json.dumps(entries)]) if entries else ""


def comm_columns(work: CommWork, row: I64, host: HostEvents, column: dict[str, Any]) -> I64:
    """Writes the communications into the columns of a trace; returns the rank behind each peer slot."""
    table = work.table
    known = np.flatnonzero(row >= 0)
    at = row[known]
    if not len(known):
        return np.empty(0, np.int64)
    for name in ("kind", "collective", "in_bytes", "out_bytes", "group", "src", "dst", "tag"):
        if not column[name].flags.writeable:
            column[name] = column[name].copy()
    for name in ("kind", "collective", "in_bytes", "out_bytes", "tag"):
        column[name][at] = getattr(table, name)[known]
    is_coll = table.kind[known] == Kind.COLL
    group = np.where(is_coll & (table.group[known] < 0), len(table.groups), table.group[known])
    column["group"][at] = group
    peers = distinct_values(np.concatenate([table.src[known], table.dst[known]]))
    peers = peers[peers >= 0]
    for name in ("src", "dst"):
        rank = getattr(table, name)[known]
        column[name][at] = np.where(rank >= 0, np.searchsorted(peers, rank), -1)
    event = work.event[known]
    loose = (event >= 0) & np.append(host.apart, False)[event]  # continued after the event it began in
    column["cpu"][at[loose]], column["thread"][at[loose]] = -1, UNKNOWN
    sends = np.flatnonzero(loose & (table.kind[known] == Kind.SEND))
    others = int(column["thread"].max(initial=0)) + 1
    column["cpu"][at[sends]] = 1
    column["thread"][at[sends]] = others + _beside(host.start_ns[event[sends]], host.end_ns[event[sends]])
    return peers.astype(np.int64)


def _beside(start_ns: I64, end_ns: I64) -> I64:
    """A number for each interval, 0, 1, ..., different for overlapping ones: messages in flight at the same time do not
    wait for one another."""
    number, used = np.zeros(len(start_ns), np.int64), 0
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for i in np.argsort(start_ns, kind="stable").tolist():
        while busy and busy[0][0] <= start_ns[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        used += not free
        number[i] = heapq.heappop(free) if free else used - 1
        heapq.heappush(busy, (int(end_ns[i]), int(number[i])))
    return number


def comm_cells(texts: PythonTexts, table: Communications, row: I64) -> dict[int, tuple[Layout, list[int]]]:
    """Attributes of communication nodes besides the columns, and their values: root, data type, and the bytes for and
    from each member if they are not equal."""
    found: dict[int, tuple[Layout, list[int]]] = {}
    dtypes = [texts.put(name.encode()) for name in table.dtypes]
    for i in np.flatnonzero(row >= 0).tolist():
        attrs, values = [], []
        if table.root[i] >= 0:
            attrs.append(Attr("comm_root", ValueKind.INT32))
            values.append(int(table.root[i]))
        if table.dtype[i] >= 0:
            attrs.append(Attr("dtype", ValueKind.STRING))
            values.append(dtypes[table.dtype[i]])
        for name in ("in_split", "out_split"):
            start = getattr(table, f"{name}_start")
            share = getattr(table, name)[start[i] : start[i + 1]]
            if len(share):
                attrs.append(Attr(name, ValueKind.INT64_LIST))
                values.append(texts.put(encode_list(ValueKind.INT64_LIST, share.tolist())))
        if attrs:
            found[int(row[i])] = tuple(attrs), values
    return found
