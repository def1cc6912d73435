"""The embedded example: a training step of a small transformer on 8 ranks, 4-way data, 2-way tensor parallel.

Sizes are worked out from the model below; there is no randomness, so the demo is the same everywhere.
"""

from __future__ import annotations

from etude.model.build import TraceBuilder, job_of
from etude.model.fold import fold
from etude.model.job import Job
from etude.model.schema import Collective, Kind

LAYERS, HIDDEN, SEQUENCE, DATA_PARALLEL, TENSOR_PARALLEL = 4, 1024, 512, 4, 2
_BYTES = 2  # bf16
_MATMUL_NS_PER_MFLOP = 5


def training_step() -> Job:
    """Forward, backward with gradient all-reduces that overlap it, optimizer."""
    world = DATA_PARALLEL * TENSOR_PARALLEL
    groups: dict[str, list[int]] = {}
    for rank in range(world):
        groups.setdefault(f"tp{rank // TENSOR_PARALLEL}", []).append(rank)
        groups.setdefault(f"dp{rank % TENSOR_PARALLEL}", []).append(rank)
    return fold(job_of("step", [_rank(rank) for rank in range(world)], groups))


def _rank(rank: int) -> TraceBuilder:
    b = TraceBuilder()
    tp, dp = f"tp{rank // TENSOR_PARALLEL}", f"dp{rank % TENSOR_PARALLEL}"
    activation = SEQUENCE * HIDDEN * _BYTES
    weight = 12 * HIDDEN * HIDDEN // TENSOR_PARALLEL
    flops = 2 * SEQUENCE * weight
    last: list[int] = []
    for layer in range(LAYERS):
        last = [_compute(b, f"layer{layer}.forward", "forward", flops, last)]
        last = [_reduce(b, f"layer{layer}.sum", activation, tp, last, stream=7)]
    gradients = []
    for layer in reversed(range(LAYERS)):
        last = [_compute(b, f"layer{layer}.backward", "backward", 2 * flops, last)]
        gradients.append(_reduce(b, f"layer{layer}.gradients", weight * _BYTES, dp, last, stream=9))
        last = [_reduce(b, f"layer{layer}.input_sum", activation, tp, last, stream=7)]
    _compute(b, "optimizer", "optimizer", 10 * LAYERS * weight, gradients)
    return b


def _compute(b: TraceBuilder, name: str, phase: str, flops: int, after: list[int]) -> int:
    duration_ns = flops * _MATMUL_NS_PER_MFLOP // 1_000_000
    return b.add(
        Kind.COMP, name, data=after, duration_ns=duration_ns, flops=flops, cpu=0, stream=1, phase=phase, step=0
    )


def _reduce(b: TraceBuilder, name: str, size: int, group: str, after: list[int], *, stream: int) -> int:
    return b.add(
        Kind.COLL,
        name,
        data=after,
        collective=Collective.ALL_REDUCE,
        in_bytes=size,
        group=group,
        cpu=0,
        stream=stream,
        step=0,
    )
