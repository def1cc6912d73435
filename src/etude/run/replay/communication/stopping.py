"""Ctrl-C for processes that wait for one another: all of them stop after the same iteration."""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist


class Stopping:
    """Handles Ctrl-C as a request to stop once `watch()` has been called. Before that, Ctrl-C ends the process as
    usual."""

    def __init__(self, device: torch.device) -> None:
        self._asked = torch.zeros(1, dtype=torch.int32, device=device)
        self.wanted = False

    def watch(self) -> None:
        signal.signal(signal.SIGINT, self._wish)

    def _wish(self, *_: Any) -> None:
        self.wanted = True

    def agreed(self, some: bool = True) -> bool:
        """Synchronises with the other processes, like a barrier. Returns whether any of them is to stop; raises
        KeyboardInterrupt instead if there is nothing to keep (`some` is False)."""
        self._asked.fill_(int(self.wanted))
        dist.all_reduce(self._asked, op=dist.ReduceOp.MAX)
        if not int(self._asked.item()):
            return False
        if not some:
            raise KeyboardInterrupt
        return True
