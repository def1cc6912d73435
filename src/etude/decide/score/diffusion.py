"""Images and videos: rows of ML.ENERGY's leaderboard of diffusion models."""

from __future__ import annotations

from typing import Final

from etude.cost.estimates import EstimateCase, estimate_of
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, table_rows
from etude.machine import open_system
from etude.world.serve.measured.diffusion import assumed_of
from etude.world.serve.measured.rows import LATENCY, predicted_row
from etude.world.serve.measured.systems import SYSTEMS

ONE, SEVERAL = "one GPU", "several GPUs"
"""Kinds of cases."""


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    measured, predicted = predicted_row(item.value)
    return PredictedRow(
        measured={"latency_s": measured[LATENCY]},
        predicted={"latency_s": predicted[LATENCY]},
        assumed=assumed_of(item.value),
        estimates={"latency_s": estimate_of(predicted[LATENCY], _case(item.value))},
    )


def _case(row: CsvRow) -> EstimateCase:
    gpus = max(int(float(row.get("num_gpus") or 1)), 1)
    return EstimateCase(
        figure="time of images and videos",
        kind=ONE if gpus == 1 else SEVERAL,
        device=open_system(SYSTEMS[row["gpu"]]).device.name,
        gpus=gpus,
    )


KIND: Final = ScoreKind(
    name="diffusion",
    doc="CSV of images or videos: model, gpu, num_gpus, batch_size, inference_steps, batch_latency_s, ...",
    holds=lambda source: source.has("model", "gpu", "num_gpus", "inference_steps", LATENCY),
    rows=table_rows,
    predict=predict,
)
