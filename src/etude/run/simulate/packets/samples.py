"""Kernels of packets: samples of what has happened at all ports, over time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.run.simulate.packets.state import OF_PORT, SENT, PacketState, Table


@kernel(allocates=False)
def sample(state: PacketState, now_ps: int) -> None:
    """Takes the samples that are due by now. Where there is no room for more, every second one is dropped, and from
    then on they are twice as far apart."""
    clock, samples = state.clock[0], state.samples
    while now_ps >= clock.sample_ps:
        if clock.samples == len(samples):
            _halve(state)
            continue
        keep(state, clock.samples, clock.sample_ps)
        clock.samples += 1
        clock.sample_ps += clock.width_ps


@kernel(allocates=False)
def _halve(state: PacketState) -> None:
    clock, samples = state.clock[0], state.samples
    for k in range(len(samples) // 2):
        for p in range(samples.shape[1]):
            first, second, to = samples[2 * k, p], samples[2 * k + 1, p], samples[k, p]
            peak_bytes = max(first.peak_bytes, second.peak_bytes)
            to.queue_byte_ps, to.busy_ps, to.marks = second.queue_byte_ps, second.busy_ps, second.marks
            to.trims, to.drops, to.pauses, to.paused_ps = second.trims, second.drops, second.pauses, second.paused_ps
            to.peak_bytes = peak_bytes
    clock.samples = len(samples) // 2
    clock.width_ps *= 2
    clock.sample_ps = (clock.samples + 1) * clock.width_ps


@kernel(allocates=False)
def keep(state: PacketState, row: int, time_ps: int) -> None:
    """What has happened until a time, up to which nothing else happens."""
    for p in range(len(state.ports)):
        port, to = state.ports[p], state.samples[row, p]
        to.queue_byte_ps = port.queue_byte_ps + np.float64(port.queue_bytes) * (time_ps - port.queue_since_ps)
        to.busy_ps, to.marks, to.trims, to.drops = port.busy_ps, port.marks, port.trims, port.drops
        if port.sending >= 0:
            to.busy_ps -= max(state.events.key[OF_PORT * p + SENT] - time_ps, 0)
        to.pauses, to.paused_ps = port.pauses, port.paused_ps
        if port.paused:
            to.paused_ps += time_ps - port.paused_since_ps
        to.peak_bytes = port.peak_bytes
        port.peak_bytes = port.queue_bytes


class PortTimes(NamedTuple):
    """Intervals between `edges_ps`, and for each of them and each port what happened in it."""

    edges_ps: I64
    ports: Table


def over_time(state: PacketState, end_ps: int) -> PortTimes:
    """What happened in each interval, the last of which ends with the run."""
    count, width = int(state.clock[0]["samples"]), int(state.clock[0]["width_ps"])
    last = np.zeros((1, len(state.ports)), state.samples.dtype)
    end_ps = max(end_ps, count * width + 1)
    keep(state._replace(samples=last), 0, end_ps)
    found = np.concatenate((state.samples[:count], last))
    for name in found.dtype.names or ():
        if name != "peak_bytes":
            found[name] = np.diff(found[name], axis=0, prepend=0)
    return PortTimes(np.append(np.arange(count + 1) * width, end_ps), found)
