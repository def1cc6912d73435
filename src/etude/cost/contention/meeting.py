"""An operator next to another on one device, and an operator on a device with occupied cores.

    beside(device, launch_of(device, matmul(...)), launch_of(device, elementwise(...)))   # its time in ns

Two streams of kernels meet in three places: cores (a queue of blocks, with the tail of one for the other), the memory's
bandwidth (max-min fair), the link to the host (one queue each way, both ways together slower). A collective holds its
cores from the moment in which there is room for all of its blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from etude.base.errors import UsageError
from etude.cost.contention.blocks import ONCE, StopRule, ends_ns
from etude.cost.contention.launches import Launch, grids_of, memory_rate, room_on
from etude.machine.system import Device

PERIODS: Final = 8
"""Approximate number of background kernels that an operator is followed over."""
MOST: Final = 256
"""Most kernels of the operator."""


def excess(device: Device, op: Launch, background: Launch) -> float:
    """Slowdown of an operator while the background runs, as a fraction of its time alone: from `beside` and `held`, and
    by closed forms for waits for cores and shared links."""
    if op.copies or background.copies:
        return max(_copied(device, op, background) / op.alone_ns - 1, _on_link(device, op, background))
    if not op.blocks or not background.blocks:
        return 0.0
    if background.holds and not op.holds:
        return (
            held(device, op, background.blocks, 1e9 * background.memory_bytes / background.alone_ns) / op.alone_ns - 1
        )
    if not op.holds:
        return beside(device, op, background) / op.alone_ns - 1
    waits_ns = 0.0 if background.holds else _wait_ns(device, op, background)
    return waits_ns / op.alone_ns + _shared(_memory_part(device, op), _memory_part(device, background))


def _wait_ns(device: Device, op: Launch, background: Launch) -> float:
    """Mean time without cores of a collective that arrives while kernels repeat. Its own length does not matter once it
    has them."""
    short_ns = min(op.alone_ns, background.alone_ns)
    short = replace(op, alone_ns=short_ns, core_ns=short_ns, size_bytes=0.0)
    return max(beside(device, short, background) - short_ns, 0.0)


def _memory_part(device: Device, launch: Launch) -> float:
    return launch.memory_bytes / launch.alone_ns / memory_rate(device)


def _shared(own: float, other: float) -> float:
    """How much longer a user of the fraction `own` of a capacity takes next to a user of `other`, max-min fair."""
    return own / max(1 - other, 0.5) - 1 if own > max(1 - other, 0.5) else 0.0


def _on_link(device: Device, op: Launch, background: Launch) -> float:
    """The same on the link to the host, for a copy and a collective that uses it."""
    link = device.host_link
    copy, other = (op, background) if op.copies else (background, op)
    if link is None or other.copies or not other.link_bytes:
        return 0.0
    rate = (link.read_bytes_per_s if copy.copies == "h2d" else link.write_bytes_per_s) / 1e9
    copied, sent = copy.size_bytes / copy.alone_ns / rate, other.link_bytes / other.alone_ns / rate
    return _shared(min(copied, 1.0), sent) if op is copy else _shared(min(sent, 1.0), copied)


def beside(device: Device, op: Launch, background: Launch) -> float:
    """Mean time of the operator in ns, repeated on one stream while the background repeats on another."""
    if op.copies or background.copies:
        return _copied(device, op, background)
    enough = StopRule(PERIODS, MOST, PERIODS * (op.alone_ns + background.alone_ns), alone=False)
    ends = ends_ns(grids_of(op, background), room_on(device), enough)
    return float(ends[-1]) / len(ends)


def held(device: Device, op: Launch, cores: int, drawn_bytes_per_s: float = 0.0) -> float:
    """Time of the operator in ns while a kernel holds this many cores and draws bytes from memory."""
    if op.copies:
        return op.alone_ns
    if drawn_bytes_per_s < 0:
        raise UsageError(f"a holder cannot draw {drawn_bytes_per_s:g} B/s")
    on = room_on(device, cores, drawn_bytes_per_s / 1e9)
    return float(ends_ns(grids_of(op, op), on, ONCE)[0]) + op.gap_ns


def _copied(device: Device, op: Launch, background: Launch) -> float:
    """A copy engine takes no core. Its bytes are part of the memory's; two copies share the link."""
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
