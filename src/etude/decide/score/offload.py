"""Offload: copies over the link to a host, files, checkpoints, and layers streamed from the host."""

from __future__ import annotations

from functools import cache
from typing import Final

from etude.base.errors import UsageError
from etude.cost.tiers.measured import is_offload, offload_row
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, check_system, table_rows
from etude.machine import System, open_system

SYSTEM: Final = "h200-server"
FIGURES: Final = {"stall": "stall_s", "serial": "serial_s", "transfer": "transfer_s"}
"""Times besides that of the whole row, which is `time_s`."""


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    times = offload_row(_system(asked.system or SYSTEM), item.value, f"row {item.label}")
    if not times:
        raise UsageError("copies from one buffer of the host to another are not predicted")
    measured = {FIGURES.get(what, "time_s"): time_ns / 1e9 for what, time_ns, _ in times if time_ns is not None}
    predicted = {FIGURES.get(what, "time_s"): time_ns / 1e9 for what, _, time_ns in times}
    assumed = [] if asked.system else [f"system {SYSTEM}: the row names none"]
    assumed += _unsaid(item.value)
    return PredictedRow(measured=measured, predicted=predicted, assumed=assumed)


def _unsaid(row: CsvRow) -> list[str]:
    """What the columns of a row leave open."""
    if "layer_bytes" in row:
        return ["layers compute equally long, as long as measured together", "two buffers, or one"]
    if row.get("mode") == "buffered":
        return ["a buffered file of the disk is in the page cache"]
    if "load" in row.get("method", ""):
        return ["16 threads read the file"]
    return ["the background writes to the page cache"] if "background" in row.get("method", "") else []


@cache
def _system(name: str) -> System:
    return open_system(name)


KIND: Final = ScoreKind(
    name="offload",
    doc="CSV of copies, files, checkpoints or streamed layers: direction, memory, bytes, ns_median; ...",
    holds=lambda source: is_offload(source.columns),
    rows=table_rows,
    predict=predict,
    reads=frozenset({"system"}),
    check=check_system,
)
