"""`async:d`: several pipelines at once over the same ranks, and no flush between updates.

Direction k begins at rank k·p/d and wraps around, so that each rank holds a stage of every direction. Micro-batch g
takes direction g mod d. A stage accepts at most `admit` micro-batches that have not returned, so that 2d are in
progress in total, and none that is 2d or more ahead of the oldest active one. Every `window` micro-batches the weights
are updated: forwards before and backwards after an update see different weights, which is the price.

With `flush` no window begins before the previous update; one direction with as many admitted as there are ranks is then
1F1B.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece, items
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, Step, build

F, B, R, U = Action.FORWARD, Action.BACKWARD, Action.REDUCE, Action.UPDATE
COST = {F: 1, B: 2}
"""Relative times used to find the order."""
_MOST = 9_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Async:
    """The options in `async:4,admit=2,window=8,flush`."""

    directions: int = 1
    admit: int = 2
    window: int = 0
    """0: two micro-batches of each direction."""
    flush: bool = False

    @property
    def per_update(self) -> int:
        return self.window or 2 * self.directions

    @classmethod
    def parse(cls, text: LinePiece | None) -> Async:
        if text is None:
            return cls()
        parts = text.split(",")
        found = items(parts, ("admit", "window"))
        given: dict[str, int | bool] = {key: value.count(most=_MOST) for key, value in found.values.items()}
        for word in found.bare:
            if word.text == "flush":
                given["flush"] = True
            elif word is parts[0]:
                given["directions"] = word.count(most=_MOST)
            else:
                raise word.wrong(f"`{word.text}` is neither `flush` nor KEY=VALUE")
        return cls(**given)  # type: ignore[arg-type]


def asynchronous(ranks: int, micro_batches: int, steps: int, options: Async) -> PipelineSchedule:
    """The order of all steps, or with `flush` that of one window, which is repeated."""
    where = "schedule `async`"
    if options.directions > ranks:
        raise UsageError(
            f"{options.directions} directions on {ranks} ranks: each must begin at its own rank", where=where
        )
    window = options.per_update
    if options.flush and micro_batches % window:
        problem = f"{micro_batches} micro-batches of a step are not a multiple of the window, {window}"
        hint = f"window={micro_batches}, use another --global-batch, or leave out flush"
        raise UsageError(problem, where=where, hint=hint)
    walk = _Walk(ranks, window if options.flush else micro_batches * steps, options)
    walk.run()
    d = options.directions
    held = [tuple(sorted((rank - walk.first(k)) % ranks for k in range(d))) for rank in range(ranks)]
    name = f"async:{d},admit={options.admit},window={window}{',flush' if options.flush else ''}"
    return build(name, ranks, walk.count, walk.orders, held, window=0 if options.flush else window)


class _Walk:
    """All ranks working, each on what is ready: forwards first, then the oldest micro-batch.

    A micro-batch at `at` is about to go forward through stage `at`, from p on backward through stage 2p - 1 - at.
    """

    def __init__(self, ranks: int, count: int, options: Async) -> None:
        self.ranks, self.count, self.options = ranks, count, options
        self.orders: list[list[Step]] = [[] for _ in range(ranks)]
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        """(micro-batch, at) that each rank could do next."""
        self._working: list[tuple[int, int] | None] = [None] * ranks
        self._inside = [[0] * ranks for _ in range(options.directions)]
        """Micro-batches of each direction that each stage has not returned."""
        self._finished = [False] * count
        self._oldest = 0
        """All micro-batches before this one are finished."""
        self._owed = [[0] * ranks for _ in range(-(-count // options.per_update))]
        """Backwards still missing for each window in each stage."""
        self._updates = 0
        for g in range(count):
            for stage in range(ranks):
                self._owed[g // options.per_update][stage] += 1

    def first(self, direction: int) -> int:
        """Rank of a direction's first stage."""
        return direction * self.ranks // self.options.directions

    def run(self) -> None:
        for g in range(min(self.options.directions, self.count)):
            self._arrive(g, 0)
        ends: list[tuple[int, int]] = []
        now = 0
        while self._oldest < self.count:
            for rank in range(self.ranks):
                took = self._start(rank) if self._working[rank] is None else 0
                if took:
                    heapq.heappush(ends, (now + took, rank))
            now = ends[0][0]
            reduced: list[tuple[int, int]] = []
            while ends and ends[0][0] == now:
                reduced += self._end(heapq.heappop(ends)[1])
            self._exchange(sorted(reduced))

    def _arrive(self, g: int, at: int) -> None:
        self._waiting[(self.first(g % self.options.directions) + self._stage(at)) % self.ranks].append((g, at))

    def _stage(self, at: int) -> int:
        return at if at < self.ranks else 2 * self.ranks - 1 - at

    def _start(self, rank: int) -> int:
        """Begins the first ready action; returns how long it takes, 0 if there is none."""
        able = [(at >= self.ranks, g, at) for g, at in self._waiting[rank] if self._may(g, at)]
        if not able:
            return 0
        back, g, at = min(able)
        self._waiting[rank].remove((g, at))
        self._working[rank] = g, at
        action = B if back else F
        self.orders[rank].append((action, self._stage(at), g, False))
        if not back:
            self._inside[g % self.options.directions][at] += 1
        if at == 0 and g + self.options.directions < self.count:
            self._arrive(g + self.options.directions, 0)
        return COST[action]

    def _may(self, g: int, at: int) -> bool:
        d, admit = self.options.directions, self.options.admit
        if at >= self.ranks:
            return True
        if at == 0 and g >= self._oldest + admit * d:
            return False
        return self._inside[g % d][at] < min(admit, self.ranks - at)

    def _end(self, rank: int) -> list[tuple[int, int]]:
        """Completes a rank's action; returns the (window, stage) whose last backward that was."""
        working = self._working[rank]
        assert working is not None
        self._working[rank] = None
        g, at = working
        found = []
        if at >= self.ranks:
            stage, window = self._stage(at), g // self.options.per_update
            self._inside[g % self.options.directions][stage] -= 1
            self._owed[window][stage] -= 1
            found = [(window, stage)] if not self._owed[window][stage] else []
        if at + 1 < 2 * self.ranks:
            self._arrive(g, at + 1)
        else:
            self._finished[g] = True
            while self._oldest < self.count and self._finished[self._oldest]:
                self._oldest += 1
        return found

    def _exchange(self, reduced: list[tuple[int, int]]) -> None:
        """Gradients of a stage are summed over its ranks once all are complete; a complete window, and those before it,
        is an update. All ranks do this in the same order, or they would deadlock."""
        if self.options.flush:
            return
        for window, stage in reduced:
            for k in range(self.options.directions):
                self.orders[(self.first(k) + stage) % self.ranks].append((R, stage, window, False))
        while self._updates < len(self._owed) and not any(self._owed[self._updates]):
            for order in self.orders:
                order.append((U, 0, self._updates, False))
            self._updates += 1
