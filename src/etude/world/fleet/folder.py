"""A fleet run as a folder: `fleet.json`, the record of `etude fleet --json`, and a Parquet file for each table.

| table | a row for |
|---|---|
| events | each fault |
| states | each stretch of time that the job spent in one state |
| jobs | each job |

`outcomes.py` has the types and ranges that are read, by kind of outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from etude.base.errors import FormatError
from etude.base.results import read_head, read_results, write_results
from etude.base.shapes import shown
from etude.world.fleet.outcomes import ABOUT, NAME, OUTCOMES, VERSION, outcome_of

RECORD: Final = "fleet.json"
HINT: Final = "`etude fleet ... -o FOLDER` writes one"


@dataclass(frozen=True, slots=True, eq=False)
class FleetFolder:
    record: dict[str, Any]
    tables: dict[str, pa.Table]
    outcome: str
    """One of OUTCOMES."""


def write_fleet(
    tables: dict[str, pa.Table], record: dict[str, Any], path: str | PathLike[str], *, force: bool = False
) -> None:
    outcome = outcome_of(record, tables)
    write_results(path, RECORD, OUTCOMES[outcome], {"outcome": outcome, **record}, tables, force=force)


def is_fleet(path: str | PathLike[str]) -> bool:
    return (Path(path) / RECORD).is_file()


def read_fleet(path: str | PathLike[str]) -> FleetFolder:
    """What a folder holds, checked. Raises FormatError."""
    head = read_head(Path(path) / RECORD, {NAME: VERSION}, ABOUT, HINT)
    outcome = outcome_of(head.record, head.rows) if head.version == 1 else head.record.pop("outcome", None)
    if not isinstance(outcome, str) or outcome not in OUTCOMES:
        raise FormatError(
            f"is not {ABOUT}: unknown outcome {shown(outcome)}", path=head.file, hint=f"known: {', '.join(OUTCOMES)}"
        )
    return FleetFolder(*read_results(head, OUTCOMES[outcome]), outcome)
