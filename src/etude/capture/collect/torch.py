"""Records a PyTorch program from inside.

    from etude.capture.collect import torch as collect

    with collect.trace("run/", steps=3, warmup=1) as run:
        for batch in data:
            train(batch)
            run.step()              # may be left out: optimizer steps are counted then

    @collect.traced("run/", steps=3)
    def train(): ...

Every rank records itself. What the options are: `etude.capture.collect.CollectOptions`.
"""

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from etude.base.errors import UsageError
from etude.capture.collect import features, flight, layout
from etude.capture.collect.layout import manifests
from etude.capture.collect.manifest import world
from etude.capture.collect.options import CollectOptions
from etude.capture.collect.recorder import Recorder
from etude.capture.collect.steps import OptimizerClock
from etude.capture.collect.turns import Turns

__all__ = ["CollectOptions", "Recording", "manifests", "trace", "traced"]

P = ParamSpec("P")
R = TypeVar("R")


class Recording:
    """Result of `trace`: a context manager that records from entering to leaving, or for `steps` steps."""

    def __init__(self, folder: str | os.PathLike[str], options: CollectOptions) -> None:
        self.folder = Path(folder)
        self.options = options
        self._recorder: Recorder | None = None
        self._clock: OptimizerClock | None = None
        self._turns: Turns | None = None

    def __enter__(self) -> "Recording":
        if self._recorder is not None:
            raise UsageError("this recording was already used", hint="call `trace` again")
        torch = features.torch()
        self._turns = Turns(torch)
        try:
            if self._turns.taken:
                raise UsageError("a profiler is already running", where="collect", hint="only one can run at a time")
            self._recorder = self._begun(torch, self._turns)
        except BaseException:
            self._stop_watching()
            raise
        return self

    def _begun(self, torch: Any, turns: Turns) -> Recorder:
        flight.ask_for_room()
        here = world(torch)
        layout.make_room(self.folder, here.rank, here.world_size, force=self.options.force)
        recorder = Recorder(torch, self.folder, self.options, turns)
        if self.options.detect_steps:
            self._clock = OptimizerClock(torch, functools.partial(self._step, "optimizer"), recorder.regroup)
        recorder.begin()
        return recorder

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(kind.__name__ if kind is not None else "")

    def step(self) -> None:
        """Ends a step of the program. Once this is called, optimizer steps are not counted."""
        self._step("call")

    @property
    def recording(self) -> bool:
        """Whether the profiler is on: not before entering, between warm-up steps, or after the last step."""
        return self._recorder is not None and self._recorder.recording

    @property
    def files(self) -> dict[str, Path]:
        """Files written by this rank: `host`, `device` and perhaps `flight_recorder`. Empty until then."""
        found = self._recorder.files if self._recorder is not None else {}
        return {what: self.folder / name for what, name in found.items()}

    def _step(self, counted_by: str, optimizer_steps: int = 0) -> None:
        recorder = self._recorder
        if recorder is None or recorder.done:
            return
        with _only_warnings():
            recorder.step_done(counted_by, optimizer_steps)
        if not recorder.here:
            self._stop_watching()

    def _finish(self, reason: str) -> None:
        if self._recorder is not None:
            with _only_warnings():
                self._recorder.finish(reason)
        self._stop_watching()

    def _stop_watching(self) -> None:
        clock, self._clock = self._clock, None
        turns, self._turns = self._turns, None
        if clock is not None:
            clock.stop()
        if turns is not None:
            turns.stop()


class _only_warnings:  # noqa: N801 - reads as a function
    """The program continues as usual, whatever happens to its recording."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> bool:
        if not isinstance(problem, Exception):
            return False
        warnings.warn(f"etude: the recording was not written: {problem}", RuntimeWarning, stacklevel=4)
        return True


def trace(folder: str | os.PathLike[str], **options: Any) -> Recording:
    """Records what happens inside `with trace(folder): ...` on this rank, into `folder`.

    `steps` to record after `warmup` others, `name` of the files, `plan` for the manifest, `force` to replace an earlier
    run; `shapes`, `stacks`, `flops`, `modules`, `memory`, `sync_events`, `flight_recorder` say what is recorded.
    """
    return Recording(folder, CollectOptions.from_dict(options))


def traced(folder: str | os.PathLike[str], **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Records the first call of a function; later calls run as usual."""
    chosen = CollectOptions.from_dict(options)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        used = False

        @functools.wraps(function)
        def wrapper(*args: P.args, **named: P.kwargs) -> R:
            nonlocal used
            if used:
                return function(*args, **named)
            used = True
            with Recording(folder, chosen):
                return function(*args, **named)

        return wrapper

    return decorate
