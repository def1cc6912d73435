"""Parquet files of a folder, opened and checked: every column has the type it must have, every index its range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.base.files import note_open
from etude.kernels.arrays import I32, I64, U8
from etude.model import text
from etude.store import columns_schema as schema

REPLACED = "write the job again from its source"


class File:
    """One Parquet file, memory-mapped; only its footer is read until a column is needed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.path = name, folder / f"{name}.parquet"
        self.types = schema.FILES[name]
        note_open(self.path)
        try:
            source = pa.memory_map(str(self.path))
            footer = pq.read_metadata(source)
            present = footer.schema.to_arrow_schema()
            coded = [f.name for f in present if pa.types.is_dictionary(self.types.get(f.name, pa.null()))]
            self._file = pq.ParquetFile(
                source, metadata=footer, read_dictionary=coded, page_checksum_verification=True, pre_buffer=False
            )
            self._check_types()
            counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        except FileNotFoundError:
            raise FormatError("is missing", path=self.path, hint=REPLACED) from None
        except (OSError, pa.ArrowException, ValueError, KeyError) as problem:
            raise self.error(f"cannot be read: {first_line(problem)}") from None
        self.group_rows = np.array(counts, np.int64)

    def error(self, problem: str) -> FormatError:
        return FormatError(problem, path=self.path, hint=REPLACED)

    def _check_types(self) -> None:
        found = self._file.schema_arrow
        self.columns = set(found.names)
        for name, wanted in self.types.items():
            if name not in self.columns:
                if name not in schema.OPTIONAL.get(self.name, ()):
                    raise self.error(f"column `{name}` is missing")
            elif found.field(name).type != wanted:
                raise self.error(f"column `{name}` is {found.field(name).type}, expected {wanted}")

    def read(self, columns: Sequence[str], groups: Sequence[int] | None = None) -> dict[str, Any]:
        """Columns that the file has, as chunked arrays of all row groups or of these."""
        present = [c for c in columns if c in self.columns]
        numbers = range(len(self.group_rows)) if groups is None else groups
        try:
            found = self._file.read_row_groups(list(numbers), columns=present, use_threads=False)
        except (OSError, pa.ArrowException, ValueError) as problem:
            raise self.error(f"cannot be read: {first_line(problem)}") from None
        rows = int(self.group_rows[list(numbers)].sum()) if len(self.group_rows) else 0
        if present and len(found) != rows:
            raise self.error(f"{len(found)} rows where its index says {rows}")
        return {name: found.column(name) for name in present}

    def numbers(self, column: Any, name: str, default: int | None = None) -> NDArray[Any]:
        """A column as NumPy; NULL is `default`, or is refused."""
        if column.null_count:
            if default is None:
                raise self.error(f"column `{name}` holds NULL")
            column = column.fill_null(pa.scalar(default, column.type))
        return np.ascontiguousarray(column.to_numpy())

    def lists(self, column: Any, name: str) -> tuple[I64, Any, NDArray[np.bool_]]:
        """(starts, flat values, which are not NULL) of a list column."""
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(whole, pa.ChunkedArray):  # no chunk at all
            whole = pa.array([], column.type)
        try:
            whole.validate(full=True)
        except pa.ArrowException as problem:
            raise self.error(f"column `{name}`: {first_line(problem)}") from None
        flat = whole.flatten()
        if flat.null_count:
            raise self.error(f"column `{name}` holds NULL in a list")
        lengths = whole.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return starts, flat, ~whole.is_null().to_numpy(zero_copy_only=False)

    def words(self, column: Any, name: str, known: Sequence[str]) -> NDArray[np.uint8]:
        """A column of words as their numbers in a list; NULL is 0."""
        number = {w: i for i, w in enumerate(known)}
        parts = []
        for chunk in column.chunks:
            try:
                table = np.array([number[w] for w in chunk.dictionary.to_pylist()] + [0], np.uint8)
            except KeyError as problem:
                raise self.error(f"column `{name}` holds {problem}, which is not one of: {', '.join(known)}") from None
            parts.append(table[self.codes(chunk, name)])
        return np.concatenate([*parts, np.zeros(0, np.uint8)]) if len(parts) != 1 else parts[0]

    def codes(self, chunk: Any, name: str) -> I32:
        """Codes of a dictionary array, -1 for NULL; all within its dictionary."""
        indices = chunk.indices
        codes = (indices.fill_null(-1) if indices.null_count else indices).to_numpy(zero_copy_only=False)
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(chunk.dictionary):
            raise self.error(f"column `{name}`: a code is outside its {len(chunk.dictionary)} words")
        return codes


def first_line(problem: Exception) -> str:
    return str(problem).strip().split("\n")[0] or type(problem).__name__


class HeapPlan:
    """Columns of text and bytes that share one heap: add them, build, then get their offsets."""

    def __init__(self) -> None:
        self._parts: list[tuple[U8, I64]] = []
        self._columns: list[list[tuple[int, I32]]] = []
        self._offsets: list[I64] = []

    def add(self, file: File, column: Any, name: str) -> int:
        """Adds a column; returns its number."""
        chunks = []
        for chunk in column.chunks:
            codes = file.codes(chunk, name)
            try:
                chunk.dictionary.validate(full=True)
            except pa.ArrowException as problem:
                raise file.error(f"column `{name}`: {first_line(problem)}") from None
            if chunk.dictionary.null_count:
                raise file.error(f"column `{name}`: NULL among its words")
            chunks.append((len(self._parts), codes))
            self._parts.append(buffers(chunk.dictionary))
        self._columns.append(chunks)
        return len(self._columns) - 1

    def build(self) -> U8:
        heap, self._offsets = text.heaped(self._parts)
        return heap

    def offsets(self, number: int) -> I64:
        """Heap offset of each row; -1 for NULL."""
        parts = [np.append(self._offsets[part], -1)[codes] for part, codes in self._columns[number]]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, np.int64)])

    def distinct(self, number: int) -> list[tuple[U8, I64, I32]]:
        """(bytes, starts, code per row) of each chunk of a column."""
        return [(*self._parts[part], codes) for part, codes in self._columns[number]]


def buffers(words: Any) -> tuple[U8, I64]:
    """(bytes, starts) of a string or binary array that was validated."""
    _, starts, data = words.buffers()
    if not len(words):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    ends = np.frombuffer(starts, np.int32)[words.offset : words.offset + len(words) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), ends
