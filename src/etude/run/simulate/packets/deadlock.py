"""Packets that nothing moves any more: which full buffers wait for one another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from etude.base.errors import DeadlockError
from etude.run.simulate.packets.state import PacketState


def deadlock_of(state: PacketState, name: Callable[[int], str]) -> DeadlockError | None:
    """The error for ports that are paused when nothing happens any more, with the cycle in which they wait."""
    paused = np.flatnonzero(state.ports["paused"] == 1)
    waits = {int(port): _waits_for(state, int(port)) for port in paused}
    for first in waits:
        seen, at = [], first
        while at in waits and at not in seen:
            seen.append(at)
            at = waits[at]
        if at in seen:
            cycle = seen[seen.index(at) :]
            told = " waits for ".join(name(port) for port in [*cycle, cycle[0]])
            return DeadlockError(
                f"packets wait in a cycle of {len(cycle)} full buffers: {told}", hint="choose routes without a cycle"
            )
    if not len(paused):
        return None
    return DeadlockError(
        f"packets wait for {name(int(paused[0]))}, which is never resumed",
        hint="a resume threshold of at least a packet",
    )


def _waits_for(state: PacketState, number: int) -> int:
    """The paused port that holds most of what came over a paused port's link; -1: none does."""
    held: dict[int, int] = {}
    for port in np.flatnonzero(state.ports["paused"] == 1).tolist():
        packet = int(state.ports[port]["passing"]["head"])
        while packet >= 0:
            it = state.packets[packet]
            if int(it["came_over"]) == number:
                held[port] = held.get(port, 0) + int(it["size_bytes"])
            packet = int(it["next"])
    return max(held, key=lambda port: (held[port], -port)) if held else -1
