"""Inside a process that the launcher started: known delays, put into a program that no profiler watches.

Steps are taken in blocks. In a block every step has the same delay, or none; a block without one stands before and
after each that has one, so that what the machine does meanwhile is in both. A block begins and ends with an idle
device, as the window of a recording does.

    warm-up | none | A | none | B | none | A | ...        each of `steps` steps
"""

import atexit
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from etude.capture.collect import features, layout
from etude.capture.collect.capture import on_device, settle
from etude.capture.collect.manifest import World, world
from etude.capture.collect.moments import CalledModule, Moment, Moments
from etude.capture.collect.steps import OptimizerClock

NONE: Final = -1
"""The delay of a block without one."""
FILE: Final = "delays."
TRIED_CYCLES: Final = 20_000_000
SIDE: Final = 128
"""Rows and columns of the matrices that are multiplied on a CPU."""


class DelayKind(StrEnum):
    """What is put in."""

    HOST = "host"
    """The thread spins."""
    DEVICE = "device"
    """Work on the device: a kernel on the current stream; without a device matrix products on the thread."""


@dataclass(frozen=True, slots=True)
class Delay:
    """What is put into each step of a block."""

    moment: Moment
    kind: DelayKind
    time_ns: int
    rank: int | None = None
    """On this rank alone; None: on all."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Delay":
        return cls(**{**values, "moment": Moment(**values["moment"]), "kind": DelayKind(values["kind"])})


@dataclass(frozen=True, slots=True)
class DelayPlan:
    """Which blocks to run."""

    delays: tuple[Delay, ...]
    blocks: tuple[int, ...]
    """The delay of each block, by its number; NONE."""
    steps: int
    """Of a block."""
    warmup: int

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"delays": [d.to_dict() for d in self.delays]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DelayPlan":
        delays = tuple(map(Delay.from_dict, values["delays"]))
        return cls(**{**values, "delays": delays, "blocks": tuple(values["blocks"])})


@dataclass(frozen=True, slots=True)
class StepBlock:
    """What a block of steps took."""

    delay: int
    took_ns: int
    injected_ns: int
    """What was put in, as measured, of all its steps."""
    count: int
    """How often something was put in."""


class Delays:
    """Runs a plan: `step_done()` after each step of the program. `clock` is the time in ns, `finished(blocks, all)`
    is called after each block."""

    def __init__(
        self, plan: DelayPlan, rank: int, sources: Mapping[DelayKind, "DelaySource"], finished: Callable[..., None],
        *, settle: Callable[[], None] = lambda: None, clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:  # fmt: skip
        self._plan, self._rank, self._sources, self._finished = plan, rank, sources, finished
        self._settle, self._clock = settle, clock
        self.blocks: list[StepBlock] = []
        self._steps = -plan.warmup
        self._since_ns = 0
        self._count = 0

    @property
    def done(self) -> bool:
        return len(self.blocks) == len(self._plan.blocks)

    @property
    def _current(self) -> int:
        running = not self.done and self._steps >= 0
        return self._plan.blocks[len(self.blocks)] if running else NONE

    def step_done(self) -> None:
        self._steps += 1
        if self.done or self._steps < 0:
            return
        if self._steps == 0:
            for source in self._sources.values():
                source.prepare()
        elif self._steps % self._plan.steps:
            return
        self._settle()
        if self._steps:
            took_ns = self._clock() - self._since_ns
            injected_ns = sum(source.taken_ns() for source in self._sources.values())
            self.blocks.append(StepBlock(self._current, took_ns, injected_ns, self._count))
            self._finished(self.blocks, self.done)
        self._count = 0
        self._since_ns = self._clock()

    def act(self, moment: Moment) -> None:
        """The moment has come."""
        if self._current == NONE:
            return
        delay = self._plan.delays[self._current]
        if delay.moment == moment and delay.rank in (None, self._rank):
            self._count += 1
            self._sources[delay.kind].put(delay.time_ns)


class DelaySource:
    """Puts a delay into the program. This one spins: the thread works and does nothing."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._took_ns = 0

    def prepare(self) -> None:
        """Before the first block."""

    def put(self, time_ns: int) -> None:
        since = self._clock()
        while (took := self._clock() - since) < time_ns:
            self._work()
        self._took_ns += took

    def _work(self) -> None:
        pass

    def taken_ns(self) -> int:
        """What was put in since the last call, on an idle device."""
        took, self._took_ns = self._took_ns, 0
        return took


class OperatorDelay(DelaySource):
    """Matrix products on the thread that comes to the moment."""

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._torch = torch
        self._made: list[Any] = []

    def prepare(self) -> None:
        with self._torch.no_grad():
            self._made = [self._torch.ones(SIDE, SIDE), self._torch.empty(SIDE, SIDE)]

    def _work(self) -> None:
        with self._torch.no_grad():
            self._torch.mm(self._made[0], self._made[0], out=self._made[1])


class KernelDelay(DelaySource):
    """A kernel that does nothing for a while, on the stream that is current. Events say how long it took."""

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._torch = torch
        self._cycles_per_ns = 1.0
        self._events: list[tuple[Any, Any]] = []

    def prepare(self) -> None:
        for _ in range(2):  # the first wakes the device
            self._sleep(TRIED_CYCLES)
            settle(self._torch)
            self._cycles_per_ns = TRIED_CYCLES / max(self.taken_ns(), 1)

    def put(self, time_ns: int) -> None:
        if not self._torch.cuda.is_current_stream_capturing():
            self._sleep(round(time_ns * self._cycles_per_ns))

    def _sleep(self, cycles: int) -> None:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._torch.cuda._sleep(cycles)
        end.record()
        self._events.append((begin, end))

    def taken_ns(self) -> int:
        events, self._events = self._events, []
        return round(sum(1e6 * begin.elapsed_time(end) for begin, end in events))


class DelayWorker:
    """In a process that has imported PyTorch: counts its steps and runs a plan; says what it measured in a file."""

    def __init__(self, folder: Path, plan: DelayPlan) -> None:
        self._torch = features.torch()
        self._folder, self._plan, self._pid = folder, plan, os.getpid()
        self._delays: Delays | None = None
        self._failed = False
        self._steps = 0
        self._here: World | None = None
        """Its rank, while its process groups are there: at exit they may be gone."""
        self._moments = Moments(self._torch, self._known, self._act)
        self._clock = OptimizerClock(self._torch, self._stepped, self._regroup)
        atexit.register(self._at_exit)

    def _regroup(self) -> bool:
        return self._delays is None

    def _known(self, called: Sequence[CalledModule]) -> list[Moment]:
        """The moments of the plan that this process has: a stage of a pipeline has modules of its own."""
        there = {(one.number, one.name) for one in called}
        return sorted({d.moment for d in self._plan.delays if (d.moment.number, d.moment.module) in there})

    def _act(self, moment: Moment) -> None:
        if self._delays is not None and not self._failed:
            self._delays.act(moment)

    def _stepped(self, optimizer_steps: int) -> None:
        if self._failed or self._pid != os.getpid():
            return
        try:
            self._steps += 1
            if self._delays is None:
                self._delays = self._made()
            self._moments.step_done()
            self._delays.step_done()
        except Exception as problem:
            self._failed = True
            layout.note_problem(self._folder, self._pid, problem)

    def _made(self) -> Delays:
        torch = self._torch
        device = KernelDelay(torch) if on_device(torch) else OperatorDelay(torch)
        sources = {DelayKind.HOST: DelaySource(), DelayKind.DEVICE: device}
        self._here = world(torch)
        return Delays(self._plan, self._here.rank, sources, self._write, settle=lambda: settle(torch))

    def _at_exit(self) -> None:
        if self._delays is not None and not self._failed and self._pid == os.getpid():
            self._write(self._delays.blocks, self._delays.done)

    def _write(self, blocks: Sequence[StepBlock], done: bool) -> None:
        here = self._here
        assert here is not None
        path = self._folder / f"{FILE}{here.who}.json"
        made = {"rank": here.rank, "world_size": here.world_size, "steps": self._steps, "done": done,
                "blocks": [asdict(one) for one in blocks]}  # fmt: skip
        temporary = path.with_suffix(f".{self._pid}")
        temporary.write_text(json.dumps(made))
        os.replace(temporary, path)
