"""From `.et` files straight to a `Workload`: only what the simulation needs, a block of files at a time.

The general codec keeps every attribute of every node; this one reads thirteen numbers a node and forgets the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import FormatError
from etude.astra.abort import AstraAbort
from etude.astra.config import SystemConfig
from etude.astra.kernels import scan
from etude.astra.workload import COLUMNS, UNKNOWN_GROUP, WORLD, Workload

BLOCK_BYTES: Final = (1 << 19, 1 << 20)  # a small job touches little memory, a large one comes in few blocks
PROBLEM: Final = {
    scan.CUT: "the file ends inside a message",
    scan.BROKEN: "not a Chakra node",
    scan.TWICE: "two nodes have the same id",
    scan.EMPTY: "the file is empty",
}

I64 = NDArray[np.int64]


def _blocks(paths: Sequence[str], total_bytes: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64], int]]:
    """Files read one after another into the same buffer: the buffer, where each file ends, the first one's number."""
    buffer = np.empty(min(max(total_bytes // 16, BLOCK_BYTES[0]), BLOCK_BYTES[1]), np.uint8)
    view = buffer.data
    ends: list[int] = []
    first = end = 0
    for number, path in enumerate(paths):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise AstraAbort(
                error.strerror or "cannot be opened", where=path, hint="ASTRA-sim wants a file per NPU"
            ) from None
        try:
            size = os.fstat(descriptor).st_size
            if ends and end + size > len(buffer):
                yield buffer, np.array(ends, np.int64), first
                ends, first, end = [], number, 0
            if size > len(buffer):
                buffer = np.empty(size, np.uint8)
                view = buffer.data
            got = 0
            while got < size:
                count = os.readv(descriptor, [view[end + got : end + size]])
                if count == 0:
                    raise FormatError("the file shrank while it was read", path=path, offset=got)
                got += count
        finally:
            os.close(descriptor)
        end += size
        ends.append(end)
    if ends:
        yield buffer, np.array(ends, np.int64), first


def _size(path: str) -> int:
    """Bytes of a file; 0 if there is none, which is found out when it is opened."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class _Columns:
    """Columns with room to spare; pages that are never touched cost nothing."""

    def __init__(self, room: int) -> None:
        self.array: dict[str, NDArray[Any]] = {name: np.empty(room, dtype) for name, dtype in COLUMNS.items()}
        self.array["dep_start"], self.array["dep"] = np.zeros(room, np.int64), np.empty(2 * room, np.int32)
        self.array |= {
            "table_id": np.empty(16, np.int64),
            "table_row": np.empty(16, np.int32),
            "dep_id": np.empty(16, np.int64),
        }

    def grow(self, name: str, needed: int) -> None:
        old = self.array[name]
        if needed > len(old):
            self.array[name] = np.empty(max(needed, 2 * len(old)), old.dtype)
            self.array[name][: len(old)] = old

    def make_room(self, nodes: int, deps: int, more: int, widest: int) -> None:
        """Room for more nodes, of which a file has `widest` at most, and for two dependencies each."""
        for name in (*COLUMNS, "dep_start"):
            self.grow(name, nodes + more + 1)
        for name in ("table_id", "table_row"):
            self.grow(name, 16 + 4 * widest)
        self.grow("dep", deps + 2 * more)
        self.grow("dep_id", 2 * widest)

    def fill(self, buffer: NDArray[np.uint8], ends: I64, rank_start: I64, counts: I64, values: I64) -> int:
        """Read a block of files behind what is there."""
        a = self.array
        scratch = (a["table_id"], a["table_row"], a["dep_id"])
        columns = (a[name] for name in COLUMNS)
        return int(scan.fill(buffer, ends, rank_start, counts, values, *scratch, *columns, a["dep_start"], a["dep"]))


def read_workload(paths: Sequence[str | PathLike[str]], groups: Mapping[int, Sequence[int]] | None = None) -> Workload:
    """Read one `.et` file per rank, in rank order. `groups` maps the number in `pg_name` to ranks in ring order."""
    names = [fspath(p) for p in paths]
    total_bytes = sum(map(_size, names))
    columns = _Columns(max(1024, total_bytes // 64))
    rank_start, values = np.zeros(len(names) + 1, np.int64), np.zeros(len(scan.NAMES), np.int64)
    for buffer, ends, first in _blocks(names, total_bytes):
        nodes = int(rank_start[first])
        deps = int(columns.array["dep_start"][nodes])
        counts = np.zeros(scan.NUM_COUNTS, np.int64)
        status = scan.count(buffer, ends, counts)
        if status == scan.OK:
            columns.make_room(nodes, deps, int(counts[scan.COUNT_NODES]), int(counts[scan.COUNT_WIDEST]))
            starts = rank_start[first : first + len(ends) + 1]
            while (status := columns.fill(buffer, ends, starts, counts, values)) == scan.FULL:
                columns.grow("dep", len(columns.array["dep"]) + 1)
                columns.grow("dep_id", len(columns.array["dep_id"]) + 1)
        if status != scan.OK:
            file, at = int(counts[scan.COUNT_FILE]), int(counts[scan.COUNT_AT])
            raise FormatError(
                PROBLEM[status], path=names[first + file], offset=at - (int(ends[file - 1]) if file else 0)
            )
    return _finish(columns, rank_start, groups or {})


def _finish(columns: _Columns, rank_start: NDArray[np.int64], groups: Mapping[int, Sequence[int]]) -> Workload:
    n = int(rank_start[-1])
    arrays = {name: columns.array[name][:n] for name in COLUMNS}
    dep_start = columns.array["dep_start"][: n + 1]
    ids = sorted(groups)
    scan.find_groups(arrays["group"], np.array(ids, np.int64), WORLD, UNKNOWN_GROUP)
    return Workload(
        **arrays,
        rank_start=rank_start,
        dep_start=dep_start,
        dep=columns.array["dep"][: int(dep_start[-1])],
        groups=tuple(np.array(groups[g], np.int64) for g in ids),
        group_ids=tuple(ids),
    )


def read_custom(system: SystemConfig) -> dict[str, Workload]:
    """The traces of all custom collectives that a system file names: `<prefix>.0.et`, `<prefix>.1.et`, ..."""
    found = {}
    for prefix in {*system.custom.values(), *system.custom_nodes.values()}:
        count = 0
        while os.path.exists(f"{prefix}.{count}.et"):
            count += 1
        found[prefix] = read_workload([f"{prefix}.{member}.et" for member in range(max(count, 1))])
    return found
