"""How much of a result is sent: a limited number of rows and characters, with a note of what was cut."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 200
"""Rows of a table, or entries of a list, at most."""
LETTERS: Final = 300
"""Letters of a text at most: names of kernels can have a thousand."""
BYTES: Final = 64 * 1024
"""Of a result as JSON."""


def rows_of(table: pa.Table, rows: int = ROWS) -> dict[str, Any]:
    """A table as JSON: `columns`, its first `rows`, how many there are, and a note where some were cut."""
    names = list(table.schema.names)
    first = table.slice(0, rows)
    columns = [column.to_pylist() for column in first.columns]
    found: dict[str, Any] = {
        "columns": names,
        "rows": [list(row) for row in zip(*columns, strict=True)],
        "rows_in_all": len(table),
    }
    if len(table) > rows:
        found["note"] = f"the first {rows:,} of {len(table):,} rows"
    return found


def bounded(found: Mapping[str, Any]) -> dict[str, Any]:
    """A result that is small enough: long texts and lists are cut, more of them until `BYTES` hold it."""
    import msgspec

    rows, letters = ROWS, LETTERS
    while True:
        cut: list[str] = []
        made = {name: _cut(value, name, rows, letters, cut) for name, value in found.items()}
        if cut:
            made["cut"] = cut[:20]
        if len(msgspec.json.encode(made)) <= BYTES or rows <= 1:
            return made
        rows, letters = rows // 2, max(20, letters * 2 // 3)


def _cut(value: Any, where: str, rows: int, letters: int, cut: list[str]) -> Any:
    """`value` in what JSON knows, with at most this many rows of every list and letters of every text."""
    if isinstance(value, str):  # also of a class of its own
        return str(value) if len(value) <= letters else value[: letters - 1] + "…"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return _cut_mapping(value, where, rows, letters, cut)
    if isinstance(value, list | tuple):
        if len(value) > rows:
            cut.append(f"{where}: the first {rows:,} of {len(value):,}")
        return [_cut(one, where, rows, letters, cut) for one in value[:rows]]
    return _cut(value.tolist() if hasattr(value, "tolist") else str(value), where, rows, letters, cut)


def _cut_mapping(value: Mapping[Any, Any], where: str, rows: int, letters: int, cut: list[str]) -> dict[str, Any]:
    entries = list(value.items())
    if len(entries) > rows:
        cut.append(f"{where}: the first {rows:,} of {len(entries):,}")
    return {
        _cut(str(name), where, rows, letters, cut): _cut(one, f"{where}.{name}", rows, letters, cut)
        for name, one in entries[:rows]
    }
