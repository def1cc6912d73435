"""The files of a job in Parquet, as data: which columns each has and of which type. The docs page is made from this.

    manifest.json     what it is: names, counts, row groups, notes, provenance
    ranks.parquet     one row per rank: which trace it runs and what binds it
    traces.parquet    one row per distinct trace: slots, lanes, ids of missing nodes
    nodes.parquet     one row per node of a distinct trace; a column in which nothing was recorded is left out
    deps.parquet      one row per dependency
    attrs.parquet     one row per attribute that no column of nodes.parquet holds
    layouts.parquet   the attributes that nodes have, in order: nodes.layout numbers them within a trace's set
    groups.parquet    one row per group
    values.parquet    one row per node of a rank that has values of its own
    timing.parquet    one row per node of a block of times

NULL means not recorded. Rows are in order of trace, then node; row groups hold whole traces, or part of a large one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.model.job import VALUE_COLUMNS
from etude.model.schema import NODE, Collective, Column, Kind, TimeSource, ValueKind, Why

FORMAT: Final = "etude job"
MANIFEST: Final = "manifest.json"

TEXT: Final = pa.dictionary(pa.int32(), pa.string())
BINARY: Final = pa.dictionary(pa.int32(), pa.binary())

KINDS: Final = tuple(k.wire_name for k in Kind)
COLLECTIVES: Final = tuple(c.name for c in Collective)
WHYS: Final = tuple(w.name.lower() for w in Why)
EDGES: Final = ("data", "ctrl")
VALUE_KINDS: Final = tuple(k.name.lower() for k in ValueKind)
SOURCES: Final = tuple(s.name.lower() for s in TimeSource)
WORDS: Final = {"kind": KINDS, "collective": COLLECTIVES, "time_source": SOURCES}
"""Node columns that are enums here and words in the file."""

NEVER_NULL: Final = {"source_id", "kind", "io", "layout"}
"""Node columns that are written as they are; in the others NULL represents the default."""


def arrow_type(column: Column) -> Any:
    if column.is_text or column.name in WORDS:
        return TEXT
    return pa.from_numpy_dtype(np.dtype(column.dtype))


def _list(item: Any) -> Any:
    return pa.list_(pa.field("element", item))


I32, I64, U64, F64 = pa.int32(), pa.int64(), pa.uint64(), pa.float64()

FILES: Final[dict[str, dict[str, Any]]] = {
    "ranks": {
        "rank": I32,
        "trace": I32,
        "id_base": U64,
        "tag_base": I64,
        "groups": _list(I32),
        "peers": _list(I64),
        "metadata": BINARY,
        "own": _list(pa.string()),
        "block": I32,
        "clock_offset_ns": I64,
    },
    "traces": {
        "trace": I32,
        "nodes": I64,
        "data_deps": I64,
        "ctrl_deps": I64,
        "attrs": I64,
        "group_slots": _list(pa.string()),
        "peer_slots": I32,
        "missing": _list(U64),
        "lane_kind": _list(pa.uint8()),
        "lane_id": _list(I64),
        "layouts": I32,
    },
    "nodes": {"trace": I32, "node": I32} | {c.name: arrow_type(c) for c in NODE} | {"extra": BINARY},
    "deps": {"trace": I32, "node": I32, "kind": TEXT, "position": I32, "on": I32, "why": TEXT},
    "attrs": {
        "trace": I32,
        "node": I32,
        "position": I32,
        "name": TEXT,
        "kind": TEXT,
        "bits": I64,
        "double": F64,
        "text": TEXT,
        "payload": BINARY,
        "list": TEXT,
    },
    "layouts": {
        "set": I32,
        "layout": I32,
        "position": I32,
        "name": pa.string(),
        "kind": pa.string(),
        "doc": pa.string(),
        "unknown": pa.binary(),
        "column": pa.string(),
    },
    "groups": {"group": I32, "name": pa.string(), "members": _list(I32)},
    "values": {"rank": I32, "node": I32} | dict.fromkeys(VALUE_COLUMNS, I64),
    "timing": {"block": I32, "node": I32, "start_ns": I64, "end_ns": I64},
}
OPTIONAL: Final = {
    "nodes": {c.name for c in NODE} - NEVER_NULL | {"extra"},
    "attrs": {"bits", "double", "text", "payload", "list"},
    "values": set(VALUE_COLUMNS),
}
"""Columns that a file may leave out."""
OPTIONAL_FILES: Final = {"values", "timing"}

DELTA: Final = {
    "trace", "node", "source_id", "on", "position", "rank", "block", "start_ns", "end_ns", "layout",
    "recorded_start_ns", "recorded_end_ns",
}  # fmt: skip
"""Columns whose values are mostly close to the previous one."""
