"""The life of a recording: wait, warm up, record N steps, write. One per process.

        begin()              step_done() x warmup            step_done() x steps, or the end
waiting ────────► recording ──────────────────► recording ───────────────────────────► done, written
                  (thrown away)                 (kept)

What is recorded before the first step is kept if no step ever comes: then there are none to be told apart.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etude.collect import flight, layout
from etude.collect.capture import Capture
from etude.collect.manifest import World, manifest, world
from etude.collect.options import CollectOptions
from etude.collect.signals import Signals


class Recorder:
    """Not thread-safe and not meant to be: steps of other threads than the one that began are not counted."""

    def __init__(self, torch: Any, folder: Path, options: CollectOptions) -> None:
        self._torch = torch
        self._folder = folder
        self.options = options
        self.world: World = world(torch)
        self.steps_seen = 0
        self.steps_recorded = 0
        self.done = False
        self.counted_by = ""
        self.files: dict[str, str] = {}
        self._first_step = 0
        self._capture: Capture | None = None
        self._began = False
        self._thread = 0
        self._pid = os.getpid()
        self._signals = Signals(self._cut_off)
        _watch_forks(self)

    @property
    def recording(self) -> bool:
        return self._capture is not None

    @property
    def here(self) -> bool:
        """In the process and thread that began: the profiler belongs to a thread."""
        return not self.done and self._pid == os.getpid() and self._thread in (0, threading.get_ident())

    def begin(self) -> None:
        if not self.here or self._began:
            return
        self._began = True
        self._thread = threading.get_ident()
        self._signals.watch()
        self._open()

    def step_done(self, counted_by: str) -> None:
        """A step is over. Once the caller counts, what is detected does not."""
        if not self.here or not self._began:
            return
        if counted_by == "optimizer" and self.counted_by == "call":
            return
        before, self.counted_by = self.counted_by, counted_by
        if (counted_by, before) != ("call", "optimizer"):
            self.steps_seen += 1
            self._advance()
        elif self.steps_seen > 1:  # the program's first step was taken for several; if for one, that was right
            self._start_over()

    def _start_over(self) -> None:
        self._throw_away()
        self.steps_seen, self.steps_recorded = 1, 0
        if self.options.warmup <= 1:
            self._open()

    def _advance(self) -> None:
        self._look_around()
        if self.steps_seen < self.options.warmup:
            self._throw_away()
        elif self.steps_seen == self.options.warmup:
            self._throw_away()
            self._open()
        elif self._capture is not None:
            self.steps_recorded += 1
            if self.steps_recorded == self.options.steps:
                self.finish()
            else:
                self._capture.mark(self.steps_seen)

    def finish(self, reason: str = "") -> None:
        """Writes what there is; `reason` says why it is not all. Safe to call twice."""
        if self.done or self._pid != os.getpid():
            return
        self.done = True
        if not self._began:
            return
        self._signals.hold()
        with self._leaving_nothing():
            capture = self._capture
            if capture is not None:
                self._look_around()
                capture.stop()
                if self.counted_by == "" or self.steps_seen >= self.options.warmup:
                    self._write(capture)
            self._write_manifest(reason or self._missing(), capture)

    @contextmanager
    def _leaving_nothing(self) -> Iterator[None]:
        try:
            yield
        finally:
            capture, self._capture = self._capture, None
            if capture is not None:
                capture.discard()
            self._signals.leave()

    def _open(self) -> None:
        self._first_step = self.steps_seen
        folder = layout.recording_folder(self._folder, self._pid)
        self._capture = Capture(self._torch, self.options, folder)
        self._capture.mark(self.steps_seen)

    def _throw_away(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.stop(export=False)
            capture.discard()

    def _look_around(self) -> None:
        """Process groups are made late and may be gone at the end."""
        now = world(self._torch)
        if now.known or not self.world.known:
            self.world = now

    def _missing(self) -> str:
        asked, warmup = self.options.steps, self.options.warmup
        if not self.counted_by:
            return ""
        if self.steps_seen < warmup or (asked is None and self.steps_recorded == 0):
            return f"ended after {self.steps_seen} steps, the warm-up is {warmup}"
        if asked is not None and self.steps_recorded < asked:
            return f"ended after {self.steps_recorded} of {asked} steps"
        return ""

    def _write(self, capture: Capture) -> None:
        name, rank, force = self.options.name, self.world.rank, self.options.force
        host = layout.path_of(self._folder, name, rank, layout.HOST)
        device = layout.path_of(self._folder, name, rank, layout.DEVICE)
        layout.compress(capture.host, host, force=force)
        layout.compress(capture.device, device, force=force)
        self.files = {"host": host.name, "device": device.name}
        if not self.options.flight_recorder:
            return
        found = flight.entries(rank, self.world.groups, capture.start_ns, capture.end_ns)
        if found is not None:
            path = layout.path_of(self._folder, name, rank, layout.FLIGHT)
            layout.write_json(path, found, force=force)
            self.files["flight_recorder"] = path.name

    def _write_manifest(self, reason: str, capture: Capture | None) -> None:
        numbers = [self._first_step + k for k in range(self.steps_recorded)]
        about = manifest(self._torch, self.options, self.world) | {
            "files": self.files,
            "partial": bool(reason),
            "reason": reason,
            "steps": {
                "asked": self.options.steps,
                "warmup": self.options.warmup,
                "recorded": self.steps_recorded,
                "numbers": numbers,
                "counted_by": self.counted_by or "nothing",
            },
            "window_ns": [capture.start_ns, capture.end_ns] if capture is not None and self.files else None,
        }
        path = layout.path_of(self._folder, self.options.name, self.world.rank, layout.MANIFEST)
        layout.write_json(path, about, force=self.options.force)

    def _cut_off(self, signal_name: str) -> None:
        with contextlib.suppress(Exception):  # the process is about to die of the signal, as it would have
            self.finish(signal_name)

    def forked(self) -> None:
        self.done = True
        if self._capture is not None:
            self._capture.let_go()


def _watch_forks(recorder: Recorder) -> None:
    if not hasattr(os, "register_at_fork"):
        return
    known = weakref.ref(recorder)

    def in_child() -> None:
        found = known()
        if found is not None and found.recording:
            found.forked()

    os.register_at_fork(after_in_child=in_child)
