"""MakeOptions: the job that is made of what was learned."""

from __future__ import annotations

from dataclasses import dataclass

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.model.job import MAX_WORLD


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeOptions:
    """A job of what was learned; a program without steps is repeated as a whole."""

    ranks: int = figure("count", "number of ranks, a multiple or a part of those learned from; 0: the same number", 0)
    steps: int = figure("count", "number of steps; 0: as many as were learned from", 0)
    depth: float = figure("number", "factor of the number of layers or micro-batches", 1.0)
    compute: float = figure("number", "factor of compute: FLOPs, bytes and times", 1.0)
    traffic: float = figure("number", "factor of the bytes that are sent", 1.0)
    spread: float = figure(
        "number", "how much ranks and steps differ: 1 is as learned, 0 is not at all", 1.0, zero=True
    )
    seed: int = figure("count", "random seed; the same seed gives the same bytes", 0)
    name: str = figure("text", "name of the job", "learned", like="mine", panel="Output")

    def __post_init__(self) -> None:
        if self.ranks > MAX_WORLD or self.ranks < 0 or self.steps < 0:
            raise UsageError(f"{self.ranks} ranks and {self.steps} steps", hint="use at least one of each")
        if not (0.0 < self.depth <= 1e4 and 0.0 < self.compute <= 1e9 and 0.0 < self.traffic <= 1e9):
            raise UsageError("depth and factors must be above 0")
        if not 0.0 <= self.spread <= 10.0:
            raise UsageError(f"a spread of {self.spread} is not valid", hint="0: all equal, 1: as learned, at most 10")
