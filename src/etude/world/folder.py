"""An outcome as a folder: `outcome.json`, the record of `etude world run --json`, and a Parquet file for each table.

| table | a row for |
|---|---|
| holdings | each change of the devices that a holder has |
| power | each minute, where the power has a cap |
| NAME_requests, NAME_states, NAME_tasks, NAME_jobs | what the workload NAME did |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from etude.base.results import ResultSchema, TableSchema, read_head, read_results, write_results
from etude.base.shapes import ANY, COUNT, NUMBER, POSITIVE, SECONDS, TEXT, keys, several

RECORD: Final = "outcome.json"
NAME: Final = "etude outcome"
VERSION: Final = 2
ABOUT: Final = "an outcome of a world"
HINT: Final = "`etude world run FILE -o FOLDER` writes one"
PARTS: Final = keys(total=COUNT, parts=keys(keys(COUNT)), regions=keys(ANY).if_there())
WHOLE_RECORD: Final = keys(
    horizon_s=POSITIVE,
    workloads=keys(keys(ANY)),
    events=several(keys(ANY)),
    crossings=COUNT,
    loop_returns=COUNT.if_there(),
    account=keys(device_ns=PARTS, energy_mj=PARTS.or_null(), cost=keys(ANY).or_null(), carbon_g=keys(ANY).or_null()),
    power=keys(ANY).if_there(),
)
HOLDINGS: Final = TableSchema({"time_s": SECONDS, "holder": TEXT, "devices": COUNT}, rows=1)
POWER: Final = TableSchema(
    {"time_s": SECONDS, "base_w": NUMBER, "serving_w": NUMBER, "training_w": NUMBER, "speed": NUMBER}
)


def _adds_up(record: Mapping[str, Any]) -> bool:
    found = record["account"]["device_ns"]
    return bool(found["total"] == sum(sum(its.values()) for its in found["parts"].values()))


def _schema(tables: Iterable[str]) -> ResultSchema:
    """The schema of a folder with these tables: those of workloads have any columns."""
    known = {name: TableSchema({}) for name in tables} | {"holdings": HOLDINGS}
    if "power" in known:
        known["power"] = POWER
    rules = (("the device time of its holders does not add up to that of the machine", _adds_up),)
    return ResultSchema(NAME, VERSION, ABOUT, WHOLE_RECORD, known, rules)


def write_outcome(
    record: Mapping[str, Any], tables: Mapping[str, pa.Table], path: str | PathLike[str], *, force: bool = False
) -> None:
    write_results(path, RECORD, _schema(tables), record, tables, force=force)


def is_outcome(path: str | PathLike[str]) -> bool:
    return (Path(path) / RECORD).is_file()


def read_outcome(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Record and tables of a folder, checked. Raises FormatError."""
    head = read_head(Path(path) / RECORD, {NAME: VERSION}, ABOUT, HINT)
    return read_results(head, _schema(head.rows))
