"""What is asked of a database of operators: its content, points that are added, measurements of other tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import Printed, Tabled
from etude.base.parameters import spelled
from etude.base.talk import say

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Database:
    """The parameter of what reads or writes a database."""

    db: str = figure("path", "file of the database", "operators.ops", panel="Input")


@dataclass(frozen=True, kw_only=True)
class ShowPoints:
    """The content of a database: keys and points by device, backend and op; or the points of one op

    etude ops show h200.ops
    etude ops show h200.ops --op linear --csv
    """

    db: str = argument("path", "a database, or a profile folder", like="other.ops")
    op: str = text("show the points of one operator: `linear`", like="attention")
    output: Tabled = part(Tabled)


def points_inputs(asked: ShowPoints) -> tuple[Path, str]:
    from etude.cost.opdb.schema import OPS

    if asked.op and asked.op not in OPS:
        raise UsageError(f"{spelled(asked, 'op')}: unknown op `{asked.op}`", hint=f"known: {', '.join(OPS)}")
    return Path(asked.db), asked.op


def points_of(given: tuple[Path, str]) -> "pa.Table | list[dict[str, Any]]":
    import numpy as np

    from etude.cost.opdb.database import keys_in
    from etude.cost.opdb.schema import OPS
    from etude.steps.operators.opened import open_ops

    found, op = open_ops(given[0]), given[1]
    if op:
        keep = np.array(found.table["op"].to_pylist(), np.str_) == op
        names = ("device", "backend", "dtype", *OPS[op].fixed, *OPS[op].free, "time_us", "repeat", "source")
        rows = found.table.select(list(names)).filter(keep)
        return rows.sort_by([(name, "ascending") for name in names])
    lines = []
    for device in found.devices:
        for backend in found.select(device=device).backends:
            points, time_ns = found.select(device=device, backend=backend).points()
            for name in OPS:
                here = points.op == name
                if here.any():
                    lines.append({
                        "device": device, "backend": backend, "op": name, "keys": len(set(keys_in(points.take(here)))),
                        "points": int(here.sum()), "least us": round(float(time_ns[here].min()) / 1e3, 2),
                        "most us": round(float(time_ns[here].max()) / 1e3, 2), "what": OPS[name].doc,
                    })  # fmt: skip
    return lines


@dataclass(frozen=True, kw_only=True)
class AddPoints(Database):
    """Add measured points to a database; points that it already has are skipped

    etude ops add points.csv --db h200.ops
    """

    points: tuple[str, ...] = argument("paths", "CSV files of the worker, or databases", like="other.csv")
    output: Printed = part(Printed)


def add_points(given: tuple[Path, tuple[Path, ...]]) -> dict[str, Any]:
    from etude.cost.opdb import read_ops, read_points

    db, points = given
    return _put(db, [(path, read_points(path) if path.suffix == ".csv" else read_ops(path).table) for path in points])


@dataclass(frozen=True, kw_only=True)
class ImportPoints(Database):
    """Import measurements of another tool: Vidur's operators, or a profile folder of a serving simulator

    etude ops import vidur_ops.csv --db vidur.ops
    etude ops import profiles/RTXPRO6000/Qwen/Qwen3-32B/bf16 --db vllm.ops
    """

    path: str = argument("path", "Vidur's CSV, or a profile folder", like="other.csv")
    output: Printed = part(Printed)


def import_points(given: tuple[Path, Path]) -> dict[str, Any]:
    from etude.cost.opdb.profiles import VIDUR, is_vidur, read_vidur
    from etude.steps.operators.opened import open_ops

    db, path = given
    if path.is_dir():
        table = open_ops(path).table
    elif is_vidur(path):
        table = read_vidur(path)
    elif not path.exists():
        raise UsageError("there is no such file or folder", where=str(path))
    else:
        hint = f"a folder with meta.yaml, or a CSV with {', '.join(VIDUR)}; `etude ops add` reads points of the worker"
        raise UsageError("is not in the format of a known tool", where=str(path), hint=hint)
    return _put(db, [(path, table)])


def _put(db: Path, tables: list[tuple[Path, Any]]) -> dict[str, Any]:
    import pyarrow as pa

    from etude.cost.opdb import add_rows

    where = ", ".join(str(path) for path, _ in tables)
    added, rows = add_rows(db, pa.concat_tables([table for _, table in tables]), where=where)
    say(f"{db}: {added:,} rows added, {rows:,} in total")
    return {"added": added, "rows": rows}
