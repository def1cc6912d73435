"""SIGTERM and SIGHUP end a process without informing Python. Here they write first, and then end it just the same."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_NAMES = ("SIGTERM", "SIGHUP")
_PATIENCE_S = 10.0
_AGAIN_S = (0.2, 1.0, 3.0)
"""After these times the main thread is woken once more."""


class Signals:
    """From `watch()` to `leave()`: `write(name)` is called before the signal takes its usual effect.

    Signals that the program handles or ignores itself are left alone. Python runs handlers only between two of its
    own instructions; a main thread that is stuck in native code (a collective whose peer is gone) never comes
    there. So a thread watches too, and lets the signal through after a while: a process that could be
    killed before can be killed now.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._ours: list[int] = []
        self._handling = threading.Event()
        self._began = False
        self._wake = -1
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        self._ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
        for number in self._ours:
            signal.signal(number, self._handle)
        if self._ours and os.name == "posix":
            self._watch_from_a_thread()

    def hold(self) -> None:
        """Files are being written: signals, including Ctrl-C and those that the program handles, wait until
        `leave()`. A handler of the program that raises would end the writing."""
        self._handling.set()
        if threading.current_thread() is not threading.main_thread():
            return
        numbers = [getattr(signal, name) for name in (*_NAMES, "SIGINT") if hasattr(signal, name)]
        for number in numbers:
            if signal.getsignal(number) not in (None, signal.SIG_IGN):  # None: not of Python
                self._before[number] = signal.signal(number, lambda number, _: self._came.append(number))

    def leave(self) -> None:
        self._handling.set()
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for number in self._ours:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        came, self._ours, self._before, self._came = self._came, [], {}, []
        self._stop_listening()
        for number in came:
            signal.raise_signal(number)

    def _handle(self, number: int, _: object) -> None:
        if self._began:  # it came once more, to wake this thread
            return
        self._began = True
        self._handling.set()
        self._write(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _watch_from_a_thread(self) -> None:
        hear, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        if before != -1:  # another handler is installed: keep it
            signal.set_wakeup_fd(before)
            os.close(self._wake)
            os.close(hear)
            self._wake = -1
            return
        thread = threading.Thread(target=self._listen, args=(hear,), name="etude-signals", daemon=True)
        thread.start()

    def _stop_listening(self) -> None:
        if self._wake >= 0:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._wake):
                signal.set_wakeup_fd(before)
            os.close(self._wake)
            self._wake = -1

    def _listen(self, hear: int) -> None:
        ours = set(self._ours)
        while came := os.read(hear, 1):
            if came[0] in ours and not self._handled(came[0]):
                ctypes.CDLL(None).signal(came[0], None)  # SIG_DFL; Python itself allows that in the main thread only
                os.kill(os.getpid(), came[0])
        os.close(hear)

    def _handled(self, number: int) -> bool:
        """Whether the main thread has come to its handler. If it just began to wait when the signal came, or another
        thread got that, it was not woken: it gets the signal itself."""
        main = threading.main_thread().ident
        for wait_s in _AGAIN_S:
            if self._handling.wait(wait_s):
                return True
            if main is not None:
                signal.pthread_kill(main, number)
        return self._handling.wait(_PATIENCE_S - sum(_AGAIN_S))
