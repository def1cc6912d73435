"""Whose turn it is: PyTorch has one profiler and one observer in a process, and two at a time crash it.

A profiler is taken from the moment it is prepared (the warm-up of a schedule), in whatever thread, until it is
disabled; an observer from its registration until it is removed. The program's own come first: ours ends before one of
them begins, and does not begin before all of them have ended.
"""

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_PREPARES = ("torch.autograd.profiler", "_prepare_profiler", "profiler")
_TAKES = (
    ("torch.autograd.profiler", "_enable_profiler", "profiler"),
    ("torch.autograd.profiler_legacy", "_enable_profiler_legacy", "legacy profiler"),
    ("torch.profiler.profiler", "_add_execution_trace_observer", "observer"),
)
_GIVES_BACK = (
    ("torch.autograd.profiler", "_disable_profiler", "profiler"),
    ("torch.autograd.profiler_legacy", "_disable_profiler_legacy", "legacy profiler"),
    ("torch.profiler.profiler", "_remove_execution_trace_observer", "observer"),
)
_caller = threading.local()


@contextmanager
def ours() -> Iterator[None]:
    """Marks what this thread starts and stops as ours, not the program's."""
    before = getattr(_caller, "ours", False)
    _caller.ours = True
    try:
        yield
    finally:
        _caller.ours = before


class Turns:
    """From `Turns(...)` to `stop()`: `give_way` is called before the program's profiler or observer begins."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.give_way: Callable[[], None] = lambda: None
        self._held: list[tuple[str, int]] = []  # what, and the thread that took it; several times where they are nested
        self._prepared: list[int] = []  # threads whose next profiler is held already
        self._lock = threading.Lock()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        if _begun(torch):
            self._held.append(("profiler", threading.get_ident()))
        self._replace(*_PREPARES[:2], functools.partial(self._taking, _PREPARES[2], prepares=True))
        for module, name, what in _TAKES:
            self._replace(module, name, functools.partial(self._taking, what))
        for module, name, what in _GIVES_BACK:
            self._replace(module, name, functools.partial(self._giving_back, what))

    @property
    def taken(self) -> bool:
        """Whether the program has a profiler or an observer of its own, active or about to be."""
        return bool(self._held) or bool(self._torch.autograd._profiler_enabled())

    def stop(self) -> None:
        for module, name, new, original in self._replaced:
            if getattr(module, name) is new:
                setattr(module, name, original)
        self._replaced = []

    def _replace(self, module_name: str, name: str, wrap: Callable[[Any], Any]) -> None:
        try:
            module = import_module(module_name)
            original = getattr(module, name)
        except (ImportError, AttributeError):  # another version of PyTorch, without this function
            return
        new = functools.wraps(original)(wrap(original))
        setattr(module, name, new)
        self._replaced.append((module, name, new, original))

    def _taking(self, what: str, original: Callable[..., Any], *, prepares: bool = False) -> Callable[..., Any]:
        def take(*args: Any, **named: Any) -> Any:
            if getattr(_caller, "ours", False):
                return original(*args, **named)
            self._hold(what, prepares=prepares)
            self.give_way()
            try:
                return original(*args, **named)
            except BaseException:
                self._let_go(what)
                raise

        return take

    def _giving_back(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def give_back(*args: Any, **named: Any) -> Any:
            if getattr(_caller, "ours", False):
                return original(*args, **named)
            self.give_way()  # nothing to do, unless the program ends what it has not begun: that must not be ours
            try:
                return original(*args, **named)
            finally:
                self._let_go(what)

        return give_back

    def _hold(self, what: str, *, prepares: bool) -> None:
        me = threading.get_ident()
        with self._lock:
            if prepares:
                self._prepared.append(me)
            elif what == _PREPARES[2] and me in self._prepared:
                self._prepared.remove(me)
                return
            self._held.append((what, me))

    def _let_go(self, what: str) -> None:
        """Releases this thread's entry, or else one of another thread: observers and some profilers are ended from
        anywhere."""
        with self._lock:
            same = [held for held in self._held if held[0] == what]
            mine = [held for held in same if held[1] == threading.get_ident()]
            for held in (mine or same)[:1]:
                self._held.remove(held)


def _begun(torch: Any) -> bool:
    """Whether the program had prepared a profiler before we looked: PyTorch reports only active ones."""
    kind = torch.autograd.profiler.profile
    found = (one for one in gc.get_objects() if type(one) is kind)
    return any(getattr(one, "entered", False) and getattr(one, "kineto_results", one) is None for one in found)
