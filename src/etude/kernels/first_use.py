"""The first use of a kernel after an install compiles it, which takes seconds: the user is informed and can interrupt
it.

    with told_of_compiling(lambda name, seconds: say(f"compiling {name}, up to {seconds:.0f} s")):
        ...

Meanwhile kernels are compiled in a thread of their own, and the main thread waits where signals reach it: LLVM's work
on a large kernel cannot be interrupted. `compiling()` says whether such a thread is still at work; a process that ends
then must not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

Listener = Callable[[str, float], None]
"""(name of the kernel, about how many seconds it takes at most)."""

SECONDS_PER_BYTE = 2.0e-4
"""Of bytecode of a kernel and of those it calls, not all of which every use compiles: an upper bound, chosen by
`benchmarks/bench_compile.py`."""

_listener: Listener | None = None
_finished: threading.Event | None = None
"""Of the last kernel that was compiled in a thread."""


@contextmanager
def told_of_compiling(listener: Listener) -> Iterator[None]:
    """`listener` is called before each kernel that is compiled, not for those it calls or those in the cache."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def compiling() -> bool:
    """Whether a kernel is being compiled that is no longer needed."""
    return _finished is not None and not _finished.is_set()


def announce(name: str, code_bytes: Callable[[], int]) -> None:
    """A kernel was not in the cache. Those that it calls are compiled within it, and are not announced."""
    if _listener is not None and not _nested.active:
        _nested.active = True
        _listener(name, code_bytes() * SECONDS_PER_BYTE)


class _Nested(threading.local):
    active = False


_nested = _Nested()


_LOOK_S: Final = 0.2
"""How long a signal may go unseen."""


def interruptible(compile_kernel: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`compile` of a dispatcher, done in a thread where somebody listens and the caller can be interrupted."""

    def compile_in_thread(signature: Any) -> Any:
        if _listener is None or threading.current_thread() is not threading.main_thread():
            return compile_kernel(signature)
        return _waited_for(lambda: compile_kernel(signature))

    return compile_in_thread


def _waited_for(work: Callable[[], Any]) -> Any:
    global _finished
    found: list[Any] = []
    problems: list[BaseException] = []
    finished = threading.Event()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as problem:
            problems.append(problem)
        finally:
            finished.set()

    _finished = finished
    threading.Thread(target=run, name="compiling", daemon=True).start()
    # Not `join`: a thread whose `join` was interrupted counts as ended. With a limit: a signal that comes between the
    # interpreter's last look and the wait would not end one without.
    while not finished.wait(_LOOK_S):
        pass
    if problems:
        raise problems[0]
    return found[0]
