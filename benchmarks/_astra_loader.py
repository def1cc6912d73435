"""Chakra traces as a `Workload`, through protobuf messages: slow, plain, and independent of the project's codec."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from etude.simulate.astra.workload import ABSENT, UNKNOWN_GROUP, WORLD, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from chakra_pb import read_messages  # noqa: E402

CACHE = Path(os.environ.get("ETUDE_ASTRA_CACHE", Path(tempfile.gettempdir()) / "etude-astra"))
NUMBERS = ("num_ops", "tensor_size", "comm_type", "comm_size")


def _value(attr: Any) -> Any:
    which = attr.WhichOneof("value")
    return getattr(attr, which) if which else None


def _rank_columns(path: Path, groups: dict[int, int]) -> dict[str, list[Any]]:
    """One rank's columns; dependencies as rows of the rank, -1 where an id is not in the file."""
    _, nodes = read_messages(path)
    nodes = list(nodes)
    row = {n.id: i for i, n in enumerate(nodes)}
    out: dict[str, list[Any]] = {k: [] for k in (
        "source_id", "kind", "is_cpu", "duration_us", *NUMBERS, "src", "dst", "tag", "group", "involved_dims", "deps")}
    for node in nodes:
        attrs = {a.name: a for a in node.attr}
        out["source_id"].append(node.id)
        out["kind"].append(node.type)
        out["is_cpu"].append(bool(_value(attrs["is_cpu_op"])) if "is_cpu_op" in attrs else False)
        out["duration_us"].append(node.duration_micros)
        for name in NUMBERS:
            out[name].append(int(_value(attrs[name])) if name in attrs else ABSENT)
        for name in ("src", "dst", "tag"):
            key = f"comm_{name}"
            out[name].append(int(_value(attrs[key])) if key in attrs else ABSENT)
        label = str(_value(attrs["pg_name"])) if "pg_name" in attrs else ""
        out["group"].append(WORLD if label in ("", "0") else groups.get(int(label), UNKNOWN_GROUP))
        mask = ABSENT
        if "involved_dim" in attrs:
            mask = sum(1 << d for d, on in enumerate(_value(attrs["involved_dim"]).values) if on)
        out["involved_dims"].append(mask)
        out["deps"].append([row.get(d, -1) for d in (*node.data_deps, *node.ctrl_deps)])
    return out


DTYPES = {"source_id": np.uint64, "kind": np.uint8, "is_cpu": np.bool_, "duration_us": np.int64, "num_ops": np.int64,
          "tensor_size": np.int64, "comm_type": np.int64, "comm_size": np.int64, "src": np.int32, "dst": np.int32,
          "tag": np.int32, "group": np.int32, "involved_dims": np.int16}


def load(paths: Sequence[Path], groups: dict[int, Sequence[int]] | None = None, *, cache: bool = False) -> Workload:
    """A workload from one file per rank; the same file may stand for several ranks."""
    groups = groups or {}
    ids = tuple(groups)
    if cache:
        stamp = json.dumps([[str(p), p.stat().st_size] for p in paths] + [sorted(groups.items())])
        kept = CACHE / f"{hashlib.sha256(stamp.encode()).hexdigest()[:20]}.npz"
        if kept.exists():
            with np.load(kept) as data:
                arrays = {k: data[k] for k in data.files}
            return Workload(**arrays, groups=_members(groups), group_ids=ids)
    index = {g: i for i, g in enumerate(ids)}
    parts, rank_start, dep_start, dep = [], [0], [np.zeros(1, np.int64)], []
    seen: dict[Path, dict[str, Any]] = {}
    edges = 0
    for path in paths:
        if path not in seen:
            seen = {path: _rank_columns(path, index)} if len(set(paths)) > 64 else seen | {path: _rank_columns(path, index)}
        columns = seen[path]
        flat = np.array([d for deps in columns["deps"] for d in deps], np.int32)
        dep.append(np.where(flat >= 0, flat + rank_start[-1], -1).astype(np.int32))
        ends = edges + np.cumsum([len(d) for d in columns["deps"]], dtype=np.int64)
        edges += len(flat)
        dep_start.append(ends)
        parts.append({k: np.array(columns[k], t) for k, t in DTYPES.items()})
        rank_start.append(rank_start[-1] + len(columns["kind"]))
    arrays = {k: np.concatenate([p[k] for p in parts]) for k in DTYPES}
    arrays |= {"rank_start": np.array(rank_start, np.int64), "dep_start": np.concatenate(dep_start),
               "dep": np.concatenate(dep).astype(np.int32)}
    if cache:
        CACHE.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **arrays)
    return Workload(**arrays, groups=_members(groups), group_ids=ids)


def _members(groups: dict[int, Sequence[int]]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(ranks, np.int64) for ranks in groups.values())
