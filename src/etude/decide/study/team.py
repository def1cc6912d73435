"""Processes that stay from one run of calls to the next. Calls of a family go to the same process, which then finds
what it made for the others; a process without work takes some from the one that has most.

Processes are forked where that is safe, so that they start at once with all that is loaded; else they are spawned.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeAlias

from etude.decide.study.tasks import Answer

Family: TypeAlias = Callable[[Mapping[str, Any]], Hashable]
"""Point -> what it shares with others; None: it is long, and goes to whoever has least to do."""
At: TypeAlias = Mapping[str, Any]
Do: TypeAlias = Callable[[At], Answer]
TOGETHER: Final = 8
"""Calls of a family that are sent at once, at most."""
THREADED: Final = ("torch", "ray", "jax")
"""What runs threads that Python does not count: a fork of such a process may hang."""


def forks() -> bool:
    """Is it safe to fork this process?"""
    alone = threading.active_count() == 1 and not any(name in sys.modules for name in THREADED)
    return sys.platform == "linux" and alone


class Team:
    """`run` gives (number, answer) of points as they are done; those whose process died are in `lost`."""

    def __init__(self, begin: Callable[[bytes], Do], packed: bytes, count: int, family: Family | None = None) -> None:
        self._family, self._home, self._given = family, dict[Hashable, int](), [0] * count
        self._processes: list[BaseProcess] = []
        self._ends: list[Connection | None] = []
        """Of the pipe to each process; None: it died."""
        forked = forks()
        context = multiprocessing.get_context("fork") if forked else multiprocessing.get_context("spawn")
        for _ in range(count):
            here, there = context.Pipe()
            others = [here, *(end for end in self._ends if end is not None)] if forked else []
            process = context.Process(target=_work, args=(there, begin, packed, others), daemon=True)
            process.start()
            there.close()  # its copy alone is left: a process that dies closes the pipe
            self._processes.append(process)
            self._ends.append(here)

    def run(self, points: Sequence[At], lost: list[int]) -> Iterator[tuple[int, Answer]]:
        queues = self._dealt(points)
        busy: dict[Connection, tuple[int, list[int]]] = {}
        for number in range(len(queues)):
            self._feed(number, points, queues, busy, lost)
        while busy:
            for end in wait(list(busy)):
                assert isinstance(end, Connection)
                number, chunk = busy.pop(end)
                try:
                    answers = end.recv()
                except (EOFError, OSError):
                    self._ends[number] = None
                    lost += chunk
                    continue
                self._feed(number, points, queues, busy, lost)
                yield from zip(chunk, answers, strict=True)
        lost += [i for queue in queues for chunk in queue for i in chunk]  # no worker is left for them

    def close(self) -> None:
        for end in self._ends:
            if end is not None:
                with suppress(OSError):
                    end.send(None)
                end.close()
        for process in self._processes:
            process.join(1.0)
            if process.is_alive():
                process.terminate()
                process.join()

    def _dealt(self, points: Sequence[At]) -> list[deque[list[int]]]:
        """Of each process: chunks of numbers of points, in the order given."""
        queues: list[deque[list[int]]] = [deque() for _ in self._ends]
        open_chunks: dict[Hashable, list[int]] = {}
        for i, at in enumerate(points):
            family = self._family(at) if self._family is not None else None
            if family is None:
                queues[min(range(len(queues)), key=lambda n: len(queues[n]))].append([i])
                continue
            home = self._home.setdefault(family, min(range(len(self._given)), key=self._given.__getitem__))
            self._given[home] += 1
            chunk = open_chunks.get(family)
            if chunk is None or len(chunk) >= TOGETHER:
                chunk = open_chunks[family] = []
                queues[home].append(chunk)
            chunk.append(i)
        return queues

    def _feed(
        self, number: int, points: Sequence[At], queues: list[deque[list[int]]],
        busy: dict[Connection, tuple[int, list[int]]], lost: list[int],
    ) -> None:  # fmt: skip
        end, longest = self._ends[number], max(queues, key=len)
        if end is None or not longest:
            return
        chunk = queues[number].popleft() if queues[number] else longest.pop()
        try:
            end.send([dict(points[i]) for i in chunk])
        except OSError:
            self._ends[number] = None
            lost += chunk
            return
        busy[end] = number, chunk


def _work(end: Connection, begin: Callable[[bytes], Do], packed: bytes, others: Sequence[Connection]) -> None:
    """What a process does: points in, answers out, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends it
    for other in others:
        other.close()
    do = begin(packed)
    with suppress(EOFError, BrokenPipeError):
        while (points := end.recv()) is not None:
            end.send([do(at) for at in points])
