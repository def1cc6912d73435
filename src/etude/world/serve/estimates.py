"""What served requests, images and their energy are like, for the ranges of their figures."""

from __future__ import annotations

from typing import Final

from etude.cost.estimates import EstimateCase

FIGURES: Final = {
    "ttft_s": "time to first token",
    "ttft_p99_s": "99th percentile of the time to first token",
    "tpot_s": "time of a further token",
    "tpot_p99_s": "99th percentile of the time of a further token",
    "itl_s": "time between tokens",
    "tokens_per_s": "tokens per second",
    "latency_s": "time of a request",
    "power_w": "power of serving",
    "energy_j_per_token": "energy of a token",
}
"""Figure -> what errors are kept of."""
STEADY, STATIC, CLOSED, AT_ONCE, RATE = "steady state", "static batch", "closed loop", "all at once", "at a rate"
"""How requests arrive."""


def serving_case(
    figure: str,
    device: str,
    *,
    experts: bool,
    load: str,
    precision: str = "bf16",
    gpus: int = 1,
    named: bool = True,
    batch: float = 0.0,
) -> EstimateCase:
    """`named`: the engine is one whose stack is known; `batch`: requests at once, on all GPUs."""
    return EstimateCase(
        figure=FIGURES[figure],
        kind=f"{'experts' if experts else 'dense'}, {load}",
        device=device,
        precision=next((one for one in ("fp4", "fp8") if one in precision.lower()), "bf16"),
        named=named,
        gpus=gpus,
        batch=batch / gpus,
    )


def load_of(text: str, rate: str = "") -> str:
    """Of the words of a table."""
    known = next((one for one in (STATIC, CLOSED) if one in text), "")
    return known or (RATE if rate else AT_ONCE)
