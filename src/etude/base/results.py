"""Folders of results, read back through a schema: a record in JSON and a Parquet file for each table.

    IMAGES = ResultSchema(
        "etude images", 2, "a served stream", keys(requests=COUNT, latency_s=SPREAD),
        {"tasks": TableSchema({"start_s": SECONDS, "degree": COUNT}, rows=1)},
    )
    write_results("out/", "served.json", IMAGES, record, tables)
    head = read_head(Path("out/served.json"), {"etude images": 2}, "a served stream")
    record, tables = read_results(head, IMAGES)

The first key of the record is the format with its version (`etude images 2`), and `tables` has the rows of each table.
What is damaged, cut off, of another type, out of range, or of a version that is not known is a FormatError with the
file and the place in it. Version 1 of a format is the same without the numbers of rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import FormatError
from etude.base.files import note_open, writing
from etude.base.shapes import SMALLEST, Shape, ValuePlace, check_range, check_value, shown

if TYPE_CHECKING:
    import pyarrow as pa

MARK: Final = b"etude"
"""Key of a Parquet file's metadata: the format that the table is of, with its version."""
_FORMAT: Final = re.compile(r"(etude [a-z ]+) (\d{1,9})")
NEWER: Final = "update Etude, or write it again with this version"

Rule = tuple[str, Callable[[Mapping[str, Any]], bool]]
"""What is wrong where the function of a record says no."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns of a table, and the fewest rows that it has. Other columns may be there."""

    columns: Mapping[str, Shape]
    rows: int = 0
    optional: bool = False
    """The table may be left out."""
    ordered: tuple[tuple[str, ...], ...] = ()
    """Columns whose values do not decrease from one to the next, in every row."""


@dataclass(frozen=True, slots=True)
class ResultSchema:
    name: str
    """`etude served`."""
    version: int
    about: str
    """`a served stream`, for messages."""
    record: Shape
    tables: Mapping[str, TableSchema]
    rules: tuple[Rule, ...] = ()

    @property
    def format(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class ResultHead:
    """The record of a folder, of a format that is known; its values are not checked yet."""

    folder: Path
    file: Path
    name: str
    version: int
    record: dict[str, Any] = field(repr=False)
    rows: Mapping[str, int | None]
    """Tables that the folder says it has, with their rows; None: it does not say how many."""
    hint: str


# -- writing -----------------------------------------------------------------------------------------------------------


def write_results(
    path: str | PathLike[str],
    file: str,
    schema: ResultSchema,
    record: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    *,
    force: bool = False,
) -> None:
    """A folder with the record and all tables."""
    import msgspec
    import pyarrow.parquet as pq

    whole = {"format": schema.format, "tables": {name: len(tables[name]) for name in sorted(tables)}, **record}
    with writing(path, force=force) as place:
        place.mkdir()
        for name, table in tables.items():
            pq.write_table(marked(table, schema.format), place / f"{name}.parquet", compression="zstd")
        (place / file).write_bytes(msgspec.json.format(msgspec.json.encode(whole)) + b"\n")


def marked(table: pa.Table, form: str) -> pa.Table:
    """The table with its format in the metadata of its file."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), MARK: form.encode()})


# -- reading -----------------------------------------------------------------------------------------------------------


def read_json(file: Path, what: str, hint: str = "") -> Any:
    """What a JSON file holds; `what` it is not, for messages."""
    import msgspec

    try:
        return msgspec.json.decode(file.read_bytes())
    except OSError as problem:
        raise FormatError(
            f"is not {what}: {(problem.strerror or str(problem)).lower()}", path=file, hint=hint
        ) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise FormatError(f"is not {what}: {_first_line(problem)}", path=file, hint=hint) from None


def read_head(file: Path, known: Mapping[str, int], what: str, hint: str = "") -> ResultHead:
    """The record in a file, if its format is one of those that are `known`, with the newest version of each."""
    found = read_json(file, what, hint)
    if not isinstance(found, dict):
        raise FormatError(f"is not {what}: expected keys and values, not {shown(found)}", path=file, hint=hint)
    record = dict(found)
    name, version = format_of(record.pop("format", None), known, file, what, hint)
    return ResultHead(file.parent, file, name, version, record, _rows(record.pop("tables", None), version, file), hint)


def format_of(form: Any, known: Mapping[str, int], file: Path, what: str, hint: str = "") -> tuple[str, int]:
    """Name and version of a format; one that is not known, or newer than what is known, is refused."""
    match = _FORMAT.fullmatch(form) if isinstance(form, str) else None
    if match is None or match[1] not in known:
        problem = "it has no format" if form is None else f"its format is {shown(form)}"
        raise FormatError(f"is not {what}: {problem}", path=file, hint=hint)
    name, version = match[1], int(match[2])
    if version > known[name]:
        newest = f"this one knows versions up to {known[name]}"
        raise FormatError(f"has version {version} of `{name}`, which is newer: {newest}", path=file, hint=NEWER)
    if version < 1:
        raise FormatError(f"has version {version} of `{name}`, which never was", path=file, hint=hint)
    return name, version


def _rows(found: Any, version: int, file: Path) -> dict[str, int | None]:
    """The tables of a record: names in version 1, if it has them, and numbers of rows later."""
    if version == 1 and (found is None or isinstance(found, list)):
        names = found or []
        if not all(isinstance(name, str) for name in names):
            raise FormatError("expected names", path=file, where="tables")
        return dict.fromkeys(names)
    if not isinstance(found, dict) or not all(isinstance(n, int) and not isinstance(n, bool) for n in found.values()):
        raise FormatError("expected the number of rows of each table", path=file, where="tables")
    return found


def read_results(head: ResultHead, schema: ResultSchema) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """The record and the tables of a folder, as the schema says they are."""
    place = ValuePlace(fspath(head.file), hint=head.hint)
    check_value(head.record, schema.record, place)
    for problem, holds in schema.rules:
        if not holds(head.record):
            raise place.wrong(problem)
    if strange := sorted(head.rows.keys() - schema.tables.keys()):
        raise ValuePlace(fspath(head.file), "tables", head.hint).wrong(f"unknown table {shown(strange[0])}")
    needed = [name for name, table in schema.tables.items() if not table.optional]
    if head.rows and (lacking := [name for name in needed if name not in head.rows]):
        raise ValuePlace(fspath(head.file), "tables", head.hint).wrong(f"there is no table `{lacking[0]}`")
    tables = {}
    for name in [name for name in schema.tables if name in (head.rows or needed)]:
        file = head.folder / f"{name}.parquet"
        tables[name] = read_table(
            file, schema.tables[name], schema.about, hint=head.hint, known={head.name: head.version}
        )
        rows = head.rows.get(name)
        if rows is not None and rows != len(tables[name]):
            raise FormatError(
                f"has {len(tables[name]):,} rows, but {head.file.name} says {rows:,}", path=file, hint=head.hint
            )
    return head.record, tables


# -- tables ------------------------------------------------------------------------------------------------------------


def read_table(
    file: Path, schema: TableSchema, what: str, *, hint: str = "", known: Mapping[str, int] | None = None
) -> pa.Table:
    """A Parquet file whose columns are as the schema says; those that are empty get the type that it says. `known`:
    formats that it may say it is of."""
    import pyarrow as pa

    table = open_table(file, what, hint=hint)
    mark = (table.schema.metadata or {}).get(MARK)
    if mark is not None and known is not None:
        format_of(mark.decode("utf-8", "replace"), known, file, f"a table of {what}", hint)
    if len(table) < schema.rows:
        raise FormatError(f"has {len(table)} rows, but needs {schema.rows}", path=file, hint=hint)
    for name, shape in schema.columns.items():
        place = ValuePlace(fspath(file), f"column `{name}`", hint)
        if name not in table.column_names:
            if shape.optional:
                continue
            raise FormatError(f"has no column `{name}`", path=file, hint=hint)
        check_column(table[name], shape, place)
        if pa.types.is_null(table[name].type) and shape.kind in ("number", "whole", "text"):
            typed = {"number": pa.float64(), "whole": pa.int64(), "text": pa.string()}[shape.kind]
            table = table.set_column(table.column_names.index(name), name, pa.nulls(len(table), typed))
    for name in [name for name in table.column_names if name not in schema.columns]:
        if not _is_plain(table[name].type):
            raise FormatError(
                f"column `{name}` is of type {table[name].type}, which no result has", path=file, hint=hint
            )
    for names in schema.ordered:
        _check_order(table, names, file, hint)
    return table


def open_table(file: Path, what: str, *, hint: str = "") -> pa.Table:
    """A Parquet file that is whole, and in which no two columns have one name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _whole(file, what, hint):
        note_open(file)
        with pq.ParquetFile(file) as opened:
            table = opened.read()
        names = table.column_names
        table.validate(full=True)
        if len(set(names)) < len(names):
            raise pa.ArrowInvalid("two columns have one name")
    return table


@contextmanager
def _whole(file: Path, what: str, hint: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except OSError as problem:
        reason = problem.strerror.lower() if problem.strerror else _first_line(problem)
        raise FormatError(f"is not {what}: {reason}", path=file, hint=hint) from None
    except (pa.ArrowException, ValueError, KeyError, MemoryError) as problem:
        raise FormatError(f"is not {what}: {_first_line(problem)}", path=file, hint=hint) from None


def check_column(column: pa.ChunkedArray, shape: Shape, place: ValuePlace) -> None:
    """Raises FormatError if a column is of another type, has empty values, or one out of range."""
    import pyarrow as pa

    if pa.types.is_null(column.type) and shape.null:
        return
    if not _is_type(column.type, shape):
        raise place.wrong(f"expected {_NOUNS[shape.kind]}, not {column.type}")
    if column.null_count and not shape.null:
        raise place.wrong(f"{column.null_count:,} values are missing")
    if shape.among:
        strange = [text for text in column.unique().to_pylist() if text is not None and text not in shape.among]
        if strange:
            raise place.wrong(f"{shown(strange[0])} is not known; known: {', '.join(shape.among)}")
    if shape.kind in ("number", "whole"):
        _check_numbers(column, shape, place)


_NOUNS: Final = {
    "number": "numbers",
    "whole": "whole numbers",
    "text": "texts",
    "flag": "true or false",
    "list": "lists of whole numbers",
}


def _is_type(kind: Any, shape: Shape) -> bool:
    import pyarrow as pa

    if shape.kind == "list":
        return bool(pa.types.is_list(kind) and pa.types.is_integer(kind.value_type))
    if shape.kind == "number":
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
    return bool(
        {"whole": pa.types.is_integer, "text": pa.types.is_string, "flag": pa.types.is_boolean}[shape.kind](kind)
    )


def _is_plain(kind: Any) -> bool:
    import pyarrow as pa

    own = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_boolean, pa.types.is_null)
    return any(is_type(kind) for is_type in own)


def _check_numbers(column: pa.ChunkedArray, shape: Shape, place: ValuePlace) -> None:
    import numpy as np
    import pyarrow as pa

    values = column.drop_null().to_numpy()
    if pa.types.is_floating(column.type):
        unknown = np.isnan(values)
        if unknown.any() and not shape.null:
            raise place.wrong(f"{int(unknown.sum()):,} values are not numbers")
        values = values[~unknown]
    if not len(values):
        return
    for value in (values.min().item(), values.max().item()):
        check_range(value, shape, place)
    if pa.types.is_floating(column.type) and ((values != 0) & (np.abs(values) < SMALLEST)).any():
        raise place.wrong("a value is too small to be a result")


def _check_order(table: pa.Table, names: Sequence[str], file: Path, hint: str) -> None:
    import numpy as np

    columns = [table[name].to_numpy() for name in names if name in table.column_names]
    for first, second, one, other in zip(names, names[1:], columns, columns[1:], strict=False):
        wrong = np.flatnonzero(one > other + 1e-6)
        if len(wrong):
            row = int(wrong[0])
            problem = f"row {row}: `{first}` is {one[row]:g}, after `{second}`, {other[row]:g}"
            raise FormatError(problem, path=file, hint=hint)


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), "") or type(problem).__name__


def unbounded(shape: Shape) -> Shape:
    """The same with infinite values too."""
    return Shape(shape.kind, -inf, inf, shape.null, shape.optional)
