"""What served requests, images and their energy are like, for the ranges of their figures."""

from __future__ import annotations

from typing import Final

from etude.cost.estimates import Estimate, EstimateCase, estimate_of, no_evidence
from etude.world.serve.stacks import serving_stack

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
HOSTS: Final = "vllm-0.11"
"""The engine that was measured on several hosts of each device."""


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
    """`named`: the engine is one whose stack is known; `batch`: requests at once, on all GPUs. A mean time between
    tokens is that of a further token; a leaderboard has medians of its own."""
    return EstimateCase(
        figure=FIGURES["tpot_s" if figure == "itl_s" and load != STEADY else figure],
        kind=f"{'experts' if experts else 'dense'}, {load}",
        device=device,
        precision=next((one for one in ("fp4", "fp8") if one in precision.lower()), "bf16"),
        named=named,
        gpus=gpus,
        batch=batch / gpus,
    )


def served_estimate(value: float, case: EstimateCase, *, device: str, ranks: int, pass_s: float) -> Estimate:
    """With the range of such cases; none of passes so short that the host of a replica of one rank, whose one process
    both schedules and launches, may decide: hosts that were measured differ. `device`: its name in the catalogue."""
    least_ns = serving_stack(HOSTS, device).unsure_ns if device else 0.0
    if ranks == 1 and 0.0 < pass_s * 1e9 < least_ns:
        short = f"of passes below {least_ns / 1e6:.3g} ms of one rank on {case.device}"
        return no_evidence(value, f"for the {case.figure} {short}: hosts that were measured differ")
    return estimate_of(value, case)


def load_of(text: str, rate: str = "") -> str:
    """Of the words of a table."""
    known = next((one for one in (STATIC, CLOSED) if one in text), "")
    return known or (RATE if rate else AT_ONCE)
