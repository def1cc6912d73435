"""Splits a process that used several devices into ranks, one for each device."""

from __future__ import annotations

import numpy as np

from etude.capture.link import recording as r
from etude.capture.link.recording import DeviceRecording, select
from etude.kernels.arrays import Bool, distinct_values
from etude.model.schema import UNKNOWN


def split(of: DeviceRecording) -> list[DeviceRecording]:
    """One recording for each device, in order of their numbers. A thread goes with the devices that it launches work
    for; one that launches nothing goes with the first. A recording of at most one device is unchanged."""
    work = of.category >= r.KERNEL
    devices = distinct_values(of.device[work]).tolist()
    if len(devices) < 2:
        return [of]
    host = ~work & (of.category != r.SYNC)
    done = []
    for device in devices:
        mine = work & (of.device == device)
        of_thread = host & _launching(of, mine)
        if device == devices[0]:
            of_thread |= host & ~_launching(of, work)
        syncs = (of.category == r.SYNC) & ((of.device == device) | (of.device == UNKNOWN))
        done.append(select(of, np.flatnonzero(mine | of_thread | syncs)))
    return done


def _launching(of: DeviceRecording, work: Bool) -> Bool:
    """Rows of threads that launch any of this work."""
    known = of.correlation[work]
    calls = (of.category == r.CUDA_CALL) & np.isin(of.correlation, known[known > 0])
    return np.isin(of.thread, distinct_values(of.thread[calls])) & (of.thread != UNKNOWN)
