"""Chakra traces as a `Workload`, through protobuf messages: slow, plain, and independent of the reader under test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astra_build import DTYPES
from chakra_pb import read_messages
from etude.astra.workload import ABSENT, UNKNOWN_GROUP, WORLD, Workload

NUMBERS = ("num_ops", "tensor_size", "comm_type", "comm_size")


def _value(attr: Any) -> Any:
    which = attr.WhichOneof("value")
    return getattr(attr, which) if which else None


def _rank_columns(path: Path, groups: dict[int, int]) -> dict[str, list[Any]]:
    """One rank's columns; dependencies as rows of the rank, -1 where an id is not in the file."""
    _, nodes = read_messages(path)
    nodes = list(nodes)
    row = {n.id: i for i, n in enumerate(nodes)}
    out: dict[str, list[Any]] = {
        k: []
        for k in (
            "source_id",
            "kind",
            "is_cpu",
            "duration_us",
            *NUMBERS,
            "src",
            "dst",
            "tag",
            "group",
            "involved_dims",
            "deps",
        )
    }
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


def load(paths: Sequence[Path], groups: dict[int, Sequence[int]] | None = None) -> Workload:
    """A workload from one file per rank."""
    groups = groups or {}
    index = {g: i for i, g in enumerate(groups)}
    ranks = [_rank_columns(path, index) for path in paths]
    rank_start = np.concatenate([[0], np.cumsum([len(r["kind"]) for r in ranks])]).astype(np.int64)
    deps = [
        [d + int(base) if d >= 0 else -1 for d in each]
        for base, rank in zip(rank_start, ranks, strict=False)
        for each in rank["deps"]
    ]
    return Workload(
        **{k: np.array([v for rank in ranks for v in rank[k]], t) for k, t in DTYPES.items()},
        rank_start=rank_start,
        dep_start=np.concatenate([[0], np.cumsum([len(d) for d in deps])]).astype(np.int64),
        dep=np.array([d for each in deps for d in each], np.int32),
        groups=tuple(np.array(g, np.int64) for g in groups.values()),
        group_ids=tuple(groups),
    )
