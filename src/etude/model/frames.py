"""Frames: operators on the host that only call others."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.model.schema import Kind
from etude.model.trace import Trace

SEGMENT: Final = "host"
"""Name of nodes that are host time between operators: an operator's own besides its callees, or Python."""
DISPATCH: Final = "dispatch"
"""Name of nodes that are the device's delay from one activity of a stream to the next."""


def frames(trace: Trace) -> NDArray[np.bool_]:
    """Host operators that call others on the host: their time is spent in those, so they have none of their own."""
    mask = np.zeros(len(trace), bool)
    parents = trace.parent[(trace.parent >= 0) & (trace.cpu == 1)] if trace.parent.strides != (0,) else trace.parent[:0]
    if len(parents):
        if int(parents.max()) >= len(trace):
            raise TraceError(f"a node's parent is outside the trace's {len(trace)} nodes")
        mask[parents] = True
    return mask & (trace.cpu == 1) & (trace.kind == Kind.COMP)


def host_work(trace: Trace) -> NDArray[np.bool_]:
    """Compute nodes that take time of the host: no frames, and no delays of the device."""
    codes, words = trace.coded("name")
    is_way = np.array([word == DISPATCH for word in words] + [False])[codes]
    timed = (trace.kind == Kind.COMP) & (trace.duration_ns > 0)
    return (trace.cpu == 1) & timed & ~frames(trace) & ~(is_way & (trace.parent < 0))
