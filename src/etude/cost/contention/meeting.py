"""An operator beside another on one device, and one on a device of which cores are held.

    beside(device, launch_of(device, matmul(...)), launch_of(device, elementwise(...)))   # its time in ns

Two streams of kernels meet in three places: cores (a queue of blocks, with the tail of one for the other), the memory's
bandwidth (max-min fair), the link to the host (one queue each way, both ways together slower).
"""

from __future__ import annotations

from typing import Final

from etude.cost.contention.blocks import ONCE, Stop, ends_ns
from etude.cost.contention.launches import Launch, grids_of, memory_rate, room_on
from etude.errors import UsageError
from etude.machine.system import Device

PERIODS: Final = 8
"""Kernels of the background that an operator is followed over, about."""
MOST: Final = 256
"""Kernels of the operator, at most."""


def beside(device: Device, op: Launch, background: Launch) -> float:
    """Mean time of the operator in ns, repeated on one stream while the background repeats on another."""
    if op.copies or background.copies:
        return _copied(device, op, background)
    enough = Stop(PERIODS, MOST, PERIODS * (op.alone_ns + background.alone_ns), alone=False)
    ends = ends_ns(grids_of(op, background), room_on(device), enough)
    return float(ends[-1]) / len(ends)


def held(device: Device, op: Launch, cores: int, drawn_bytes_per_s: float = 0.0) -> float:
    """Time of the operator in ns while a kernel holds so many cores and draws bytes from memory."""
    if op.copies:
        return op.alone_ns
    if drawn_bytes_per_s < 0:
        raise UsageError(f"a holder that draws {drawn_bytes_per_s:g} B/s")
    on = room_on(device, cores, drawn_bytes_per_s / 1e9)
    return float(ends_ns(grids_of(op, op), on, ONCE)[0]) + op.gap_ns


def _copied(device: Device, op: Launch, background: Launch) -> float:
    """A copy engine takes no core. Its bytes are some of the memory's; two copies meet on the link."""
    link = device.host_link
    if op.copies and background.copies:
        if op.copies == background.copies:
            return op.alone_ns + background.alone_ns
        alone = (link.read_bytes_per_s if op.copies == "h2d" else link.write_bytes_per_s) if link else 0.0
        return op.alone_ns * (alone / link.both_bytes_per_s if link and link.both_bytes_per_s else 1.0)
    if op.copies:
        return op.alone_ns
    taken = background.size_bytes / background.alone_ns / memory_rate(device)
    memory = op.memory_bytes / op.alone_ns / memory_rate(device)
    return op.alone_ns * max(1.0, memory + taken)
