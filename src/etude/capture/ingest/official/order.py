"""The output of `--simulate` of the official converter: a clock of whole microseconds, one host, one node per
stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from etude.kernels.csr import reverse
from etude.model.trace import Trace


def simulated_order(trace: Trace) -> Iterator[str]:
    """The lines of its debug log about issue and completion, without their time stamps.

    Its rules: all threads share one host; a node releases what waits for it when it is issued, not when it completes;
    what is ready is taken in the order in which it became so.
    """
    return _Clock(trace).lines()


class _Clock:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ids = trace.source_id.tolist()
        self._row_of = dict(zip(self._ids, range(len(trace)), strict=True))
        self._took_us = np.maximum(trace.duration_ns, 0) // 1000
        self._on_host = (trace.cpu != 0).tolist()
        self._waits = np.diff(trace.data_start)
        self._start, self._waiting = reverse(trace.data_start, trace.data)
        self._host: deque[int] = deque()
        self._streams: dict[int, deque[tuple[int, int]]] = {}
        self._released = 0
        """Nodes that became ready on the device so far."""
        self._running: dict[int, tuple[int, int]] = {}
        """Stream -> (row, us of its start)."""
        self._host_running: tuple[int, int] | None = None
        for row in np.flatnonzero(self._waits == 0).tolist():
            self._ready(row)

    def lines(self) -> Iterator[str]:
        now_us = 0
        while self._host or self._running or self._host_running or any(self._streams.values()):
            issued: set[int] = set()  # of ids: released in the order in which Python keeps a set of them
            yield from self._issue(now_us, issued)
            now_us = now_us + 1 if issued else self._next(now_us)
            yield from self._complete(now_us)
            for node in issued:
                self._release(self._row_of[node])

    def _ready(self, row: int) -> None:
        if self._on_host[row]:
            self._host.append(row)
        else:
            self._streams.setdefault(int(self._trace.stream[row]), deque()).append((self._released, row))
            self._released += 1

    def _release(self, row: int) -> None:
        for other in self._waiting[self._start[row] : self._start[row + 1]].tolist():
            self._waits[other] -= 1
            if self._waits[other] == 0:
                self._ready(other)

    def _issue(self, now_us: int, issued: set[int]) -> Iterator[str]:
        if self._host and self._host_running is None:
            row = self._host.popleft()
            self._host_running = row, now_us
            issued.add(self._ids[row])
            yield (
                f"Issuing CPU Node ID {self._ids[row]} ({self._trace.text('name', row)}) at {now_us}us with duration "
                f"{self._took_us[row]}us, tid: {self._trace.thread[row]}"
            )
        free = [(ready[0], stream) for stream, ready in self._streams.items() if ready and stream not in self._running]
        for (_, row), stream in sorted(free):
            self._streams[stream].popleft()
            self._running[stream] = row, now_us
            issued.add(self._ids[row])
            yield (
                f"Issuing GPU Node ID {self._ids[row]} ({self._trace.text('name', row)}) at {now_us}us on stream "
                f"{stream} with duration {self._took_us[row]}us, tid: stream {stream}"
            )

    def _next(self, now_us: int) -> int:
        """When the first of those in progress completes: nothing was issued, so nothing happens before."""
        under_way = [*self._running.values(), *([self._host_running] if self._host_running else [])]
        return max(now_us + 1, min(start + int(self._took_us[row]) for row, start in under_way))

    def _complete(self, now_us: int) -> Iterator[str]:
        if self._host_running is not None:
            row, start = self._host_running
            if now_us - start >= self._took_us[row]:
                yield f"CPU Node ID {self._ids[row]} completed at {now_us}us, tid: {self._trace.thread[row]}"
                self._host_running = None
        done = [stream for stream, (row, start) in self._running.items() if now_us - start >= self._took_us[row]]
        for stream in done:
            row, _ = self._running.pop(stream)
            yield f"GPU Node ID {self._ids[row]} on stream {stream} completed at {now_us}us, tid: stream {stream}"
