"""Splits the blocks of a model into stages, and assigns stages to pipeline ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.make.generate.blocks.recompute import is_layer
from etude.make.generate.blocks.shard import Block
from etude.make.generate.directives.apply import placed
from etude.make.generate.directives.read import read_directives
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.by_name import schedule
from etude.make.generate.schedules.pipeline import PipelineSchedule
from etude.make.generate.train.sharing import tied_copies
from etude.make.generate.train.stage import StageLayout


def split(count: int, stages: int) -> list[int]:
    """Number of layers of each stage, as even as possible. Remaining layers go to the middle stages first, then to the
    last, then to the first."""
    sizes = [count // stages] * stages
    order = [*range(1, stages - 1), stages - 1, 0] if stages > 1 else [0]
    for stage in order[: count % stages]:
        sizes[stage] += 1
    return sizes


def layout_of(plan: Plan, blocks: list[Block]) -> StageLayout:
    """Splits blocks into stages, and assigns stages to pipeline ranks. Raises UsageError if they do not fit the
    schedule."""
    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.micro_batches, steps=plan.steps)
    counted = np.array([_counted(block) for block in blocks])
    layers = int(counted.sum())
    if plan.directives:
        plan = placed(plan, read_directives(plan.directives), layers, made.stages)
    if plan.stages and (len(plan.stages) != made.stages or sum(plan.stages) != layers):
        problem = f"stages {list(plan.stages)}: the schedule has {made.stages} stages, the model {layers} layers"
        raise UsageError(problem, hint=f"{made.stages} numbers that add up to {layers}")
    if not plan.stages and layers < made.stages and made.stages > 1:
        raise UsageError(
            f"{layers} layers cannot fill {made.stages} pipeline stages", hint="use fewer stages or chunks"
        )
    stages, at = [], 0
    for number, end in enumerate(_ends(counted, list(plan.stages) or split(layers, made.stages))):
        if end == at:
            raise UsageError(f"stages {list(plan.stages)}: stage {number} has no layers", hint="give it a layer")
        stages.append(tuple(blocks[at:end]))
        at = end
    back = next((n for n, stage in enumerate(stages) if any(b.goes_back for b in stage)), len(stages))
    if plan.directives and made.window:
        problem = f"directives rewrite a step and its update, but in `{made.name}` passes of several windows overlap"
        raise UsageError(problem, hint="--schedule 1f1b, or async with `flush`")
    return StageLayout(made.back_to(back), _homes(made), *tied_copies(stages, made.held), goes_back=back)


def _ends(counted: NDArray[np.bool_], sizes: Sequence[int]) -> list[int]:
    """Index after the last block of each stage. Blocks that are not layers go to the first stage at the start of the
    model and to the last stage at its end."""
    before = np.append(0, np.cumsum(counted))
    found, at = [], 0
    for number, size in enumerate(sizes):
        most, last = before[at] + size, number + 1 == len(sizes)
        while at < len(counted) and (before[at + 1] <= most if counted[at] else last or before[at] == 0):
            at += 1
        found.append(at)
    return found


@lru_cache(maxsize=256)
def _homes(made: PipelineSchedule) -> dict[tuple[int, int], int]:
    """(stage, micro-batch) -> pipeline rank that works on it."""
    found: dict[tuple[int, int], int] = {}
    for rank in range(made.ranks):
        rows = made.rows(rank)
        works = made.works[rows]
        for s, m in zip(made.stage[rows][works].tolist(), made.micro_batch[rows][works].tolist(), strict=True):
            found[s, m] = rank
    return found


def _counted(block: Block) -> bool:
    """Whether a block is a layer that any stage may have."""
    return is_layer(block) and not block.last
