"""Rows of scored files as one table: CSV, JSON or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.decide.score.scoring import Scored, document

ENDINGS: Final = (".csv", ".json", ".parquet")


def check_name(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise UsageError(f"the rows cannot be written to `{path.name}`", hint=f"a name with {', '.join(ENDINGS)}")


def write_rows(scored: Sequence[Scored], path: Path, *, force: bool = False) -> int:
    """Writes a line for each row: file, kind, row, refused, `measured_X` and `predicted_X` of each figure X, assumed;
    as JSON what `document` gives. Returns how many rows."""
    check_name(path)
    lines = [_line(one, row) for one in scored for row in one.rows]
    names = list(dict.fromkeys(name for line in lines for name in line))
    names = [*names[:4], *sorted(name for name in names[4:] if name != "assumed"), "assumed"]
    columns: dict[str, list[Any]] = {name: [line.get(name) for line in lines] for name in names}
    with writing(path, force=force) as place:
        if path.suffix == ".csv":
            with place.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(names)
                writer.writerows(zip(*columns.values(), strict=True))
        elif path.suffix == ".json":
            import msgspec

            place.write_bytes(msgspec.json.format(msgspec.json.encode(document(scored)), indent=2))
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            columns["row"] = [str(label) for label in columns["row"]]
            pq.write_table(pa.table(columns), place)
    return len(lines)


def _line(one: Scored, row: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {"file": str(one.file), "kind": one.kind, "row": row["row"], "refused": row.get("refused")}
    for part in ("measured", "predicted"):
        line |= {f"{part}_{name}": value for name, value in row.get(part, {}).items()}
    return line | {"assumed": "; ".join(row.get("assumed", ()))}
