"""Tables in CSV files that a space names: a row for each thing, read as a frozen dataclass of figures."""

from __future__ import annotations

from typing import TypeVar

from etude.base.errors import UsageError
from etude.base.figures import read
from etude.base.files import csv_rows
from etude.decide.search.given import Given

T = TypeVar("T")


def table(given: Given, key: str, cls: type[T], name: str = "") -> list[T]:
    """Rows of the CSV file given under `key`. Columns are the figures of `cls`; empty cells are left out. Rows
    that have the same value in the column `name` are refused."""
    file = given.keys.get(key)
    if not isinstance(file, str):
        raise UsageError(f"key `{key}` is missing", where=given.where, hint=f"{key}: {key}.csv")
    path = given.path(file)
    found, seen = [], set()
    for number, row in enumerate(csv_rows(path)[1], 2):
        where = f"{file}: line {number}"
        found.append(read(cls, {column: text.strip() for column, text in row.items() if text.strip()}, where))
        if name:
            one = row.get(name, "").strip()
            if one in seen:
                raise UsageError(f"`{one}` appears twice", where=where)
            seen.add(one)
    if not found:
        raise UsageError("has no row", where=file)
    return found
