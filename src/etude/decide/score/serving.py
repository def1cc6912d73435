"""Steady serving: rows of ML.ENERGY's leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.cost.estimates import Estimate
from etude.decide.score.kind import (
    CsvRow,
    Figures,
    Item,
    PredictedRow,
    ScoreKind,
    ScoreRequest,
    check_profile,
    check_system,
    table_rows,
)
from etude.decide.score.source import ScoreFile
from etude.machine import System, open_system
from etude.steps.measured import gpu_system
from etude.world.serve.deployment import device_name
from etude.world.serve.estimates import STEADY, load_of, served_estimate, serving_case
from etude.world.serve.measured import published
from etude.world.serve.measured.rows import PRECISIONS, STACK, assumed_of, predicted_row, read_rows
from etude.world.serve.measured.systems import SYSTEMS
from etude.world.serve.stacks import serving_stack

AT_ONCE: Final = ("avg_batch_size", "max_batch", "concurrency")
"""Columns that have the requests at once."""
FIGURES: Final = {
    "median_itl_ms": ("itl_s", 1e-3),
    "output_throughput_tokens_per_sec": ("tokens_per_s", 1.0),
    "avg_power_watts": ("power_w", 1.0),
    "energy_per_token_joules": ("energy_j_per_token", 1.0),
}
"""Column of a leaderboard -> figure, and its unit in that of the figure."""

PASSES: Final = ("itl_s", "tpot_s")
"""Figures that are as long as a pass."""


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    if published.is_published(item.value):
        found = published.predicted_row(item.value, system=asked.system, stack=asked.stack, ops=asked.ops)
        return PredictedRow(
            measured=found.measured,
            predicted=found.predicted,
            assumed=found.assumed,
            estimates=_published_estimates(item.value, found.predicted, asked),
        )
    stack = asked.stack or STACK
    measured, predicted = predicted_row(item.value, stack)
    assumed = [said for said in assumed_of(item.value, stack) if not (asked.stack and said == f"stack {stack}")]
    named = _named(predicted)
    row = item.value | {"weight_precision": PRECISIONS[item.value["weight_precision"]]}  # that of products
    estimates = _estimates(row, named, open_system(SYSTEMS[row["gpu"]]), load=STEADY, gpus="num_gpus")
    return PredictedRow(measured=_named(measured), predicted=named, assumed=assumed, estimates=estimates)


def _published_estimates(row: CsvRow, predicted: Figures, asked: ScoreRequest) -> dict[str, Estimate]:
    system = open_system(asked.system) if asked.system else gpu_system(row["gpu_type"])
    load = load_of(row["load"], row.get("request_rate", ""))
    return _estimates(row, predicted, system, load=load, gpus="gpus", experts=published.has_experts(row))


def _estimates(
    row: CsvRow, predicted: Figures, system: System, *, load: str, gpus: str, experts: bool | None = None
) -> dict[str, Estimate]:
    """`gpus`: the column with their number; `experts`: None where the column of architectures says it."""
    at_once = next((row[name] for name in AT_ONCE if row.get(name)), "") or 0
    about: dict[str, Any] = {
        "batch": float(at_once),
        "device": system.device.name,
        "experts": row.get("architecture") == "MoE" if experts is None else experts,
        "load": load,
        "precision": row.get("weight_precision", ""),
        "gpus": max(int(float(row.get(gpus) or 1)), 1),
        "named": row.get("engine", "vllm").lower().startswith("vllm"),
    }
    ranks = about["gpus"] // max(int(float(row.get("dp") or 1)), 1)
    host = {
        "device": device_name(system),
        "ranks": ranks,
        "pass_s": next((predicted[name] for name in PASSES if name in predicted), 0.0),
    }
    return {name: served_estimate(value, serving_case(name, **about), **host) for name, value in predicted.items()}


def _named(values: dict[str, float]) -> dict[str, float]:
    return {FIGURES[name][0]: value * FIGURES[name][1] for name, value in values.items()}


def check_serving(asked: ScoreRequest) -> None:
    check_system(asked)
    check_profile(asked)
    serving_stack(asked.stack or STACK, "")


def _holds(source: ScoreFile) -> bool:
    return source.has("model", "gpu", "num_gpus", "avg_batch_size") or published.is_published(source.columns)


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    found = table_rows(path, asked)
    if found and not published.is_published(found[0].value):
        if asked.system or asked.ops:
            raise UsageError(
                "--system and --ops are not read by rows of a leaderboard: they name their GPUs", hint="leave them out"
            )
        read_rows(path)  # the columns that it needs
    return found


KIND: Final = ScoreKind(
    name="serving",
    doc="CSV of served models: model, gpu, num_gpus, avg_batch_size, ...; or model, gpu_type, load, input_tokens, ...",
    holds=_holds,
    rows=_rows,
    predict=predict,
    reads=frozenset({"system", "stack", "ops"}),
    check=check_serving,
)
