"""Slices packed for a page: a JSON head and streams of varints, deflated, in base64.

A page must stay small whatever the run, so slices that are too short to see are merged if there are too many: at any
zoom a merged one represents `count` events that are busy for `busy_ns` of its time.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64, Bool
from etude.model.schema import LaneKind
from etude.tell.view.kernels import DrawnSlices, coarsen, varints
from etude.tell.view.slices import Slices, Sort

__all__ = ["Packed", "Shown", "pack"]


MOST_SLICES = 160_000
"""Most slices of a page; about 1 MB when packed."""
NODES_UPTO = 80_000
"""Slices up to which each also carries its node."""
MOST_DEPTH = 8
"""Most rows of a lane: deeper calls are not drawn."""
_NAME_CHARS = 180


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Slices of one run as a page shows them."""

    slices: Slices
    label: str = ""
    """Prefix of the rank, if a page shows two runs."""
    critical: Bool | None = None
    """Per slice: whether it is on the critical path."""
    first: Sequence[int] | None = None
    """Ranks that are drawn until the reader chooses others; by default all."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The packed data of a page."""

    text: str
    slices: int
    """Slices before merging."""
    kept: int
    merged_below_ns: int
    """Slices shorter than this may be merged; 0: none are."""
    sorts: tuple[Sort, ...] = ()
    """Sorts in use, for a legend."""


def pack(runs: Sequence[Shown], most: int = MOST_SLICES) -> Packed:
    """One timeline of these runs, each starting at 0."""
    names: dict[str, int] = {}
    heads: list[dict[str, Any]] = []
    parts = []
    for run in runs:
        rows, number = _rows(run, len(heads))
        heads += rows
        parts.append(_columns(run, number, names))
    row, start, end, sort, name, flag, node = (
        np.concatenate([p[k] for p in parts] or [np.zeros(0, np.int64)]) for k in range(7)
    )
    order = np.lexsort((start, row))
    columns = [np.ascontiguousarray(c[order].astype(np.int64)) for c in (row, start, end, sort, name, flag, node)]
    table, least_ns = _fitting(columns, most)
    counts = np.bincount(table[:, 0], minlength=len(heads)) if len(table) else np.zeros(len(heads), np.int64)
    for head, count in zip(heads, counts.tolist(), strict=True):
        head["count"] = count
    has_nodes = least_ns == 0 and len(table) <= NODES_UPTO
    text = [n if len(n) <= _NAME_CHARS else f"{n[: _NAME_CHARS - 1]}…" for n in _used(names, table)]
    head_text = json.dumps({
        "span_ns": max((r.slices.span_ns for r in runs), default=0), "rows": heads, "names": text,
        "has_path": bool(flag.any()), "has_nodes": has_nodes, "first": _first(runs),
    }, separators=(",", ":")).encode()  # fmt: skip
    raw = len(head_text).to_bytes(4, "little") + head_text + _streams(table, has_nodes)
    text64 = base64.b64encode(zlib.compress(raw, 9)).decode()
    return Packed(text64, len(row), len(table), least_ns, tuple(Sort(s) for s in np.unique(sort).tolist()))


def _first(runs: Sequence[Shown]) -> list[str]:
    """Labels of the ranks that are drawn at first; none: all."""
    if all(run.first is None for run in runs):
        return []
    chosen = ((run, run.slices.ranks if run.first is None else run.first) for run in runs)
    return [f"{run.label}rank {rank}" for run, ranks in chosen for rank in ranks]


def _rows(run: Shown, first: int) -> tuple[list[dict[str, Any]], I64]:
    """The rows of a run's slices, and the row of each slice; -1: too deep."""
    s = run.slices
    depth = np.minimum(s.depth, MOST_DEPTH)
    key = (s.lane.astype(np.int64) * 1024 + s.track) * (MOST_DEPTH + 1) + depth
    rows, number = np.unique(key, return_inverse=True)
    heads: list[dict[str, Any]] = []
    alone = not any(lane.kind in (LaneKind.STREAM, LaneKind.COMPUTE) for lane in s.lanes)  # the host is the device
    place = np.full(len(rows), -1, np.int64)
    for k, value in enumerate(rows.tolist()):
        above, deep = divmod(value, MOST_DEPTH + 1)
        if deep == MOST_DEPTH:
            continue
        lane_number, track = divmod(above, 1024)
        lane = s.lanes[lane_number]
        place[k] = first + len(heads)
        new = not heads or heads[-1]["at"] != lane_number
        if new and heads:
            heads[-1]["gap"] = 1
        heads.append({
            "group": f"{run.label}rank {lane.rank}", "lane": lane.label, "label": lane.label if new else "",
            "deep": int(deep > 0 or (track > 0 and not new)), "thin": int(lane.kind == LaneKind.THREAD),
            "device": alone or lane.kind != LaneKind.THREAD, "at": lane_number, "nested": int(deep > 0),
        })  # fmt: skip
    for head in heads:
        del head["at"]
    return heads, place[number]


def _columns(run: Shown, number: I64, names: dict[str, int]) -> tuple[NDArray[np.generic], ...]:
    s = run.slices
    kept = number >= 0
    code = np.array([names.setdefault(n, len(names)) for n in s.names] or [0], np.int64)
    flag = np.zeros(len(s), np.int64) if run.critical is None else run.critical.astype(np.int64)
    return tuple(c[kept] for c in (number, s.start_ns, s.end_ns, s.sort, code[s.name], flag, s.node))


def _fitting(columns: list[I64], most: int) -> tuple[I64, int]:
    """Slices merged as little as the limit allows, and the length below which they are."""
    none, slices = np.zeros((0, 9), np.int64), DrawnSlices(*columns)
    least_ns, count = 0, len(slices.row)
    while count > most and least_ns < 1 << 50:
        least_ns = max(64, least_ns * 2)
        count = coarsen(slices, least_ns, none)
    table = np.zeros((count, 9), np.int64)
    if count:
        coarsen(slices, least_ns, table)
    return table, least_ns


def _used(names: dict[str, int], table: I64) -> list[str]:
    """Renumbers the names in the table to those in use, most used first, so that most codes take one byte."""
    code = table[:, 4]
    count = np.bincount(code[code >= 0], minlength=len(names))
    order = np.argsort(-count, kind="stable")
    order = order[count[order] > 0]
    new = np.full(len(names) + 1, -1, np.int64)
    new[order] = np.arange(len(order))
    table[:, 4] = new[code]
    words = list(names)
    return [words[k] for k in order.tolist()]


def _streams(table: I64, has_nodes: bool) -> bytes:
    row, start, end, sort, name, flag, count, busy, node = (np.ascontiguousarray(table[:, k]) for k in range(9))
    first = np.diff(row, prepend=-1) != 0
    gap = start - np.where(first, 0, np.concatenate([[0], end[:-1]]))
    streams = [_zigzag(gap), end - start, name + 1, sort | flag << 3, count, np.where(count > 1, busy, 0)]
    if has_nodes:
        streams.append(_zigzag(node - np.where(first, 0, np.concatenate([[0], node[:-1]]))))
    parts = []
    for values in streams:
        out = np.empty(10 * len(values), np.uint8)
        parts.append(out[: varints(values, out)].tobytes())
    return b"".join(parts)


def _zigzag(values: I64) -> I64:
    return np.where(values < 0, -2 * values - 1, 2 * values)
