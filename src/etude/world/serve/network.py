"""Collectives of engines: communication of tensor-parallel ranks and data-parallel groups in a pass."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost.ops import DTYPE_BYTES
from etude.machine.system import Level, System
from etude.make.generate.model import Model

FAST: Final = 100e9
"""Bytes per second of links over which engines let ranks read each other's memory, instead of NCCL's rings."""
BARRIER_NS: Final = 5_000
"""A kernel in which all ranks wait for one another before they read."""


def level_of(system: System, ranks: int) -> Level:
    """The innermost level that holds this many ranks, or the outermost."""
    held = accumulate((level.size for level in system.levels), mul)
    return next((one for one, size in zip(system.levels, held, strict=True) if size >= ranks), system.levels[-1])


def all_reduce_ns(level: Level, ranks: int, size_bytes: Any) -> Any:
    """Time among ranks on one level. Over fast links each rank reads all of the others at once, or its part of all and
    then all parts (vLLM's custom all-reduce, one shot or two); over others it is a ring."""
    size = np.asarray(size_bytes, np.float64)
    if ranks < 2:
        return np.zeros_like(size)
    if level.bandwidth_bytes_per_s < FAST:
        return 2 * (ranks - 1) * (level.latency_ns + size / ranks * 1e9 / level.bandwidth_bytes_per_s)
    byte_ns = 1e9 / (level.bandwidth_bytes_per_s * level.efficiency)
    once = BARRIER_NS + (ranks - 1) * size * byte_ns
    return np.minimum(once, 2 * BARRIER_NS + 2 * (ranks - 1) / ranks * size * byte_ns)


def token_bytes(model: Model, tokens: Any) -> Any:
    """Bytes that layers pass on for this many tokens."""
    return np.asarray(tokens, np.float64) * model.hidden * DTYPE_BYTES["bf16"]


def reduced_ns(model: Model, system: System, ranks: int, tokens: Any, times: Any) -> Any:
    """`times` all-reduces of the tokens of a pass, over tensor-parallel ranks."""
    return times * all_reduce_ns(system.levels[0], ranks, token_bytes(model, tokens))


def gathered_ns(model: Model, system: System, groups: int, tokens: Any) -> Any:
    """Tokens of all data-parallel groups are gathered for the experts of each layer, and their sums scattered."""
    level = system.levels[0]
    sent = level.latency_ns + token_bytes(model, tokens) * 1e9 / level.bandwidth_bytes_per_s
    return model.layers * 2 * (groups - 1) * sent


def stage_shares(model: Model, stages: int) -> tuple[float, ...]:
    """Part of the layers of each stage. Those that are left over go to the stages before the last, which has the
    logits as well, as in vLLM."""
    if stages > model.layers:
        raise UsageError(f"{stages} stages of {model.layers} layers", hint=f"--pp {model.layers} at most")
    each, left = divmod(model.layers, stages)
    extra = range(stages - 1 - left, stages - 1)
    return tuple((each + (stage in extra)) / model.layers for stage in range(stages))


def staged_ns(model: Model, system: System, tp: int, stages: int, tokens: Any) -> Any:
    """What the tokens of a pass take between all stages: each rank of a stage sends its part of them to that of the
    next, over the innermost level that holds all stages."""
    level = level_of(system, tp * stages)
    return (stages - 1) * (level.latency_ns + token_bytes(model, tokens) / tp * 1e9 / level.bandwidth_bytes_per_s)
