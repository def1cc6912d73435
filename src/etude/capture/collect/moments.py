"""Moments of a step at which something can be put into a program: before a module, and before its backward pass.

They are the same ones in every run of the program. The modules that the second step calls are numbered in the order of
their first calls; from then on a moment comes once in a step, with the first call of its module. While a program is
recorded each moment is marked by an annotation, which becomes a node of the graph; `delays` puts its delays there.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from etude.base.errors import UsageError
from etude.capture.collect import features

MARK: Final = "etude.moment"
WATCHED: Final = 1
"""Steps before the one whose modules are numbered: a compiled program is compiled in its first."""
WRAPPERS: Final = ("module.", "_orig_mod.")
"""What wrappers put before the names of modules: DistributedDataParallel, `torch.compile`."""
SHOWN: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """Before the first call of a module in a step, or before its backward pass."""

    number: int
    """Of the module, in the order of calls."""
    module: str
    backward: bool = False

    @property
    def mark(self) -> str:
        """Its annotation in a recording."""
        return f"{MARK}:{self.number}:{'backward' if self.backward else 'forward'}:{self.module}"

    @classmethod
    def of_mark(cls, text: str) -> "Moment | None":
        """The moment that an annotation marks, if it marks one."""
        begin, _, rest = text.partition(":")
        number, _, rest = rest.partition(":")
        direction, _, module = rest.partition(":")
        if begin != MARK or not number.isdecimal():
            return None
        return cls(int(number), module, direction == "backward")


@dataclass(frozen=True, slots=True)
class CalledModule:
    """A module that a step called."""

    number: int
    name: str
    trains: bool
    """Its output has a gradient."""


def choose(called: Sequence[CalledModule], count: int, names: Sequence[str] = ()) -> list[Moment]:
    """`count` modules spread evenly over the calls of a step, and as many over those that have a backward pass; or
    both moments of the modules of these names."""
    if names:
        found = [one for one in called if one.name in names]
        _check_named(called, names, found)
        return sorted(
            {Moment(one.number, one.name, back) for one in found for back in (False, True) if one.trains or not back}
        )
    forward = [Moment(one.number, one.name) for one in _spread(called, count)]
    return forward + [Moment(one.number, one.name, True) for one in _spread([c for c in called if c.trains], count)]


def _spread(called: Sequence[CalledModule], count: int) -> list[CalledModule]:
    number = min(count, len(called))
    return [called[(2 * k + 1) * len(called) // (2 * number)] for k in range(number)]


def _check_named(called: Sequence[CalledModule], names: Sequence[str], found: Sequence[CalledModule]) -> None:
    """Refuses names of which this process calls none. Those of other stages of a pipeline it does not know."""
    if found:
        return
    known = [one.name for one in called]
    more = f" and {len(known) - SHOWN:,} more" if len(known) > SHOWN else ""
    raise UsageError(f"no module `{names[0]}` is called in a step", hint=f"called: {', '.join(known[:SHOWN])}{more}")


class ModuleWatch:
    """From `ModuleWatch(...)` to `stop()`: which modules are called, in their order."""

    def __init__(self, torch: Any) -> None:
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._compiling = features.compiling(torch)
        self._torch = torch
        self.modules: list[Any] = []
        self._trains: set[int] = set()
        self._handles = [register_module_forward_pre_hook(self._before), register_module_forward_hook(self._after)]

    def _before(self, module: Any, inputs: Any) -> None:
        if not self._compiling() and not any(one is module for one in self.modules):
            self.modules.append(module)

    def _after(self, module: Any, inputs: Any, output: Any) -> None:
        if not self._compiling() and gradient_of(self._torch, output) is not None:
            self._trains.add(id(module))

    def stop(self) -> list[CalledModule]:
        for handle in self._handles:
            handle.remove()
        names = _names(self.modules)
        return [
            CalledModule(k, name, id(module) in self._trains)
            for k, (module, name) in enumerate(zip(self.modules, names, strict=True))
        ]


def _names(modules: Sequence[Any]) -> list[str]:
    """Their names below the first module that has them; a module below none is called after its class."""
    names: dict[int, str] = {}
    for module in modules:
        if id(module) not in names:
            for name, below in module.named_modules():
                names.setdefault(id(below), _unwrapped(name) or type(below).__name__)
    return [names[id(module)] for module in modules]


def _unwrapped(name: str) -> str:
    parts = f"{name}."
    while parts.startswith(WRAPPERS):
        parts = parts.partition(".")[2]
    return parts.removesuffix(".")


def gradient_of(torch: Any, output: Any) -> Any:
    """The first tensor of a module's output that has a gradient; None: it has none."""
    if isinstance(output, torch.Tensor):
        return output if output.requires_grad else None
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return next((found for one in values if (found := gradient_of(torch, one)) is not None), None)


class Moments:
    """Calls `act(moment)` at each moment, once in a step, in the thread in which it comes. `wanted` chooses them when
    the modules are known."""

    def __init__(
        self, torch: Any, wanted: Callable[[Sequence[CalledModule]], Sequence[Moment]], act: Callable[[Moment], None]
    ) -> None:
        self._torch, self._wanted, self._act = torch, wanted, act
        self._compiling = features.compiling(torch)
        self._watch: ModuleWatch | None = None
        self._steps = 0
        self._came: set[Moment] = set()

    def step_done(self) -> None:
        """A step is over: the moments may come again."""
        self._steps += 1
        self._came.clear()
        if self._steps == WATCHED:
            self._watch = ModuleWatch(self._torch)
        elif self._watch is not None:
            watch, self._watch = self._watch, None
            self._install(self._wanted(watch.stop()), watch.modules)

    def _install(self, chosen: Sequence[Moment], modules: Sequence[Any]) -> None:
        for moment in chosen:
            module = modules[moment.number]
            if moment.backward:
                module.register_forward_hook(functools.partial(self._behind, moment))
            else:
                module.register_forward_pre_hook(functools.partial(self._before, moment))

    def _before(self, moment: Moment, module: Any, inputs: Any) -> None:
        if not self._compiling():
            self._come(moment)

    def _behind(self, moment: Moment, module: Any, inputs: Any, output: Any) -> None:
        if self._compiling():
            return
        tensor = gradient_of(self._torch, output)
        if tensor is not None:
            tensor.register_hook(functools.partial(self._backward, moment))

    def _backward(self, moment: Moment, gradient: Any) -> None:
        self._come(moment)

    def _come(self, moment: Moment) -> None:
        if moment not in self._came:
            self._came.add(moment)
            self._act(moment)


def marking(torch: Any) -> Callable[[Moment], None]:
    """What marks a moment in a recording."""

    def mark(moment: Moment) -> None:
        with torch.profiler.record_function(moment.mark):
            pass

    return mark
