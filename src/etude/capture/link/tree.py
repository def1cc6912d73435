"""Call trees from intervals: on one thread, what runs inside another was called by it.

The observer's own tree cannot be trusted where work ends on another thread than it began on (gloo): it closes the
wrong entry of its stack, and up to one node in eight gets a caller that had ended before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64, Bool, sort_order
from etude.kernels.csr import starts
from etude.kernels.intervals import nest
from etude.model.schema import UNKNOWN

ROUNDING_NS: Final = 1_000
"""Old files round times to 1 us, so an event may seem to end that much after its parent."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Events of a device trace and the parent of each. Positions count in `row`."""

    row: I64
    """Rows of the device trace, by thread, start and end (longest first): parents come before children."""
    parent: I64
    """-1: none."""


def innermost(thread: I64, start_ns: I64, end_ns: I64, is_outer: Bool, slack_ns: int = ROUNDING_NS) -> I64:
    """For each interval, the innermost outer one that contains it, on its own thread; -1: none.

    An interval that ends after the one that it begins in contains nothing, and belongs to what contains all of it.
    """
    order = sort_order(thread, start_ns, -end_ns)
    inside = _nested(thread[order], start_ns[order], end_ns[order], is_outer[order], slack_ns)
    found = np.empty(len(order), np.int64)
    found[order] = np.where(inside >= 0, order[inside], -1)
    return found


def _nested(thread: I64, start_ns: I64, end_ns: I64, is_outer: Bool, slack_ns: int) -> I64:
    """The same for intervals by thread, start and end (longest first)."""
    parent, apart = np.empty(len(thread), np.int64), np.empty(len(thread), np.bool_)
    nest(starts(thread), start_ns, end_ns.copy(), is_outer, slack_ns, parent, apart)
    return parent


def call_tree(device: DeviceTrace, rows: Bool) -> Tree:
    """The tree of these rows of a device trace. Operations of gloo have no children: what they wait for is not
    theirs."""
    row = np.flatnonzero(rows & device.is_phase("X") & (device.start_ns != UNKNOWN) & (device.tid != UNKNOWN))
    end = device.start_ns[row] + np.maximum(device.duration_ns[row], 0)
    row = row[sort_order(device.tid[row], device.start_ns[row], -end)]
    start, end = device.start_ns[row], device.start_ns[row] + np.maximum(device.duration_ns[row], 0)
    return Tree(row, _nested(device.tid[row], start, end, ~device.name_has("gloo:")[row], ROUNDING_NS))
