"""The life of a recording: wait, warm up, record N steps, write. One per process.

        begin()              step_done() x warmup            step_done() x steps      a few more, or the end
waiting ────────► recording ──────────────────► recording ─────────────────────► timed ─────────► done, written
                  (thrown away; the last        (kept)          ▲ next step │ the program's own profiler begins
                  steps lightly, kept)                          └── aside ◄─┘

Steps before the light ones and after the window are timed without a profiler.

What is recorded before the first step is kept if no step ever comes: then there are none to separate. A window
that the program's own profiler cut short is put aside: a whole one may come later, else the longest is written.
"""

import contextlib
import os
import statistics
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from etude.base.pages import page_faults
from etude.capture.collect import communications, compiled, detach, device_alone, flight, layout, light
from etude.capture.collect.capture import Capture, Window, on_device, settle
from etude.capture.collect.device_alone import DeviceCapture
from etude.capture.collect.groups import GroupWatch, with_earlier
from etude.capture.collect.light import LightCapture
from etude.capture.collect.manifest import World, manifest, process_name, world
from etude.capture.collect.options import CollectOptions
from etude.capture.collect.signals import Signals
from etude.capture.collect.turns import Turns

HELD_UP: Final = 2
"""A step that takes this many times the median did something else."""
AFTER: Final = 10
"""Steps after the window that are timed."""
DIFFERS: Final = 0.1
"""A light window that differs from the program by more says so."""


class Recorder:
    """Counts only steps of the thread that began. Any thread may interrupt or finish it."""

    def __init__(
        self, torch: Any, folder: Path, options: CollectOptions, turns: Turns, *, shared: bool = False
    ) -> None:
        """`shared`: other processes of the same command write into the folder too."""
        self._torch = torch
        self._folder = folder
        self.options = options
        self._turns = turns
        self._shared = shared
        self.world: World = world(torch)
        self.steps_seen = 0
        self.steps_recorded = 0
        self.done = False
        self.counted_by = ""
        self._optimizer_steps: tuple[int, ...] = ()
        self.files: dict[str, str] = {}
        self._first_step = 0
        self._capture: Capture | None = None
        self._light: LightCapture | None = None
        self._lights: list[LightCapture] = []
        """The light window that runs, and those that are done: before the full one, and on a device after it too."""
        self._alone: DeviceCapture | None = None
        """Steps with the activities of the device alone."""
        self._aside: Window | None = None
        self._windows = 0
        self._since_ns = 0
        self._before_ns: list[int] = []
        self._after_ns: list[int] = []
        """Times of steps before the light ones and after the window, without a profiler."""
        self._behind_ns = {"before": 0, "after": 0}
        """How long the device still worked when the last of them was over for the host."""
        self._unprofiled_faults: list[int] = []
        """How often those before touched new pages of memory."""
        self._passes_ns: tuple[int, ...] = ()
        """Host time of passes on the device before any profiler ran."""
        self._complete = False
        """All that was asked for is recorded."""
        self._detached = False
        """After it the profiler of the device was taken out of the process."""
        self._since_faults = 0
        self._gave_way = False
        self._stuck = False
        self._began = False
        self._thread = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._signals = Signals(self._cut_off)
        self._groups = GroupWatch(torch, self._look_around)
        turns.give_way = self.interrupt
        _watch_forks(self)

    @property
    def recording(self) -> bool:
        return self._capture is not None

    @property
    def waiting(self) -> bool:
        """Nothing has been recorded yet, because the program's own profiler is on."""
        return self._began and not self.done and self._windows == 0

    @property
    def here(self) -> bool:
        """Whether this is the process and thread that began: steps of other threads do not count."""
        return not self.done and self._pid == os.getpid() and self._thread in (0, threading.get_ident())

    def begin(self) -> None:
        """Begins, or tries again if the program's own profiler was on."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self.here or (self._began and not self.waiting):
                return
            if not self._began:
                self._began = True
                self._thread = threading.get_ident()
                self._signals.watch()
                self._passes_ns = light.passes_ns(self._torch)
                if self._passes_ns and self.options.warmup and self.options.steps is not None:
                    return  # a profiler of the device, once it has run, slows down every later call
            self._open()

    def step_done(self, counted_by: str, optimizer_steps: int = 0) -> None:
        """A step is over, with that many steps of optimizers, if known. Once the caller counts steps, detected ones
        are ignored."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self.here or not self._began:
                return
            if (counted_by == "optimizer" and self.counted_by == "call") or (
                self._complete and counted_by != self.counted_by
            ):
                return
            before, self.counted_by = self.counted_by, counted_by
            for window in (self._light, self._alone):
                if window is not None and window.running:
                    window.unmark()
            if (counted_by, before) != ("call", "optimizer"):
                self.steps_seen += 1
                self._time_step()
                self._advance(optimizer_steps)
            elif self.steps_seen > 1:  # the program's first step was taken for several; if for one, that was right
                self._start_over()
            self._begin_timing()

    def regroup(self) -> bool:
        """Whether the steps of the warm-up may have been parts of one that is over now: their times are forgotten.
        Not once the window has begun."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            recording = self._complete or (self.recording and self.steps_seen >= self.options.warmup)
            if recording or not self.here or self.counted_by != "optimizer":
                return False
            self._drop_light()
            self._forget_steps()
            self._begin_timing()
            return True

    def _begin_timing(self) -> None:
        alone = self._alone is not None and self._alone.running
        profiled = self._capture is not None or self._light is not None or alone
        self._since_ns = 0 if profiled or self._turns.taken else time.perf_counter_ns()
        self._since_faults = page_faults()

    def interrupt(self) -> None:
        """The program's own profiler or observer is about to begin."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._drop_light()
            capture = self._capture
            if self.done or capture is None:
                return
            self._gave_way = True
            self._capture = None
            if not capture.can_stop:  # left running: to stop it would stop the program's
                self._stuck = True
                capture.let_go()
                return
            window = Window(capture, self._first_step, self.steps_recorded, self._optimizer_steps)
            with contextlib.suppress(Exception):  # it is lost then; the program's own must begin all the same
                capture.stop()
                self._put_aside(window)

    def _drop_light(self) -> None:
        """One that runs is of no use; what is done is kept."""
        if self._alone is not None:
            self._alone.stop(within_step=True)
        running, self._light = self._light, None
        if running is None:
            return
        if not running.can_stop:
            self._stuck = True
            return
        with contextlib.suppress(Exception):
            running.stop(within_step=True)
        running.discard()

    def _end_light(self, *, within_step: bool = False) -> None:
        running, self._light = self._light, None
        if running is not None:
            running.stop(within_step=within_step)
            self._lights.append(running)

    def _leave_light(self) -> None:
        """At the end of the program: steps that are done count if they only add to others."""
        if self._alone is not None:
            self._alone.stop(within_step=True)
        running = self._light
        if running is None or not self._lights or running.steps < 2 or not running.can_stop:
            self._drop_light()
            return
        with contextlib.suppress(Exception):
            self._end_light(within_step=True)

    def _put_aside(self, window: Window) -> None:
        other, self._aside = self._aside, window
        if other is not None and other.steps >= window.steps:
            self._aside, other = other, window
        if other is not None:
            other.capture.discard()

    def _start_over(self) -> None:
        self._throw_away()
        self._drop_light()
        for window in self._lights:
            window.discard()
        self._lights = []
        self._forget_steps()
        self.steps_seen, self.steps_recorded = 1, 0
        if self.options.warmup <= 1:
            self._open()

    def _forget_steps(self) -> None:
        self._before_ns, self._unprofiled_faults, self._behind_ns["before"] = [], [], 0

    def _time_step(self) -> None:
        """The time since the previous step, if no profiler was on. After the last of them the device is waited for: the
        window would wait for it as well."""
        last = AFTER if self._complete else self.options.warmup - self._light_steps()
        number = len(self._after_ns) + 1 if self._complete else self.steps_seen
        if not self._since_ns or self._turns.taken or number > last:
            return
        done_ns = time.perf_counter_ns()
        (self._after_ns if self._complete else self._before_ns).append(done_ns - self._since_ns)
        if number == last:
            settle(self._torch)
            self._behind_ns["after" if self._complete else "before"] = time.perf_counter_ns() - done_ns
        if not self._complete:
            self._unprofiled_faults.append(page_faults() - self._since_faults)

    def _unprofiled(self) -> dict[str, Any] | None:
        """Steps without a profiler: all, and those on each side of the windows. Those after them do not count if the
        profiler stayed in the process and there are others."""
        sides = {"before": self._before_ns, "after": self._after_ns}
        sides = {name: took for name, took in sides.items() if took}
        if not sides:
            return None
        as_before = self._detached or not on_device(self._torch) or len(self._before_ns) < 2
        every, behind_ns = self._before_ns, self._behind_ns["before"]
        if as_before:
            every, behind_ns = every + self._after_ns, sum(self._behind_ns.values())
        step_ns = self._typical(every, behind_ns)
        found = {"count": len(every), "step_ns": step_ns, "least_ns": min(every), "most_ns": max(every)}
        return found | {
            name: {"count": len(took), "step_ns": self._typical(took, self._behind_ns[name])}
            for name, took in sides.items()
        }

    def _typical(self, took_ns: list[int], behind_ns: int = 0) -> int:
        """A host runs ahead of its device, so only the sum of all steps is meaningful there, with what the device still
        did after them (`behind_ns`) and without those in which something was compiled."""
        middle = statistics.median(took_ns)
        if not on_device(self._torch):
            return int(middle)
        counted = [took for took in took_ns if took <= HELD_UP * middle]
        return (sum(counted) + behind_ns) // len(counted)

    def _light_steps(self) -> int:
        return 0 if self.options.full_only else light.light_steps(self.options.warmup, self.options.steps)

    def _light_done(self) -> bool:
        """Whether enough steps were recorded lightly: on a CPU those of the warm-up."""
        if self.options.full_only or not on_device(self._torch):
            return True
        windows = [one for one in (*self._lights, self._light) if one is not None]
        steps = sum(max(one.steps - 1, 0) for one in windows)
        return steps >= light.STEPS or sum(sum(one.took_ns) for one in windows) > light.LONG_NS

    def _follow(self) -> None:
        """Steps after the full window: a few without a profiler, then some lightly."""
        if self._turns.taken:
            self.finish()
        elif len(self._after_ns) < AFTER or self._record_alone():
            pass
        elif self._light_done():
            self._end_light()
            detach.detach(self._torch)
            self.finish()
        else:
            self._open_light()

    def _record_alone(self) -> bool:
        """Whether the next step is recorded with the activities of the device alone: where its profiler can be taken
        out of the process before and after."""
        if self.options.full_only or not self._detached:
            return False
        if self._alone is None:
            self._alone = DeviceCapture(self._torch)
        window = self._alone
        if not window.running:
            return False
        if window.works and window.steps < device_alone.STEPS and sum(window.took_ns) < light.LONG_NS:
            window.mark()
        else:
            window.stop()
        return window.running

    def _advance(self, optimizer_steps: int) -> None:
        if self._complete:
            self._follow()
            return
        self._look_around()
        if self.steps_seen < self.options.warmup:
            self._throw_away()
            if self.options.warmup - self.steps_seen <= self._light_steps():
                self._open_light()
        elif self.steps_seen == self.options.warmup:
            self._throw_away()
            self._end_light()
            self._open()
        elif self._capture is None:
            self._open()
        else:
            self.steps_recorded += 1
            self._optimizer_steps += (optimizer_steps,)
            if self.steps_recorded == self.options.steps:
                self._close()
            else:
                self._capture.mark(self.steps_seen)

    def _close(self) -> None:
        """All is recorded. It is written when a few more steps have been timed, or at the end."""
        capture, self._capture = self._capture, None
        if capture is None:
            return
        capture.stop()
        self._detached = detach.detach(self._torch)
        self._put_aside(Window(capture, self._first_step, self.steps_recorded, self._optimizer_steps))
        self._complete = True

    def finish(self, reason: str = "") -> None:
        """Writes what was recorded; `reason` says why it is incomplete. Safe to call twice."""
        if self._pid != os.getpid():  # forked: the lock may be held by a thread of the parent
            return
        with self._lock:
            if self.done:
                return
            if self._began:
                self._signals.hold()
            self.done = True
            self._groups.stop()
            if not self._began:
                return
            self._leave_light()
            with self._leaving_nothing():
                window = self._last_window()
                self._settle_name()
                self._first_step, self.steps_recorded = (window.first_step, window.steps) if window else (0, 0)
                self._optimizer_steps = window.optimizer_steps if window else ()
                if window is not None:
                    self._write(window.capture)
                self._write_manifest(reason or self._missing(), window)
                layout.publish(self._folder, self._pid, force=self.options.force)

    def _last_window(self) -> Window | None:
        """The window to write: the longest recorded one. Without warm-up and incomplete steps."""
        capture, window = self._capture, self._aside
        if capture is not None:
            self._look_around()
            capture.stop()
            if window is None or self.steps_recorded >= window.steps:
                window = Window(capture, self._first_step, self.steps_recorded, self._optimizer_steps)
        if window is None or not self.counted_by:
            return window
        left_over = self._gave_way and window.steps == 0
        return None if left_over or self.steps_seen < self.options.warmup else window

    @contextmanager
    def _leaving_nothing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._throw_away(stopped=True)
            layout.abandon(self._folder, self._pid)
            for window in self._lights:
                window.discard()
            self._signals.leave()

    def _open(self) -> None:
        if self._turns.taken or self._stuck:
            self._gave_way = True
            return
        self._first_step, self.steps_recorded, self._optimizer_steps = self.steps_seen, 0, ()
        self._windows += 1
        folder = layout.recording_folder(self._folder, self._pid, self._windows)
        self._capture = Capture(self._torch, self.options, folder)
        self._capture.mark(self.steps_seen)

    def _open_light(self) -> None:
        if self._turns.taken or self._stuck:
            return
        if self._light is None:
            self._windows += 1
            folder = layout.recording_folder(self._folder, self._pid, self._windows)
            self._light = LightCapture(self._torch, folder, self._passes_ns)
            self._passes_ns = self._light.plain_ns
        self._light.mark(self.steps_seen)

    def _throw_away(self, *, stopped: bool = False) -> None:
        capture, self._capture = self._capture, None
        aside, self._aside = self._aside, None
        if capture is not None:
            if not stopped:
                capture.stop(export=False)
                detach.detach(self._torch)
            capture.discard()
        if aside is not None:
            aside.capture.discard()

    def _look_around(self) -> None:
        """Looks up process groups, which are made late and may be gone at the end."""
        now = world(self._torch)
        if now.known:
            now.groups = with_earlier(self.world.groups, now.groups)
        if now.known or not self.world.known:
            self.world = now

    def _missing(self) -> str:
        asked, warmup = self.options.steps, self.options.warmup
        why = ": the program runs its own profiler" if self._gave_way else ""
        if not self.counted_by:
            return f"it was recorded only in part{why}" if why else ""
        if self.steps_seen < warmup or (asked is None and self.steps_recorded == 0):
            return f"ended after {self.steps_seen} steps, the warm-up is {warmup}{why}"
        if asked is not None and self.steps_recorded < asked:
            return f"ended after {self.steps_recorded} of {asked} steps{why}"
        return f"it was recorded only in part{why}" if why and asked is None else ""

    def _settle_name(self) -> None:
        """Among several processes that claim one rank, the first is that rank; one known from torch.distributed takes
        precedence over those known only from their environment. The others are stored as processes next to it."""
        here = self.world
        if self._shared and not here.process and not layout.claim(self._folder, here.rank, self._pid, sure=here.known):
            here.process = process_name()

    def _path(self, ending: str) -> Path:
        """Where a file is written; `layout.publish` gives it its place."""
        return layout.path_of(layout.writing_folder(self._folder, self._pid), self.options.name, self.world.who, ending)

    def _write(self, capture: Capture) -> None:
        force = self.options.force
        host, device = self._path(layout.HOST), self._path(layout.DEVICE)
        layout.compress(capture.host, host, force=force)
        layout.compress(capture.device, device, force=force)
        self.files = {"host": host.name, "device": device.name}
        found = [events for window in self._lights if (events := window.events())]
        if found:
            events = light.in_one(found) if found[0]["device"] else found[0]
            if self._unprofiled_faults:
                events["page_faults"] = min(self._unprofiled_faults)
            if self._alone is not None and (alone := self._alone.events()):
                events["alone"] = alone
            path = self._path(layout.LIGHT)
            layout.write_json(path, events, force=force)
            self.files["light"] = path.name
        code = compiled.sources()
        if code:
            path = self._path(layout.COMPILED)
            layout.write_json(path, code, force=force)
            self.files["compiled"] = path.name
        self._write_calls(capture)

    def _write_calls(self, capture: Capture) -> None:
        entries = None
        if self.options.flight_recorder:
            entries = flight.entries(self.world.rank, self.world.groups, capture.start_ns, capture.end_ns)
        if entries is not None:
            path = self._path(layout.FLIGHT)
            layout.write_json(path, entries, force=self.options.force)
            self.files["flight_recorder"] = path.name
        calls = communications.all_calls(capture.calls, entries["entries"] if entries is not None else ())
        if calls:
            path = self._path(layout.CALLS)
            found = {"format": communications.FORMAT, "rank": self.world.rank, "calls": calls}
            layout.write_json(path, found, force=self.options.force)
            self.files["communications"] = path.name

    def _write_manifest(self, reason: str, window: Window | None) -> None:
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
                "optimizer_steps": list(self._optimizer_steps) if self.counted_by == "optimizer" else None,
                "unprofiled": self._unprofiled(),
            },
            "windows": self._windows_told(window),
            "window_ns": [window.capture.start_ns, window.capture.end_ns] if window is not None else None,
        }
        layout.write_json(self._path(layout.MANIFEST), about, force=self.options.force)

    def _windows_told(self, window: Window | None) -> list[dict[str, Any]]:
        """Each window with the time of its steps, and what recording added to that of a step without a profiler."""
        unprofiled = self._unprofiled()
        found: list[dict[str, Any]] = []
        if "light" in self.files:
            step_ns = self._typical([took for one in self._lights for took in one.took_ns])
            found.append({"kind": "light", "file": self.files["light"], "step_ns": step_ns})
            if self._alone is not None and self._alone.works and self._alone.took_ns:
                alone_ns = self._typical(self._alone.took_ns, self._alone.behind_ns)
                found[0] |= {"step_ns": alone_ns, "calls": _cost(step_ns, unprofiled)}
        if window is not None and window.steps:
            took_ns = window.capture.took_ns // window.steps
            found.append({"kind": "full", "file": self.files["device"], "step_ns": took_ns})
        for one in found:
            one |= _cost(one["step_ns"], unprofiled)
            if one["kind"] == "light" and one["cost"] is not None and abs(one["cost"]) > DIFFERS:
                one["note"] = f"its steps take {one['cost']:+.0%} compared with those without a profiler"
        return found

    def _cut_off(self, signal_name: str) -> None:
        with contextlib.suppress(Exception):  # the process is about to be ended by the signal, as without us
            self.finish(signal_name)

    def forked(self) -> None:
        self.done = True
        if self._capture is not None:
            self._capture.let_go()


def _cost(step_ns: int, unprofiled: dict[str, Any] | None) -> dict[str, Any]:
    """A step of a window, and what recording added to it."""
    return {"step_ns": step_ns, "cost": round(step_ns / unprofiled["step_ns"] - 1, 4) if unprofiled else None}


def _watch_forks(recorder: Recorder) -> None:
    if not hasattr(os, "register_at_fork"):
        return
    known = weakref.ref(recorder)

    def in_child() -> None:
        found = known()
        if found is not None and found.recording:
            found.forked()

    os.register_at_fork(after_in_child=in_child)
