"""Energy: rows of an energy counter, of ops, passes and steps that ran again and again on one device."""

from __future__ import annotations

from functools import cache
from typing import Final

from etude.base.errors import UsageError
from etude.cost.estimates import EstimateCase, estimate_of
from etude.decide.score.kind import Item, PredictedRow, ScoreKind, ScoreRequest, check_system, table_rows
from etude.decide.score.source import ScoreFile
from etude.machine import System, open_system
from etude.steps.energy.rows import energy_row

SYSTEM: Final = "dgx-h200"
FIGURES: Final = {
    "mean_w": ("power_w", 1.0),
    "energy_j_per_call": ("energy_j_per_call", 1.0),
    "call_ns": ("time_s", 1e-9),
}
"""Column -> figure, and its unit in that of the figure."""
ESTIMATED: Final = {"power_w": "power", "energy_j_per_call": "energy of a call", "time_s": "time of a call"}
PASSES: Final = ("decode", "prefill", "train_step")


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    row = item.value
    found = energy_row(int(item.label), row, _system(asked.system or SYSTEM))
    if "refused" in found:
        raise UsageError(found["refused"])
    assumed = [] if asked.system else [f"system {SYSTEM}: the row names no GPU"]
    assumed += {
        "decode": ["FlashAttention-2, in a CUDA graph"],
        "prefill": ["FlashAttention-2, the host takes 19 us for an op"],
        "train_step": ["stack eager: the row names none"],
    }.get(row["kind"], [])
    assumed += ["a context of 1,024"] if row["kind"] == "decode" and "context" not in row.get("detail", "") else []
    assumed += [] if row.get("clock_mhz") or row.get("cap_w") else ["nominal clock, no power cap"]
    predicted = _named(found["predicted"])
    device = _system(asked.system or SYSTEM).device.name
    kind = row["kind"] if row["kind"] in PASSES else "operators"
    estimates = {
        name: estimate_of(value, EstimateCase(figure=ESTIMATED[name], kind=kind, device=device))
        for name, value in predicted.items()
    }
    return PredictedRow(measured=_named(found["measured"]), predicted=predicted, assumed=assumed, estimates=estimates)


@cache
def _system(name: str) -> System:
    return open_system(name)


def _named(values: dict[str, float]) -> dict[str, float]:
    return {FIGURES[name][0]: value * FIGURES[name][1] for name, value in values.items()}


def _holds(source: ScoreFile) -> bool:
    return source.has("name", "kind") and bool(source.columns & FIGURES.keys())


KIND: Final = ScoreKind(
    name="energy",
    doc="CSV of an energy counter: name, kind, mean_w, energy_j_per_call, call_ns",
    holds=_holds,
    rows=table_rows,
    predict=predict,
    reads=frozenset({"system"}),
    check=check_system,
)
