"""Rows of measured transfers, predicted: copies over the link, files, checkpoints, layers streamed from the host.

The kind of a file is known by its columns. Copies by host threads from one buffer to another (`host_copy`) are not
predicted: they are a matter of the host's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, Final

import numpy as np

from etude.base.errors import ClusterError, EtudeError, UsageError
from etude.base.files import csv_rows
from etude.cost.tiers.streaming import streamed_ns
from etude.cost.tiers.transfers import copy_ns, file_ns
from etude.machine.system import System
from etude.machine.tier import Checkpointing

Row = Mapping[str, str]
WAYS: Final = {"h2d": "h2d", "d2h": "d2h", "both_bytes_each_way": "both", "h2d_queued": "h2d_queued"}
HOST_COPY: Final = "host_copy"
ENDINGS: Final = ("_nofsync", "_cold", "_cached")
"""Suffixes of a row's method: not flushed, not in the cache, in it."""


def offload_rows(system: System, path: str | PathLike[str]) -> list[dict[str, Any]]:
    """One entry for each row of a file that can be predicted: `row`, `what`, `measured` (None if its cell is empty) and
    `predicted` in ns."""
    where = str(path)
    columns, rows = csv_rows(path)
    if not is_offload(columns):
        hint = "; or ".join(", ".join(sorted(needed)) for needed, _ in KINDS)
        raise UsageError("does not have the columns of a known kind", where=where, hint=hint)
    found = []
    for number, row in enumerate(rows):
        for what, measured, predicted in offload_row(system, row, f"{where}: row {number}"):
            found.append({"row": number, "what": what, "measured": measured, "predicted": predicted})
    return found


def is_offload(columns: Iterable[str]) -> bool:
    """Whether a file with these columns has rows of transfers."""
    there = set(columns)
    return any(needed <= there for needed, _ in KINDS)


def offload_row(system: System, row: Row, where: str) -> Predicted:
    """(what, measured, predicted) times of one row in ns; none where it is not predicted."""
    predict = next(found for needed, found in KINDS if needed <= row.keys())
    try:
        return predict(system, row)
    except EtudeError as problem:
        raise UsageError(problem.problem, where=where, hint=problem.hint) from None
    except ValueError as problem:
        raise UsageError(f"cannot be read: {problem}", where=where) from None


Predicted = list[tuple[str, float | None, float]]


def _figure(row: Row, name: str, least: float = 1.0) -> float:
    value = float(row[name])
    if not least <= value < 1e18:
        raise ValueError(f"`{name}`: {row[name]} is out of range")
    return value


def _count(row: Row, name: str) -> int:
    if (value := _figure(row, name)) != int(value):
        raise ValueError(f"`{name}`: {row[name]} is not a whole number")
    return int(value)


def _measured(row: Row, name: str) -> float | None:
    """None if not measured."""
    return _figure(row, name, 0.0) if row[name].strip() else None


def _word(row: Row, name: str, *known: str) -> str:
    if row[name] not in known:
        raise ValueError(f"`{name}`: unknown `{row[name]}`; known: {', '.join(known)}")
    return row[name]


def _transfer(system: System, row: Row) -> Predicted:
    if _word(row, "direction", *WAYS, HOST_COPY) == HOST_COPY:
        return []
    pinned = _word(row, "memory", "pinned", "pageable") == "pinned"
    took = copy_ns(system.device, WAYS[row["direction"]], _figure(row, "bytes"), pinned=pinned)
    return [(f"{row['direction']} {row['memory']}", _measured(row, "ns_median"), took)]


def _file(system: System, row: Row) -> Predicted:
    direct = _word(row, "mode", "direct", "buffered") == "direct"
    tier = row["place"] if row["place"] != "disk" or direct else "page_cache"
    took = file_ns(
        system, tier, _figure(row, "total_bytes"), write=_word(row, "op", "read", "write") == "write",
        request_bytes=_figure(row, "block_bytes"), threads=_count(row, "threads"), flush=row["fsync"] == "1",
    )  # fmt: skip
    return [(f"{row['place']} {row['op']} {row['mode']}", _measured(row, "ns"), took)]


def _checkpoint(system: System, row: Row) -> Predicted:
    method, size, threads = row["method"], _figure(row, "bytes"), _count(row, "threads")
    total, stall = _measured(row, "total_ns"), _measured(row, "stall_ns")
    away = copy_ns(system.device, "d2h", size)
    if method == "async_d2h_overlapped":
        return [(method, total, away)]
    tier = "page_cache" if row["place"] == "disk" else row["place"]
    if method == "async_pinned_background_write":
        return [(method, total, away + file_ns(system, tier, size, write=True, flush=True)), ("stall", stall, away)]
    way = _way(system, method)
    if way.save_bytes_per_s:
        below = file_ns(system, "disk", size, write=True) / threads if row["place"] == "disk" else 0.0
        return [(method, total, size * 1e9 / way.save_bytes_per_s + below)]
    took = size * 1e9 / way.load_bytes_per_s
    if way.reads_file and not method.endswith("_cached"):
        took += file_ns(system, tier, size, write=False, threads=16)
    return [(method, total, took)]


def _way(system: System, method: str) -> Checkpointing:
    known = {way.name: way for way in system.checkpoints}
    bare = next((method.removesuffix(end) for end in ENDINGS if method.endswith(end)), method)
    if method not in known and bare not in known:
        hint = f"`checkpoints` in its file; known: {', '.join(known) or 'none'}"
        raise ClusterError(f"system `{system.name}` does not specify checkpoints by `{bare}`", hint=hint)
    return known.get(method) or known[bare]


def _layers(system: System, row: Row) -> Predicted:
    layers, size = _count(row, "layers"), _figure(row, "layer_bytes")
    load = np.full(layers, copy_ns(system.device, "h2d_queued", size))
    work = np.full(layers, _figure(row, "compute_ns", 0.0) / layers)
    return [
        ("double buffered", _measured(row, "double_buffered_ns"), streamed_ns(work, load, 2)),
        ("serial", _measured(row, "serial_ns"), streamed_ns(work, load, 1)),
        ("transfer", _measured(row, "transfer_ns"), float(load.sum())),
    ]


KINDS: Final[tuple[tuple[set[str], Callable[[System, Row], Predicted]], ...]] = (
    ({"direction", "memory", "bytes", "ns_median"}, _transfer),
    ({"place", "op", "mode", "block_bytes", "threads", "total_bytes", "ns", "fsync"}, _file),
    ({"method", "place", "bytes", "threads", "stall_ns", "total_ns"}, _checkpoint),
    ({"layers", "layer_bytes", "compute_ns", "transfer_ns", "serial_ns", "double_buffered_ns"}, _layers),
)
