"""The tables of an archive and their columns. Each has `run`, the fingerprint of the run that a row is of."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("run", pa.string(), nullable=False), *columns.items()])


TABLES: Final[dict[str, pa.Schema]] = {
    "runs": _schema(
        name=_TEXT, path=_TEXT, origin=_TEXT, start_ns=_WHOLE, span_ns=_WHOLE, ranks=_WHOLE, world_size=_WHOLE,
        nodes=_WHOLE, steps=_WHOLE, system=_TEXT, model=_TEXT, etude=_TEXT,
    ),
    "metrics": _schema(metric=_TEXT, value=_REAL, unit=_TEXT),
    "steps": _schema(
        rank=_WHOLE, step=_WHOLE, start_ns=_WHOLE, end_ns=_WHOLE, span_ns=_WHOLE, compute_ns=_WHOLE, comm_ns=_WHOLE,
        exposed_comm_ns=_WHOLE, memory_ns=_WHOLE, exposed_memory_ns=_WHOLE, idle_ns=_WHOLE, overlap_pct=_REAL,
    ),
    "collectives": _schema(
        collective=_TEXT, group_name=_TEXT, group_size=_WHOLE, size_bytes=_WHOLE, calls=_WHOLE,
        total_transfer_ns=_WHOLE, median_transfer_ns=_WHOLE, total_wait_ns=_WHOLE, median_skew_ns=_WHOLE,
        algbw_bytes_per_s=_REAL, busbw_bytes_per_s=_REAL,
    ),
    "findings": _schema(tone=_TEXT, what=_TEXT, why=_TEXT, section=_TEXT, cost_ns=_WHOLE),
    "cards": _schema(key=_TEXT, value=_TEXT),
}  # fmt: skip
"""`runs` comes first and is written last: a run is there when its row is."""
