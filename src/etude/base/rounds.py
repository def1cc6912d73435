"""Work of Python, for those who record and those who replay. How fast a core is changes from moment to moment, and by
half as much again where two threads share one: so work is counted in passes through a small network, which is all
Python, dispatcher and autograd, and played as rounds of an empty loop. PyTorch is handed in."""

import statistics
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

ROUNDS = 4000
"""To time one."""
LAYERS, NODES = 6, 4
"""Of the network, and the nodes of autograd of a layer."""
KERNELS = 3 * LAYERS + 1
"""Launches of a pass forward on a device."""


def work(rounds: int) -> None:
    """Slower where any Python would be, since it is work and no wait."""
    for _ in repeat(None, rounds):
        pass


def round_ns() -> float:
    """CPU time of a round, right now."""
    return worked_ns(lambda: work(ROUNDS)) / ROUNDS


def pause_rounds() -> float:
    """What a call of `work` takes without its rounds."""

    def pauses() -> None:
        for _ in repeat(None, ROUNDS):
            work(0)

    return max(worked_ns(pauses) / ROUNDS / round_ns() - 1, 0.0)


def worked_ns(play: Callable[[], object]) -> int:
    """CPU time of this thread."""
    begin = time.thread_time_ns()
    play()
    return time.thread_time_ns() - begin


class SmallNetwork:
    """Passes through it are timed."""

    def __init__(self, torch: Any, device: str = "cpu") -> None:
        self._torch = torch
        with torch.enable_grad():
            self._first = torch.ones(8, 8, device=device, dtype=torch.float32)
            self._weights = [torch.full((8, 8), 0.1, device=device, requires_grad=True) for _ in range(LAYERS)]

    def run(self) -> int:
        """A pass forward, and backward where gradients are on; the CPU time at which the first half was over."""
        x = self._first
        for weight in self._weights:
            x = x + (x * weight).relu().t()
        x, half = x.sum(), time.thread_time_ns()
        if x.requires_grad:
            self._torch.autograd.grad(x, self._weights)
        return half

    def pass_ns(self) -> tuple[int, int]:
        """CPU time of a pass forward, and backward where gradients are on."""
        begin, half = time.thread_time_ns(), self.run()
        return half - begin, time.thread_time_ns() - half

    def plain_ns(self, passes: int) -> float:
        """CPU time of a pass that no profiler sees: the median."""
        self._torch.autograd._enable_record_function(False)
        try:
            with self._torch.enable_grad():
                return float(statistics.median(sum(self.pass_ns()) for _ in range(passes)))
        finally:
            self._torch.autograd._enable_record_function(True)
