"""What counts as work of a rank's device, by Etude's definition and by those of other tools."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from etude.analyse.counting import OURS, Counting
from etude.kernels.arrays import U8, Bool
from etude.model.run import RunPart
from etude.model.schema import UNKNOWN, Why
from etude.model.trace import Trace
from etude.model.use import Use, uses

_FILL: Final = re.compile(r"^(hip)?Memset|^__amd_rocclr_fill|^FillBuffer")


def uses_as(trace: Trace, counting: Counting) -> U8:
    """Use of each node by a tool's definition."""
    use = uses(trace)
    if counting.fills_compute:
        rows = np.flatnonzero(use == Use.MEMORY)
        codes, words = trace.coded("name", rows)
        use[rows[np.array([bool(_FILL.search(word)) for word in words] + [False])[codes]]] = Use.COMPUTE
    return use


def on_device(part: RunPart, use: U8, counting: Counting = OURS) -> Bool:
    """Nodes with known times that occupy the device, each kernel once; without those left over from before the
    recording."""
    found = part.timed & (use != Use.NONE) & (use != Use.HOST) & ~carried_along(part)
    if not counting.host_messages and (found & (part.trace.cpu != 1)).any():
        found &= part.trace.cpu != 1
    return found & ~left_over(part, counting.earlier)


def carried_along(part: RunPart) -> Bool:
    """Messages that a kernel carried in addition to its first. Several tensors or messages that were coalesced run as
    one kernel; each is a node with the kernel's times, and only the first has its stream."""
    trace = part.trace
    found = np.zeros(len(trace), bool)
    own = part.timed & (trace.cpu == 0) & (trace.correlation != UNKNOWN)
    more = np.flatnonzero(own & (trace.stream == UNKNOWN))
    if not len(more):
        return found
    first = np.flatnonzero(own & (trace.stream != UNKNOWN) & np.isin(trace.correlation, trace.correlation[more]))
    seen = {_kernel(part, i) for i in first.tolist()}
    found[[i for i in more.tolist() if _kernel(part, i) in seen]] = True
    return found


def _kernel(part: RunPart, node: int) -> tuple[int, int, int]:
    return int(part.trace.correlation[node]), int(part.start_ns[node]), int(part.end_ns[node])


def left_over(part: RunPart, rule: str = OURS.earlier) -> Bool:
    """Device work of an earlier step, launched before the recording began: nothing in the trace launched it, and it
    starts before everything else on its stream that was launched in the trace.

    It is not counted if several steps were recorded, since it belongs to none of them, or if the device was busy before
    the host's first event, since then the recording cuts through it. Other tools have other rules (`Counting.earlier`)
    and only look for the missing launch.
    """
    trace = part.trace
    nothing = np.zeros(len(trace), bool)
    device = part.timed & (trace.cpu == 0)
    host = trace.cpu == 1
    caused = trace.parent >= 0
    if rule == "never" or not host.any() or not (device & ~caused).any():
        return nothing
    edges = np.flatnonzero(trace.data_why == Why.LAUNCH)
    caused[np.searchsorted(trace.data_start, edges, "right") - 1] = True
    stated = np.flatnonzero(device & caused)
    if not len(stated) or len(stated) == np.count_nonzero(device):
        return nothing
    several = len(np.unique(trace.step[trace.step != UNKNOWN])) > 1
    if rule == "always" or (rule == "steps" and several):
        return device & ~caused
    begins = np.full(len(trace.lane_kind) + 1, part.start_ns[stated].min(), np.int64)
    begins[np.unique(trace.lane[stated])] = np.iinfo(np.int64).max
    np.minimum.at(begins, trace.lane[stated], part.start_ns[stated])
    found = device & ~caused & (part.start_ns < begins[trace.lane])
    cut = found.any() and part.start_ns[found].min() < part.start_ns[host & part.timed].min(initial=2**62)
    return found if rule == "cut" and (several or cut) else nothing
