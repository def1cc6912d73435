"""PyTorch's native code says on stderr that observer and profiler start and stop. The program's stderr is its own."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDERR = 2
_TALK = (b"Execution Trace Observer", b"ActivityProfilerHandler", b"ActivityProfilerProxy")


@contextmanager
def quiet() -> Iterator[None]:
    """Holds back what is written to stderr, and lets it through at the end, less that talk."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    try:
        before = os.dup(_STDERR)
    except OSError:  # closed: nothing to keep quiet
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
            os.dup2(before, _STDERR)
            os.close(before)
            held.seek(0)
            kept = b"".join(line for line in held if not any(talk in line for talk in _TALK))
            with suppress(OSError):
                os.write(_STDERR, kept)
