"""Call trees from intervals: on one thread, what runs inside another was called by it.

The observer's own tree cannot be trusted where work ends on another thread than it began on (gloo): it closes the
wrong entry of its stack, and up to one node in eight gets a caller that had ended before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.link import tree_kernels as k
from etude.link.device import DeviceTrace
from etude.model.schema import UNKNOWN

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROUNDING_NS: Final = 1_000
"""Old files round times to 1 us, so that an event may seem to end that much after the one that it is in."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Events of a device trace and the event around each. Positions count in `row`."""

    row: I64
    """Rows of the device trace, by thread, start and, longest first, end: what is around an event is before it."""
    parent: I64
    """-1: none."""


def innermost(thread: I64, start_ns: I64, end_ns: I64, is_outer: Bools, slack_ns: int = ROUNDING_NS) -> I64:
    """Of each interval the innermost of the outer ones that holds it, on its own thread; -1 where none does.

    An interval that ends after the one that it begins in holds nothing, and is held by what holds all of it.
    """
    return _innermost(thread, start_ns, end_ns, is_outer, np.lexsort((-end_ns, start_ns, thread)), slack_ns)


def _innermost(thread: I64, start_ns: I64, end_ns: I64, is_outer: Bools, order: I64, slack_ns: int) -> I64:
    found = np.empty(len(order), np.int64)
    k.innermost(thread, start_ns, end_ns, is_outer, order, slack_ns, found)
    return found


def call_tree(device: DeviceTrace, rows: Bools) -> Tree:
    """The tree of these rows of a device trace. What gloo's operations wait for is not theirs, so they hold nothing."""
    row = np.flatnonzero(rows & device.is_phase("X") & (device.start_ns != UNKNOWN) & (device.tid != UNKNOWN))
    end = device.start_ns[row] + np.maximum(device.duration_ns[row], 0)
    row = row[np.lexsort((-end, device.start_ns[row], device.tid[row]))]
    start, end = device.start_ns[row], device.start_ns[row] + np.maximum(device.duration_ns[row], 0)
    outer, in_order = ~device.name_has("gloo:")[row], np.arange(len(row))
    return Tree(row, _innermost(device.tid[row], start, end, outer, in_order, ROUNDING_NS))
