"""Contention: concurrent operators on one device, and operators on a device with cores held."""

from __future__ import annotations

from functools import cache
from typing import Final

from etude.base.errors import UsageError
from etude.cost.contention.rows import Launches, is_contention, predicted_row
from etude.decide.score.devices import device_of
from etude.decide.score.kind import Item, PredictedRow, ScoreKind, ScoreRequest, check_device, table_rows

DEVICE: Final = "h200"


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    row = item.value
    found = predicted_row(device_of(asked.system or DEVICE), row, int(item.label), launches=_seen(asked.system))
    if not found["covered"]:
        raise UsageError("the background ended before the operator")
    if not found["measured"]:
        raise UsageError("no slowdown was measured")
    alone_s = float(row["op_alone_ns"]) / 1e9
    assumed = [] if asked.system else [f"device {DEVICE}: the row names none"]
    assumed += ["times alone as measured", "operands in bf16", "tiles and blocks of the device's usual kernels"]
    return PredictedRow(
        measured={"time_s": found["measured"] * alone_s},
        predicted={"time_s": found["predicted"] * alone_s},
        assumed=assumed,
    )


@cache
def _seen(system: str) -> Launches:
    """Launches of operators of the rows so far."""
    return {}


KIND: Final = ScoreKind(
    name="contention",
    doc="CSV of operators that share a device: op, background, op_alone_ns, ...; or op, holder, sms_held, ...",
    holds=lambda source: is_contention(source.columns),
    rows=table_rows,
    predict=predict,
    reads=frozenset({"system"}),
    check=check_device,
)
