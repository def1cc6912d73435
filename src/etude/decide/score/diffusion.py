"""Images and videos: rows of ML.ENERGY's leaderboard of diffusion models."""

from __future__ import annotations

from typing import Final

from etude.decide.score.kind import Item, PredictedRow, ScoreKind, ScoreRequest, table_rows
from etude.world.serve.measured.diffusion import assumed_of
from etude.world.serve.measured.rows import LATENCY, predicted_row


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    measured, predicted = predicted_row(item.value)
    return PredictedRow(
        measured={"latency_s": measured[LATENCY]},
        predicted={"latency_s": predicted[LATENCY]},
        assumed=assumed_of(item.value),
    )


KIND: Final = ScoreKind(
    name="diffusion",
    doc="CSV of images or videos: model, gpu, num_gpus, batch_size, inference_steps, batch_latency_s, ...",
    holds=lambda source: source.has("model", "gpu", "num_gpus", "inference_steps", LATENCY),
    rows=table_rows,
    predict=predict,
)
