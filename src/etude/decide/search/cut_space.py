"""The space of cuts of a chain, at given rates of its links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.decide.search.cuts import Chain, Cut, CutScore, best_cut
from etude.decide.search.found import Found, Row
from etude.decide.search.links import NEVER
from etude.decide.search.solver import Answer, Method, Space, Trials, every

ROWS: Final = 1000
"""Most rows of all cuts that are kept."""
LARGE: Final = "too large for the memory"
LATE: Final = "late"
COLUMNS: Final = {"latency": "latency_ms", "energy": "energy_j", "bottleneck": "bottleneck_ms"}
"""Score -> its column."""


class CutSpace(Space[Cut]):
    rest = LARGE

    def __init__(self, chain: Chain, rates: Sequence[int], score: str, deadline_ns: int, where: str) -> None:
        self.chain, self.rates, self.score, self.deadline_ns, self.where = chain, rates, score, deadline_ns, where
        self.size, self.methods, self.scores = chain.space, CUT_METHODS, {"latency_ms": 1, "energy_j": 1}

    def at(self, rates: Sequence[int]) -> CutSpace:
        """The same with other rates."""
        return CutSpace(self.chain, rates, self.score, self.deadline_ns, self.where)

    def candidates(self) -> Iterator[Cut]:
        """Every cut that fits in the memories."""
        chain = self.chain
        for cut in combinations_with_replacement(range(len(chain.layers) + 1), len(chain.links)):
            if all(chain.fits[d, a, b] for d, (a, b) in enumerate(chain.stages(cut))):
                yield cut

    def rows(self, some: Sequence[Cut], limit: float) -> list[Answer]:
        return [self.row(cut) for cut in some]

    def row(self, cut: Cut) -> Answer:
        score = self.chain.score(cut, self.rates)
        is_late = score.latency_ns >= NEVER or (self.deadline_ns and score.latency_ns > self.deadline_ns)
        return LATE if is_late else row_of(self.chain, cut, score)

    def rank(self, row: Row) -> tuple[float, ...]:
        return (row[COLUMNS[self.score]],)

    def found(self, trials: Trials[Cut]) -> Found:
        if not trials.rows:
            raise self.nothing()
        rows, layers, ends_ns = [row for _, row in trials.ranked()][:ROWS], self.chain.layers, self.chain.ends_ns
        told: list[dict[str, Any]] = [
            {"name": name, "flops": int(layers.flops[i]), "weight_bytes": int(layers.weight_bytes[i]),
             "in_bytes": int(layers.in_bytes[i]), "out_bytes": int(layers.out_bytes[i]),
             "time_ms": [float(ends[i + 1] - ends[i]) / 1e6 for ends in ends_ns]}
            for i, name in enumerate(layers.name)
        ]  # fmt: skip
        return trials.found(rows=rows, more={"layers": told})

    def nothing(self) -> UsageError:
        hint = "limits: {memory: false}, or a later deadline"
        return UsageError("no cut is within the limits", where=self.where, hint=hint)


def dynamic_program(trials: Trials[Cut], draw: np.random.Generator) -> None:
    """The best cut alone: exact, without looking at the others."""
    space = trials.space
    assert isinstance(space, CutSpace)
    space.left_out = {LARGE: space.size - space.chain.fitting()}
    space.rest = "not better than the best bound"
    cut = best_cut(space.chain, space.rates, space.score, space.deadline_ns)
    trials.ask([] if cut is None else [cut])


CUT_METHODS: Final[Mapping[str, Method[Cut]]] = {"dp": dynamic_program, "all": every}


def row_of(chain: Chain, cut: Cut, score: CutScore) -> Row:
    """A cut and its scores, as a row of the table."""
    found: Row = {"cut": list(cut), "latency_ms": score.latency_ns / 1e6, "energy_j": score.energy_j,
                  "bottleneck_ms": score.bottleneck_ns / 1e6}  # fmt: skip
    names = chain.layers.name
    for d, (device, (a, b)) in enumerate(zip(chain.devices, chain.stages(cut), strict=True)):
        key = device.name if device.name not in found else f"{device.name} ({d})"
        found[key] = "-" if a == b else names[a] if b == a + 1 else f"{names[a]} ... {names[b - 1]}"
    return found
