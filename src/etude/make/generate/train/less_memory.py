"""Memory of a generated job with some of it moved off its ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from etude.make.generate.ranks import RankGrid
from etude.make.generate.schedules.pipeline import in_flight
from etude.make.generate.train.job import Generated
from etude.make.generate.train.memory import Memory

_FIELD = {"weights": "weights", "experts": "weights", "optimizer": "optimizer", "activations": "activations"}
"""What is moved -> the field of Memory that contained it; anything else was never counted."""


def with_less(found: Generated, freed: Iterable[tuple[str, NDArray[np.integer], int]]) -> Generated:
    """The job without the (what, ranks, bytes) in `freed`; activations are given for each micro-batch in flight. The
    memory of a pipeline rank is that of its fullest rank."""
    if found.rounds:
        return found
    less = {part: np.zeros(found.plan.gpus, np.int64) for part in ("weights", "optimizer", "activations")}
    for what, ranks, size_bytes in freed:
        if what in _FIELD:
            less[_FIELD[what]][ranks] += size_bytes
    stage, flying = RankGrid.of(found.plan).at["pp"], in_flight(found.layout.schedule)
    memory = []
    for number, one in enumerate(found.memory):
        least = {part: int(sizes[stage == number].min()) for part, sizes in less.items()}
        memory.append(_less(one, least, int(flying[number])))
    return replace(found, memory=tuple(memory))


def _less(memory: Memory, least: dict[str, int], under_way: int) -> Memory:
    most = memory.activation_bytes
    part = min(1.0, least["activations"] * max(under_way, 1) / most) if most else 0.0
    return replace(
        memory,
        weights=max(memory.weights - least["weights"], 0),
        optimizer=max(memory.optimizer - least["optimizer"], 0),
        activations=memory.activations - np.rint(memory.activations * part).astype(np.int64),
    )
