"""OpDatabase: measured times of operators in one Parquet file; reads, adds, looks up.

    database = read_ops("h200.ops")
    database.on(device).time_ns(shapes)

A file is written whole next to the old one and replaces it, so a reader never sees a partial file; concurrent writers
wait for one another.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from etude.base.errors import FormatError, MismatchError, UsageError
from etude.base.files import note_open, writing
from etude.cost.opdb.curves import Curves
from etude.cost.opdb.schema import COLUMNS, DIMS, FIXED, NAMES, OPS, Shapes, distinct
from etude.cost.ops import DTYPE_BYTES
from etude.kernels.arrays import F64
from etude.machine import device_names, open_device
from etude.machine.system import Device

VERSION: Final = b"1"
_MARK: Final = b"etude.ops"
SCHEMA: Final = pa.schema(
    [*((name, pa.string()) for name in NAMES), *((name, pa.int64()) for name in DIMS), ("time_us", pa.float64()),
     ("repeat", pa.int64()), ("source", pa.string())],
    metadata={_MARK: VERSION},
)  # fmt: skip
LONGEST_US: Final = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class OpDatabase:
    """Rows of measured points of one or several devices and backends. A point may have several rows: its repeats."""

    table: pa.Table
    path: str = ""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def devices(self) -> list[str]:
        return sorted(set(self.table["device"].to_pylist()))

    @property
    def backends(self) -> list[str]:
        return sorted(set(self.table["backend"].to_pylist()))

    def select(self, *, device: str = "", backend: str = "") -> OpDatabase:
        """The rows of one device, of one backend."""
        keep = np.ones(len(self), bool)
        for column, wanted in (("device", device), ("backend", backend)):
            if wanted:
                keep &= self.table[column].to_numpy(zero_copy_only=False) == wanted
        return OpDatabase(self.table.filter(pa.array(keep)), self.path)

    def shapes(self) -> Shapes:
        """The op of each row."""
        dims = (
            np.stack([self.table[name].to_numpy() for name in DIMS], axis=1) if len(self) else np.zeros((0, len(DIMS)))
        )
        op, dtype = (np.array(self.table[name].to_pylist(), np.str_) for name in ("op", "dtype"))
        return Shapes(op, dtype, dims.astype(np.int64))

    def points(self) -> tuple[Shapes, F64]:
        """Distinct points and the mean of their times in ns."""
        shapes, time = self.shapes(), self.table["time_us"].to_numpy() * 1000.0
        first, which = distinct(shapes)
        mean = np.bincount(which, weights=time) / np.bincount(which)
        return shapes.take(first), mean

    def keys(self) -> set[tuple[str, str, tuple[int, ...]]]:
        """(op, data type, fixed dimensions) that have a point."""
        return set(keys_in(self.shapes()))

    def on(self, device: Device, *, backend: str = "") -> Curves:
        """Times on this device, which must match the rows."""
        mine = [name for name in self.devices if is_device(name, device)]
        if not mine:
            there = ", ".join(self.devices) or "nothing"
            problem = f"the operators were measured on {there}, but the system has `{device.name}`"
            raise MismatchError(problem, where=self.path, hint="--system with that device, or a database of this one")
        rows = self.select(device=mine[0])
        known = rows.backends
        if not backend and len(known) > 1:
            raise UsageError(
                f"it has the backends {', '.join(known)}, and none is named", where=self.path, hint="--ops-backend NAME"
            )
        if backend and backend not in known:
            raise UsageError(f"it has no backend `{backend}`", where=self.path, hint=f"known: {', '.join(known)}")
        shapes, time_ns = rows.select(backend=backend).points()
        return Curves(shapes, time_ns, device)

    def host_ns(self) -> float | None:
        """The host's time to issue an op, if measured."""
        shapes, time_ns = self.points()
        found = time_ns[shapes.op == "host"]
        return float(found.mean()) if len(found) else None


def is_device(name: str, device: Device) -> bool:
    """Whether a device of the database is this one: by its name in the catalogue, or its own."""
    if name in device_names():
        return open_device(name).name == device.name
    return _bare(name) == _bare(device.name)


def _bare(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def keys_in(shapes: Shapes) -> list[tuple[str, str, tuple[int, ...]]]:
    fixed = shapes.dims[:, : len(FIXED)].tolist()
    return list(zip(shapes.op.tolist(), shapes.dtype.tolist(), map(tuple, fixed), strict=True))


# -- files -------------------------------------------------------------------------------------------------------------


def read_ops(path: str | PathLike[str]) -> OpDatabase:
    """A database file."""
    where = fspath(path)
    note_open(where)
    try:
        table = pq.read_table(where)
    except FileNotFoundError:
        raise UsageError(
            "there is no such database", where=where, hint="etude ops measure MODEL --db FILE creates one"
        ) from None
    except (OSError, pa.ArrowInvalid) as problem:
        raise FormatError(f"is not an operator database: {str(problem).splitlines()[0]}", path=where) from None
    marked = (table.schema.metadata or {}).get(_MARK)
    if marked != VERSION:
        what = "is Parquet, but not an operator database" if marked is None else f"has version {marked.decode()}"
        raise FormatError(what, path=where, hint=f"columns: {', '.join(COLUMNS)}")
    return OpDatabase(checked(table, where), where)


def read_points(path: str | PathLike[str]) -> pa.Table:
    """A CSV of points, as the measuring worker writes it: the columns of the database."""
    where = fspath(path)
    try:
        with open(where, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            names, rows = reader.fieldnames or [], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"cannot be read: {getattr(problem, 'strerror', None) or problem}", path=where) from None
    _check_names(list(names), where)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for line, row in enumerate(rows, 2):
        for name in COLUMNS:
            columns[name].append(_value(name, row.get(name), f"line {line}", where))
    return checked(pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in COLUMNS}), where)


def _value(name: str, text: str | None, line: str, where: str) -> Any:
    kind = SCHEMA.field(name).type
    if text is None:
        raise FormatError(f"{line}: no `{name}`", path=where)
    try:
        if kind == pa.int64():
            return int(text or 0)
        return float(text) if kind == pa.float64() else text
    except ValueError:
        raise FormatError(f"{line}: `{name}` is `{text}`, which is not a number", path=where) from None


def _check_names(names: Sequence[str], where: str) -> None:
    lacking = [name for name in COLUMNS if name not in names]
    if not lacking:
        return
    times = [name for name in names if name.startswith("time") or "second" in name]
    hint = f"columns: {', '.join(COLUMNS)}"
    if lacking == ["time_us"] and times:
        hint = f"times are microseconds in a column `time_us`; this one has `{times[0]}`"
    raise FormatError(f"no column `{lacking[0]}`", path=where, hint=hint)


def checked(table: pa.Table, where: str) -> pa.Table:
    """The table with the columns of a database; refuses invalid rows."""
    _check_names(table.schema.names, where)
    table = table.select(list(COLUMNS))
    try:
        table = table.cast(pa.schema(list(SCHEMA)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise FormatError(f"a column has another type: {str(problem).splitlines()[0]}", path=where) from None
    for name in COLUMNS:
        if table[name].null_count:
            raise FormatError(f"column `{name}` has empty values", path=where)
    time = table["time_us"].to_numpy()
    _refuse(~np.isfinite(time) | (time <= 0) | (time > LONGEST_US), table, where, "a time of {time_us} us is not valid")
    for name in (*DIMS, "repeat"):
        _refuse(table[name].to_numpy() < 0, table, where, f"`{name}` is {{{name}}}, which is negative")
    ops = np.array(table["op"].to_pylist(), np.str_)
    _refuse(~np.isin(ops, list(OPS)), table, where, "unknown op `{op}`", hint=f"known: {', '.join(OPS)}")
    types = np.array(table["dtype"].to_pylist(), np.str_)
    _refuse(~np.isin(types, list(DTYPE_BYTES)), table, where, "unknown data type `{dtype}`",
            hint=f"known: {', '.join(DTYPE_BYTES)}")  # fmt: skip
    for op in np.unique(ops).tolist():
        for name in DIMS:
            if name not in OPS[op].fixed + OPS[op].free:
                wrong = (ops == op) & (table[name].to_numpy() != 0)
                _refuse(wrong, table, where, f"op `{op}` has no `{name}`, but this one is {{{name}}}")
    _refuse_twice(table, where)
    return table.replace_schema_metadata(SCHEMA.metadata)


def _refuse(wrong: NDArray[np.bool_], table: pa.Table, where: str, text: str, *, hint: str = "") -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        row = table.slice(int(rows[0]), 1).to_pylist()[0]
        raise FormatError(f"row {rows[0] + 1}: {text.format(**row)}", path=where, hint=hint)


IDENTITY: Final = [name for name in COLUMNS if name != "time_us"]
"""What identifies a measurement: everything but the time."""


def _refuse_twice(table: pa.Table, where: str) -> None:
    found = table.group_by(IDENTITY, use_threads=False).aggregate([("time_us", "min"), ("time_us", "max")])
    other = found["time_us_min"].to_numpy() != found["time_us_max"].to_numpy()
    if other.any():
        row = found.slice(int(np.flatnonzero(other)[0]), 1).to_pylist()[0]
        raise FormatError(
            f"`{row['op']}` appears twice, with {row['time_us_min']} us and with {row['time_us_max']} us: from "
            f"`{row['source']}`, repeat {row['repeat']}",
            path=where,
            hint="give repeats different numbers in column `repeat`, and other measurements another `source`",
        )


def add_rows(path: str | PathLike[str], new: pa.Table, *, where: str = "") -> tuple[int, int]:
    """Adds rows to a database, which is created if missing. Existing rows are skipped. Returns (rows added, rows in
    total)."""
    target = Path(path)
    new = checked(new, where or "new rows")
    with _alone(target.parent):
        old = read_ops(target).table if target.exists() else SCHEMA.empty_table()
        together = pa.concat_tables([old, new])
        _refuse_twice(together, where or str(target))
        together = together.group_by(IDENTITY, use_threads=False).aggregate([("time_us", "min")])
        together = together.rename_columns([*IDENTITY, "time_us"]).select(list(COLUMNS))
        with writing(target, force=True) as temporary:
            pq.write_table(together.replace_schema_metadata(SCHEMA.metadata), temporary, compression="zstd")
    return int(together.num_rows - old.num_rows), int(together.num_rows)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A lock for writers on this machine."""
    import fcntl
    import os

    if not folder.is_dir():
        raise UsageError("its folder does not exist", where=str(folder), hint=f"mkdir -p {folder}")
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
