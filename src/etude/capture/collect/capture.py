"""One window of recording: observer and profiler on together, so that their record-function ids agree."""

import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.quiet import quiet
from etude.capture.collect import features
from etude.capture.collect.communications import CallRecorder
from etude.capture.collect.options import CollectOptions
from etude.capture.collect.turns import ours


class Capture:
    """Recording from `Capture(...)` to `stop()`. `host` and `device` are then plain JSON files, until `discard()`."""

    def __init__(self, torch: Any, options: CollectOptions, folder: Path) -> None:
        self._torch = torch
        self.folder = folder
        self.host = folder / "host.json"
        self.device = folder / "device.json"
        self.start_ns = self.end_ns = 0
        self.took_ns = 0
        """From the first step to the end of what the last one launched."""
        self._since_ns = 0
        self._marker: Any = None
        self._thread = threading.get_ident()
        self._any_thread = features.any_thread_may_stop(torch, memory=options.memory)
        self._observer = torch.profiler.ExecutionTraceObserver()
        self._profiler = self._made(options)
        settle(torch)
        with ours(), quiet():
            self._observer.register_callback(str(self.host))
            self.start_ns = time.time_ns()
            try:
                if not self._observed:
                    self._observer.start()
                self._profiler.start()
            except BaseException:
                self._observer.unregister_callback()
                raise
        self._calls = CallRecorder(torch)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls of `torch.distributed`, in their order."""
        return self._calls.calls

    @property
    def can_stop(self) -> bool:
        """Whether this thread may stop it. Older versions of PyTorch tie a profiler to the thread that started it."""
        return self._any_thread or threading.get_ident() == self._thread

    def _made(self, options: CollectOptions) -> Any:
        profile = self._torch.profiler.profile
        self._observed = features.accepts(profile.__init__, "execution_trace_observer")
        settings: dict[str, Any] = {"execution_trace_observer": self._observer} if self._observed else {}
        return profile(
            activities=features.activities(self._torch),
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.stacks,
            with_flops=options.flops,
            with_modules=options.modules,
            experimental_config=features.experimental(
                self._torch, sync_events=options.sync_events, stacks=options.stacks, memory=options.memory
            ),
            **settings,
        )

    def mark(self, step: int) -> None:
        """Begins step `step`: writes the annotation that every reader of profiler traces looks for."""
        self.unmark()
        self._marker = self._torch.profiler.record_function(f"ProfilerStep#{step}")
        self._marker.__enter__()
        self._since_ns = self._since_ns or time.perf_counter_ns()

    def unmark(self) -> None:
        marker, self._marker = self._marker, None
        if marker is not None:
            marker.__exit__(None, None, None)

    def stop(self, *, export: bool = True) -> None:
        self.unmark()  # first, so that the last step does not wait for the device and is like the others
        self._calls.stop()
        settle(self._torch)  # what was launched inside the window belongs to it
        self.took_ns = time.perf_counter_ns() - self._since_ns
        with ours():
            try:
                with quiet():
                    if not self._observed:
                        self._observer.stop()
                    self._profiler.stop()
            finally:
                self.end_ns = time.time_ns()
                self._observer.unregister_callback()
            if export:
                self._profiler.export_chrome_trace(str(self.device))

    def let_go(self) -> None:
        """In a forked child: it shares the observer's open file with its parent and must not write there."""
        self._calls.stop()
        with ours(), quiet():
            self._observer.stop()

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Window:
    """An interval that was recorded."""

    capture: Capture
    first_step: int
    steps: int
    optimizer_steps: tuple[int, ...] = ()
    """Steps of optimizers in each of its steps."""


def on_device(torch: Any) -> bool:
    """Whether the program has used a device, which works asynchronously."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def settle(torch: Any) -> None:
    """Waits until the device has done what was launched."""
    if on_device(torch):
        torch.cuda.synchronize()
