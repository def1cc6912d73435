"""Calls of models that no other module makes: the steps of a program that has no optimizer."""

import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from etude.capture.dry.optimizers import MadeOptimizers
from etude.capture.dry.watch import Watch

ALIKE_CALLS = 16
"""Calls in a row with the same operators, after which a program that has made no optimizer is taken to do the same
until its end."""


class ModelCalls:
    """Writes down where outermost calls begin. `done` is called when enough calls of the largest model were seen:
    `wanted` (0: never), and after these a row of calls that are alike, where no optimizer was made."""

    def __init__(
        self, torch: Any, watch: Watch, made: MadeOptimizers, *, wanted: int, done: Callable[[], None]
    ) -> None:
        self._torch, self._watch, self._made, self._wanted, self._done = torch, watch, made, wanted, done
        self.rows: list[dict[str, Any]] = []
        self._models: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        """Number and parameters of each."""
        self._count = 0
        self._largest = -1, -1
        self._starts: list[int] = []
        """Rows at which calls of the largest model began."""

    def begin(self, model: Any) -> None:
        """An outermost call begins."""
        if self._torch._C._current_graph_task_id() >= 0:  # a backward pass calls it: it is recomputed
            return
        number, parameters = self._known(model)
        row = len(self._watch.rows)
        self.rows.append({"model": number, "name": type(model).__name__, "parameters": parameters, "row": row})
        if parameters > self._largest[1]:
            self._largest, self._starts = (number, parameters), []
        if number == self._largest[0]:
            self._starts.append(row)
            if self._wanted and not self._made.count and not self._watch.step and self._are_alike():
                self._done()

    def _known(self, model: Any) -> tuple[int, int]:
        if model not in self._models:
            lazy = self._torch.nn.parameter.is_lazy
            size = sum(weight.numel() for weight in model.parameters() if not lazy(weight))
            self._models[model] = self._count, size
            self._count += 1
        return self._models[model]

    def _are_alike(self) -> bool:
        if len(self._starts) <= self._wanted + ALIKE_CALLS:
            return False
        last = self._starts[-ALIKE_CALLS - 1 :]
        parts = [self._watch.rows[a:b] for a, b in pairwise(last)]
        return len({tuple(row[:3] for row in part) for part in parts}) == 1
