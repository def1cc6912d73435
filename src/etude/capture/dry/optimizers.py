"""Optimizers that a program made: whether one of them has yet to make its first step.

A critic learns several times before its generator does. Steps of the first alone are parts of a step of the program
then (see `OptimizerClock`), and a run that ended after the second of them would not know.
"""

import weakref
from importlib import import_module
from typing import Any

MOST_LATE = 8
"""Steps more that are run until each optimizer has stepped."""
NEVER = "an optimizer that the program made has not stepped, and is in no step"


class MadeOptimizers:
    """`late`: those that were made, are still there and have not stepped."""

    def __init__(self, torch: Any) -> None:
        self._base = base = torch.optim.Optimizer
        self.count = 0
        self._unused: weakref.WeakSet[Any] = weakref.WeakSet()
        begin = base.__init__

        def init(made: Any, *args: Any, **named: Any) -> None:
            self.count += 1
            begin(made, *args, **named)
            self._unused.add(made)

        base.__init__ = init
        module: Any = import_module("torch.optim.optimizer")
        module.register_optimizer_step_post_hook(lambda stepped, *_: self._unused.discard(stepped))

    @property
    def late(self) -> bool:
        return any(not self._wraps(one) for one in self._unused)

    def _wraps(self, optimizer: Any) -> bool:
        """Whether another one steps for it."""
        return any(isinstance(held, self._base) for held in vars(optimizer).values())
