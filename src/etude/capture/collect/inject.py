"""Inside a process that the launcher started, after it has imported PyTorch: records it without disturbing it."""

import atexit
import contextlib
import json
import multiprocessing.util
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from etude.capture.collect import features, layout
from etude.capture.collect.delays import DelayPlan, DelayWorker
from etude.capture.collect.manifest import FIRST, started_as_rank
from etude.capture.collect.moments import Moments, choose, marking
from etude.capture.collect.options import CollectOptions
from etude.capture.collect.recorder import Recorder
from etude.capture.collect.steps import OptimizerClock
from etude.capture.collect.turns import Turns

# Programs that start the workers and import PyTorch themselves.
_STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")

_LATE = -100  # of the order in which `multiprocessing` ends things


def activate(settings: str) -> None:
    """Called right after `import torch`. `settings` come from the environment that the launcher set."""
    asked = json.loads(settings)
    if started_as_rank():
        os.environ[FIRST] = f"{os.getpid()}:{os.environ.get('RANK', '')}"
    if "delays" in asked:
        DelayWorker(Path(asked["folder"]), DelayPlan.from_dict(asked["delays"]))
        return
    if asked["whole"] and any(word in _STARTERS for word in _command_words()):
        return
    options = CollectOptions.from_dict(asked["options"])
    Worker(Path(asked["folder"]), options, whole=asked["whole"], marked=asked.get("marked"))


def _command_words() -> list[str]:
    return [os.path.basename(word) for word in sys.orig_argv[:4]]


class Worker:
    """Begins with the first call of a module or of an optimizer: by then the program has chosen its device."""

    def __init__(
        self, folder: Path, options: CollectOptions, *, whole: bool, marked: dict[str, Any] | None = None
    ) -> None:
        """`marked`: how many moments of a step are marked, or of which modules."""
        self._torch = features.torch()
        self._folder = folder
        self._options = options
        self._recorder: Recorder | None = None
        self._clock: OptimizerClock | None = None
        self._handles: list[Any] = []
        self._failed = False
        self._turns = Turns(self._torch)
        self._moments: Moments | None = None
        if marked is not None:
            self._moments = Moments(self._torch, lambda called: choose(called, **marked), marking(self._torch))
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
            self._clock = OptimizerClock(self._torch, self._stepped, self._regroup)

    def _begin(self) -> None:
        if self._recorder is None and not self._failed:
            try:
                self._recorder = self._made()
            except Exception as problem:
                self._fail(problem)
        if self._recorder is not None and not self._failed:
            try:
                self._recorder.begin()
            except Exception as problem:
                self._fail(problem)
        if self._failed or self._recorder is None or not self._recorder.waiting:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _made(self) -> Recorder:
        if multiprocessing.parent_process() is not None:  # its children exit without calling `atexit`
            multiprocessing.util.Finalize(None, self._at_exit, exitpriority=_LATE)
        recorder = Recorder(self._torch, self._folder, self._options, self._turns, shared=True)
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            self._replace_partial(recorder.world.who, recorder.world.rank)
        return recorder

    def _regroup(self) -> bool:
        return self._recorder is not None and not self._failed and self._recorder.regroup()

    def _stepped(self, optimizer_steps: int) -> None:
        self._begin()
        if self._recorder is None or self._failed:
            return
        try:
            if self._moments is not None:
                self._moments.step_done()
            self._recorder.step_done("optimizer", optimizer_steps)
        except Exception as problem:
            self._fail(problem)
        if self._recorder.done and self._clock is not None:
            self._clock.stop()

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

    def _replace_partial(self, who: str, rank: int) -> None:
        """A worker that an elastic launcher starts again takes the place of the one that failed."""
        path = layout.path_of(self._folder, self._options.name, who, layout.MANIFEST)
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_bytes())["partial"]:
                layout.give_up(self._folder, rank)

    def _fail(self, problem: Exception) -> None:
        """The program continues. Its output is its own, so the reason goes into a file that the launcher reads."""
        self._failed = True
        with contextlib.suppress(OSError):
            layout.note_problem(self._folder, os.getpid(), problem)
