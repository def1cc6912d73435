"""A cluster: nodes with devices of a kind, processors and memory.

gpus: 64                                            # 8 nodes of 8, without limits of processors and memory
nodes: nodes.csv                                    # a row for each: gpu (or gpus), model (or kind), cpu_milli, ...
nodes: [{count: 16, gpus: 8, kind: h100, cpus: 96, memory: 2TB, price: 2.5}]
nodes: [{name: spot, count: 4, gpus: 8, price: 0.8, mtbf: 2h, back: 20min}]   # spot nodes; or capacity: FILE.csv
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, text, usage_errors
from etude.base.files import csv_rows
from etude.base.shapes import names_in
from etude.kernels.arrays import I64

WHOLE: Final = 1000
"""Units that a device is divided into."""
NO_LIMIT: Final = 1 << 50
KEYS: Final = ("name", "doc", "gpus", "node_gpus", "kind", "price", "nodes")
POOL_KEYS: Final = names_in("""
    jobs streams rl policy switch start keep migrate horizon borrow
""")
"""Keys of a file that also describes the workload: see pool.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Group of identical nodes."""

    count: int = figure("count", "number of these nodes", 1)
    gpus: int = figure("count", "devices per node", 8, zero=True)
    kind: str = text("kind of the devices")
    cpus: float = figure("number", "processors per node; 0: no limit", 0.0)
    memory_bytes: int = figure("bytes", "memory per node; 0: no limit", 0)
    price: float = figure("number", "price of a device in dollars per hour", 0.0)
    name: str = text("name that others refer to")
    capacity: str = text("CSV file of time_s, devices and optionally price: availability over time")
    mtbf_ns: int = figure("time", "mean time until a node is reclaimed; 0: never", 0)
    back_ns: int = figure("time", "mean time until it is back", 1_800_000_000_000)

    @property
    def spot(self) -> bool:
        return bool(self.capacity or self.mtbf_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Columns of nodes."""

    name: str
    gpus: I64
    cpu_milli: I64
    memory_mib: I64
    kind: I64
    """Index into `kinds`."""
    price: NDArray[np.float64]
    kinds: tuple[str, ...]
    group: I64
    """Index into `groups`."""
    groups: tuple[NodeKind, ...]
    """Groups of nodes, as given in the file."""
    free_ns: I64 | None = None
    """Time from which each node is available, if others have it before; None: all are available from the start."""

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def devices(self) -> int:
        return int(self.gpus.sum())

    def present_ns(self, group: int, first_ns: int, now_ns: int) -> I64:
        """Time that each node of a group was available in between, if none is reclaimed; ns."""
        since = np.zeros(len(self), np.int64) if self.free_ns is None else self.free_ns
        return np.maximum(now_ns - np.maximum(since[self.group == group], first_ns), 0)

    def nodes_of(self, name: str) -> I64:
        """Indices of the nodes of a group. Raises UsageError for an unknown name."""
        known = [one.name for one in self.groups if one.name]
        if name not in known:
            raise UsageError(
                f"there are no nodes `{name}`", where=self.name, hint=f"known: {', '.join(known) or 'none'}"
            )
        return np.flatnonzero(self.group == [one.name for one in self.groups].index(name))


Row = tuple[int, float, float, str, float]


def _cluster(name: str, rows: list[Row], groups: tuple[NodeKind, ...] = (), group: list[int] | None = None) -> Cluster:
    """A cluster of these rows: devices, processors in thousandths, memory in MiB, kind, price."""
    if not rows:
        raise UsageError("has no nodes", where=name, hint="nodes: [{count: 4, gpus: 8}]")
    kinds = tuple(dict.fromkeys(row[3] for row in rows))
    gpus, cpu, memory = (np.array([row[k] for row in rows], np.float64).astype(np.int64) for k in range(3))
    kind = np.array([kinds.index(row[3]) for row in rows], np.int64)
    price, own = np.array([row[4] for row in rows], np.float64), np.array(group or [0] * len(rows), np.int64)
    names = [one.name for one in groups if one.name]
    if len(set(names)) < len(names):
        raise UsageError("two groups of nodes have the same name", where=name)
    return Cluster(name, gpus, cpu, memory, kind, price, kinds, own, groups or (NodeKind(),))


def read_cluster(path: str | PathLike[str]) -> Cluster:
    """Reads a YAML file, or a CSV file of nodes."""
    if str(path).endswith(".csv"):
        return _cluster(str(path), _csv(Path(path)))
    given = read_mapping(path)
    return cluster_of(given, path)


def cluster_of(given: dict[str, Any], path: str | PathLike[str]) -> Cluster:
    """The nodes that a YAML file describes. Raises UsageError."""
    known = (*KEYS, *POOL_KEYS)
    if unknown := [key for key in given if key not in known]:
        raise UsageError(f"unknown key `{unknown[0]}`", where=str(path), hint=f"known: {', '.join(known)}")
    nodes = given.get("nodes")
    with usage_errors():
        if isinstance(nodes, str):
            return _cluster(str(given.get("name", path)), _csv(Path(path).parent / nodes))
        if nodes is None:
            nodes = _alike(given, str(path))
        if not isinstance(nodes, list):
            raise UsageError("nodes: a list, or a CSV file", where=str(path))
        kinds = [read(NodeKind, one, f"{path}: nodes[{i}]") for i, one in enumerate(nodes)]
    rows = [
        (k.gpus, k.cpus * 1000 or NO_LIMIT, k.memory_bytes / 2**20 or NO_LIMIT, k.kind, k.price)
        for k in kinds
        for _ in range(k.count)
    ]
    beside = tuple(replace(k, capacity=str(Path(path).parent / k.capacity)) if k.capacity else k for k in kinds)
    return _cluster(
        str(given.get("name", path)), rows, beside, [i for i, k in enumerate(kinds) for _ in range(k.count)]
    )


def _alike(given: dict[str, Any], where: str) -> list[dict[str, Any]]:
    gpus, each = given.get("gpus"), given.get("node_gpus", 8)
    if not isinstance(gpus, int) or not isinstance(each, int) or gpus < 1 or each < 1:
        raise UsageError("does not define nodes", where=where, hint="gpus: 64, or nodes: [{count: 8, gpus: 8}]")
    more: dict[str, Any] = {key: given[key] for key in ("kind", "price") if key in given}
    parts = [(gpus // each, each), (1, gpus % each)]
    return [more | {"count": count, "gpus": of} for count, of in parts if count and of]


def _csv(path: Path) -> list[Row]:
    columns, rows = csv_rows(path)
    device = next((name for name in ("gpus", "gpu", "gpu_capacity_num") if name in columns), "")
    if not device:
        raise UsageError("has no column `gpus`", where=str(path), hint="gpus, kind, cpu_milli, memory_mib, price")
    kind = next((name for name in ("kind", "model", "gpu_model") if name in columns), "")
    found = []
    for number, row in enumerate(rows):
        where = f"{path}: row {number}"
        cpu = _number(row, "cpu_milli", where) or 1000 * _number(row, "cpu_num", where)
        memory = _number(row, "memory_mib", where)
        price = _number(row, "price", where)
        found.append((int(_number(row, device, where)), cpu or NO_LIMIT, memory or NO_LIMIT, row.get(kind, ""), price))
    return found


def _number(row: dict[str, str], name: str, where: str) -> float:
    text = row.get(name, "")
    try:
        value = float(text or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise UsageError(f"{name}: `{text}` is not a valid value", where=where)
    return value
