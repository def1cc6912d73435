"""Scores of a plan: columns of its row, which direction is better, its best possible value, and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.units import parse_bytes, parse_time


@dataclass(frozen=True, slots=True)
class PlanScore:
    column: str
    sign: int
    """1 if less is better, -1 if more is."""
    doc: str


SCORES: Final = {
    "step": PlanScore("step_time_ns", 1, "time of a step"),
    "tokens": PlanScore("tokens_per_s_per_gpu", -1, "tokens per second per GPU"),
    "mfu": PlanScore("mfu", -1, "model FLOP/s utilisation"),
    "memory": PlanScore("memory_peak_bytes", 1, "memory of the fullest GPU"),
    "cost": PlanScore("cost_usd", 1, "dollars per step, by the price of its devices"),
    "energy": PlanScore("energy_j", 1, "joules per step"),
}


def read_scores(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in SCORES:
            raise UsageError(f"unknown score `{name}`", where="score", hint=f"known: {', '.join(SCORES)}")
    if len(set(names)) < len(names):
        raise UsageError("a score appears twice", where="score")
    return list(names) or ["step"]


def read_limits(given: Mapping[str, Any]) -> dict[str, float]:
    """Score -> its maximum, or its minimum if more is better. Bytes and times may have units."""
    found: dict[str, float] = {}
    for name, value in given.items():
        if name not in SCORES:
            raise UsageError(f"unknown limit `{name}`", where="limit", hint=f"known: {', '.join(SCORES)}")
        found[name] = _number(name, value)
    return found


def _number(name: str, value: Any) -> float:
    if isinstance(value, str) and name == "memory":
        return float(parse_bytes(value))
    if isinstance(value, str) and name == "step":
        return float(parse_time(value))
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if isinstance(value, bool) or not found >= 0:
        raise UsageError(f"{name}: `{value}` is not a limit", where="limit", hint="memory=80GB, step=2s, cost=0.5")
    return found


def breaks(row: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    """The first limit that a row, or a plan's best possible scores, violate; empty if none."""
    for name, limit in limits.items():
        score = SCORES[name]
        value = row.get(score.column)
        if value is not None and score.sign * value > score.sign * limit:
            return name
    return ""


@dataclass(frozen=True, slots=True)
class AtBest:
    """Best possible scores of a plan: from its shortest step, and from its memory if known."""

    gpus: int
    tokens: int
    flops: float
    """FLOPs of the model per step; 0 if utilisation is not requested."""
    peak_flop_per_s: float
    dollars_per_h: float | None

    def row(self, step_ns: float, memory_bytes: int | None) -> dict[str, Any]:
        seconds = step_ns / 1e9
        fast = seconds > 0
        return {
            "step_time_ns": step_ns,
            "tokens_per_s_per_gpu": self.tokens / self.gpus / seconds if fast else float("inf"),
            "mfu": self.flops / seconds / self.peak_flop_per_s if fast and self.flops else float("inf"),
            "memory_peak_bytes": memory_bytes or 0,
            "cost_usd": self.dollars_per_h * seconds / 3600 if self.dollars_per_h is not None else 0.0,
            "energy_j": 0.0,
        }
