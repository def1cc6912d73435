"""Detects the end of a training step without help from the program: an optimizer has stepped.

The first optimizer that steps is the clock: a program with several (a GAN, one per parameter) steps each in its turn.
Where it has stepped several times before another one steps for the first time (a critic before its generator), that
other one is the clock from then on: else a step would be a part of an iteration.

    d d g   d d g   d d g        steps of the optimizers d and g
    1 2     (g is the clock)     steps of the program, the first two of which only warm up
        |       3       4

PyTorch's own post hook runs inside the profiler's range `Optimizer.step#...`; a recording that stops there loses that
range. So `step` is wrapped outside of it: in classes that are there already, and in those that come into use. Of
several wrappers around one `step` the outermost counts. An optimizer around another (Accelerate's) counts when that
one steps, and not when it only accumulates gradients.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from etude.capture.collect import features

_OURS = "_etude_clock"


PATIENCE = 4
"""How many times as long as the first iteration one may be until the optimizer that ended it is no longer the clock."""


class OptimizerClock:
    """From `OptimizerClock(...)` to `stop()`: `tick(optimizer_steps)` after each step of the program, with how many
    steps of optimizers it had. `regroup()` asks whether the ticks so far may have been parts of a step, which ends
    now."""

    def __init__(self, torch: Any, tick: Callable[[int], None], regroup: Callable[[], bool] = lambda: False) -> None:
        self._tick = tick
        self._regroup = regroup
        self._first: weakref.ref[Any] | None = None
        self._last: weakref.ref[Any] | None = None
        """The optimizer whose step ends an iteration, if that is not the first."""
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of_first = 0
        """Steps of the first optimizer: since the last iteration, or in all while it is the clock."""
        self._longest = 0
        """How many of them an iteration may have."""
        self._since = 0
        """Steps of all optimizers since the last tick."""
        self._events = 0
        """Steps of all optimizers."""
        self._inside: set[int] = set()  # ids of the optimizers that are stepping
        self._running = True
        self._base = torch.optim.Optimizer
        self._compiling = features.compiling(torch)
        self._replaced: list[tuple[Any, str, Any]] = []
        for owner in {self._base, *_subclasses(self._base)}:
            if "step" in vars(owner):
                self._replace(owner, "step", self._outside(owner.step))
        for optimizer in _hidden(self._base):
            step = functools.partial(self._outside(_ignoring_self(optimizer.step)), optimizer)
            self._replace(optimizer, "step", functools.update_wrapper(step, optimizer.step))
        original = vars(self._base).get("profile_hook_step")
        if original is not None:
            wrap = original.__func__ if isinstance(original, staticmethod) else original
            self._replace(self._base, "profile_hook_step", staticmethod(lambda step: self._outside(wrap(step))))
        # Its module is hidden from `torch.optim`.
        register = getattr(import_module("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        self._hook = register(self._stepped_unseen) if register is not None else None

    def stop(self) -> None:
        self._running = False
        if self._hook is not None:
            self._hook.remove()
        for owner, name, original in self._replaced:
            if getattr(vars(owner).get(name), _OURS, None) is self:
                setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._replaced.append((owner, name, vars(owner)[name]))
        setattr(new, _OURS, self)
        setattr(owner, name, new)

    def _outside(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def wrapper(optimizer: Any, *args: Any, **named: Any) -> Any:
            # Inlined into something that is being compiled: must not be visible.
            if self._compiling() or not self._running or id(optimizer) in self._inside:
                return step(optimizer, *args, **named)
            self._inside.add(id(optimizer))
            before = self._events
            try:
                result = step(optimizer, *args, **named)
            finally:
                self._inside.discard(id(optimizer))
            if self._events == before and not self._wraps(optimizer):  # else what it wraps has stepped, and counts
                self._stepped(optimizer)
            return result

        return wrapper

    def _wraps(self, optimizer: Any) -> bool:
        """Whether another optimizer steps for this one, or does not: while gradients are accumulated."""
        return any(isinstance(held, self._base) for held in vars(optimizer).values())

    def _stepped_unseen(self, optimizer: Any, *_: Any) -> None:
        if not self._compiling() and id(optimizer) not in self._inside:
            self._stepped(optimizer)

    def _stepped(self, optimizer: Any) -> None:
        if not self._running:
            return
        self._events += 1
        self._since += 1
        if self._first is None or self._first() is None:
            self._first, self._last, self._of_first = weakref.ref(optimizer), None, 0
        if self._first() is optimizer:
            self._of_first += 1
        elif optimizer not in self._others:
            self._others.add(optimizer)
            if self._last is None and self._of_first > 1 and self._regroup():
                self._last, self._longest = weakref.ref(optimizer), PATIENCE * self._of_first
                self._of_first = self._since = 0
                return
        last = self._last() if self._last is not None else None
        if last is None or self._of_first > self._longest:  # it is gone, or steps no more
            self._last = last = None
        if (self._first() if last is None else last) is optimizer:
            if last is not None:
                self._of_first = 0
            steps, self._since = self._since, 0
            self._tick(steps)


def _hidden(base: Any) -> list[Any]:
    """Optimizers with an own `step` attribute that hides that of their class: set by a learning-rate scheduler."""
    return [found for found in gc.get_objects() if issubclass(type(found), base) and "step" in vars(found)]


def _ignoring_self(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def wrapper(_: Any, *args: Any, **named: Any) -> Any:
        return step(*args, **named)

    return wrapper


def _subclasses(base: Any) -> Iterator[Any]:
    for found in base.__subclasses__():
        yield found
        yield from _subclasses(found)
