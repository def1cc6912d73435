"""Chakra traces as ASTRA-sim reads them, through protobuf messages: slow, plain, and independent of the code under
test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chakra_pb import read_messages
from etude.model.schema import UNKNOWN

NUMBERS = {"num_ops": "flops", "tensor_size": "tensor_bytes", "comm_size": "comm_bytes"}
COLUMNS = (
    "source_id", "kind", "cpu", "duration_ns", "flops", "tensor_bytes", "comm_bytes", "collective", "src", "dst", "tag",
    "group", "involved_dims",
)  # fmt: skip


def _value(attr: Any) -> Any:
    which = attr.WhichOneof("value")
    return getattr(attr, which) if which else None


def _group(attrs: dict[str, Any], place: dict[int, int]) -> int:
    name = str(_value(attrs["pg_name"])) if "pg_name" in attrs else ""
    return -1 if name in ("", "0") else place.get(int(name), -2)


def _node(node: Any, place: dict[int, int]) -> list[Any]:
    """The columns of one node, in the order of COLUMNS."""
    attrs = {a.name: a for a in node.attr}

    def number(name: str, default: int) -> int:
        return int(_value(attrs[name])) if name in attrs else default

    mask = -1
    if "involved_dim" in attrs:
        mask = sum(1 << d for d, on in enumerate(_value(attrs["involved_dim"]).values) if on)
    return [
        node.id,
        node.type + 1,
        number("is_cpu_op", -1),
        node.duration_micros * 1000 or UNKNOWN,
        *(number(name, UNKNOWN) for name in NUMBERS),
        number("comm_type", -1) + 1,
        *(number(name, -1) for name in ("comm_src", "comm_dst", "comm_tag")),
        _group(attrs, place),
        mask,
    ]


def load(paths: Sequence[Path], groups: dict[int, Sequence[int]] | None = None) -> dict[str, list[Any]]:
    """Column -> values over all ranks, from one file per rank; `dep` holds rows, -1 where an id is not in the file."""
    place = {number: i for i, number in enumerate(sorted(groups or {}))}
    out: dict[str, list[Any]] = {name: [] for name in COLUMNS} | {"rank_start": [0], "dep_start": [0], "dep": []}
    for path in paths:
        nodes = list(read_messages(path)[1])
        first = out["rank_start"][-1]
        row = {n.id: first + i for i, n in enumerate(nodes)}
        for node in nodes:
            for name, value in zip(COLUMNS, _node(node, place), strict=True):
                out[name].append(value)
            out["dep"] += [row.get(d, -1) for d in (*node.data_deps, *node.ctrl_deps)]
            out["dep_start"].append(len(out["dep"]))
        out["rank_start"].append(first + len(nodes))
    return out
