"""Ctrl-C among processes that wait for one another: all end with the iterations that all have done."""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist


class Stopping:
    """Takes Ctrl-C as a wish from `watch()` on. Before that it ends the process, as ever."""

    def __init__(self, device: torch.device) -> None:
        self._asked = torch.zeros(1, dtype=torch.int32, device=device)
        self.wanted = False

    def watch(self) -> None:
        signal.signal(signal.SIGINT, self._wish)

    def _wish(self, *_: Any) -> None:
        self.wanted = True

    def agreed(self, some: bool = True) -> bool:
        """Meets the other processes, as a barrier does: is one of them to stop? With nothing done there is nothing to
        keep."""
        self._asked.fill_(int(self.wanted))
        dist.all_reduce(self._asked, op=dist.ReduceOp.MAX)
        if not int(self._asked.item()):
            return False
        if not some:
            raise KeyboardInterrupt
        return True
