"""Inside a process that the launcher started, once it has imported PyTorch: record it, and stay out of its way."""

import atexit
import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from etude.collect import features, layout
from etude.collect.options import CollectOptions
from etude.collect.recorder import Recorder
from etude.collect.steps import OptimizerClock

# Programs that start the workers and import PyTorch themselves.
_STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


def activate(settings: str) -> None:
    """Called right after `import torch`. `settings` is what the launcher put into the environment."""
    asked = json.loads(settings)
    if asked["whole"] and any(word in _STARTERS for word in _command_words()):
        return
    Worker(Path(asked["folder"]), CollectOptions.from_dict(asked["options"]), whole=asked["whole"])


def _command_words() -> list[str]:
    return [os.path.basename(word) for word in sys.orig_argv[:4]]


class Worker:
    """Begins with the first call of a module or of an optimizer: by then the program has chosen its device."""

    def __init__(self, folder: Path, options: CollectOptions, *, whole: bool) -> None:
        self._torch = features.torch()
        self._folder = folder
        self._options = options
        self._recorder: Recorder | None = None
        self._clock: OptimizerClock | None = None
        self._handles: list[Any] = []
        self._failed = False
        atexit.register(self._at_exit)
        if whole:
            self._begin()
            return
        from torch.nn.modules.module import register_module_forward_pre_hook

        compiling = features.compiling(self._torch)

        def called(*_: Any) -> None:
            if not compiling():
                self._begin()

        # The first call of a compiled module would complain about our hook, which is gone by the second.
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        self._handles.append(register_module_forward_pre_hook(called))
        if options.detect_steps:
            self._clock = OptimizerClock(self._torch, self._stepped)
        _before_a_profiler_of_its_own(self._torch, self._give_way)

    def _begin(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._recorder is not None or self._failed:
            return
        try:
            if self._torch.autograd._profiler_enabled():
                raise RuntimeError("the program runs a profiler of its own")
            self._recorder = Recorder(self._torch, self._folder, self._options)
            self._replace_partial(self._recorder.world.rank)
            self._recorder.begin()
        except Exception as problem:
            self._fail(problem)

    def _stepped(self) -> None:
        self._begin()
        if self._recorder is None or self._failed:
            return
        try:
            self._recorder.step_done("optimizer")
        except Exception as problem:
            self._fail(problem)
        if self._recorder.done and self._clock is not None:
            self._clock.stop()

    def _give_way(self) -> None:
        self._end("the program started a profiler of its own")

    def _at_exit(self) -> None:
        unhandled = getattr(sys, "last_type", None)  # set when Python has printed a traceback and is about to exit
        self._end(unhandled.__name__ if unhandled is not None else "")

    def _end(self, reason: str) -> None:
        if self._recorder is None or self._recorder.done:
            return
        try:
            self._recorder.finish(reason)
        except Exception as problem:
            self._fail(problem)

    def _replace_partial(self, rank: int) -> None:
        """A worker that an elastic launcher starts again takes the place of the one that failed."""
        path = layout.path_of(self._folder, self._options.name, rank, layout.MANIFEST)
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_bytes())["partial"]:
                layout.make_room(self._folder, rank, sys.maxsize, force=True)

    def _fail(self, problem: Exception) -> None:
        """The program goes on. Its output is its own, so the reason goes into a file that the launcher reads."""
        self._failed = True
        with contextlib.suppress(OSError):
            layout.note_problem(self._folder, os.getpid(), problem)


def _before_a_profiler_of_its_own(torch: Any, give_way: Any) -> None:
    """PyTorch knows one profiler at a time. The program's own must start as it would have without us."""
    profile = torch.autograd.profiler.profile
    original = profile._prepare_trace

    def prepare(self: Any) -> Any:
        if torch.autograd._profiler_enabled():
            give_way()
        return original(self)

    profile._prepare_trace = prepare
