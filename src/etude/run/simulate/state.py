"""The state of a simulation: tables that the kernels of the engine read and change.

A table is an array of records: `nodes[node].waits`. A *node* is a node of one simulated rank (an *instance*); a *row*
is its entry in the program, which all instances of the program share.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.kernels.heap import Heap, empty_heap
from etude.run.simulate.networks.sharing import Sharing
from etude.run.simulate.networks.state import Table

DONE: Final = -1
"""Value of `waits` of a node that has ended."""

CLOCK: Final = np.dtype(
    [
        ("now_ns", np.int64),
        ("instant", np.int64),  # instants so far
        ("done_nodes", np.int64),
        ("touched", np.int64),  # entries in use of the lists of `EngineState`
        ("starting", np.int64),
        ("wake_ns", np.int64),  # when ranks start next, or NEVER
    ],
    align=True,
)
ROW: Final = np.dtype(
    [
        ("lane", np.int32),  # of the program; -1: none
        ("position", np.int32),  # in the order in which its lane takes rows
        ("use", np.int32),  # as in `etude.model.use`
        ("succ_count", np.int32),
        ("succ_start", np.int64),
    ],
    align=True,
)
"""The successors of row r are the `succ_count` rows of `succ` from `succ_start` on, counted from their program's
first."""
INSTANCE: Final = np.dtype(
    [
        (name, np.int64)
        for name in ("node0", "row0", "lane0", "program_lane0", "leader", "follower", "next_follower", "start_ns")
    ],
    align=True,
)
"""Where the tables of a simulated rank begin; its leader, its first follower, and the next follower of the same leader
(-1: none); when it starts."""
NODE: Final = np.dtype(
    [
        ("waits", np.int32),  # nodes that it waits for and that have not ended, or DONE
        ("op", np.int32),  # the operation that it is a member of, or -1
        ("instance", np.int32),
        ("comer_before", np.int32),  # a list of those that have arrived at its operation
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("cost_ns", np.int64),  # for a member of an operation: its time once that is over
    ],
    align=True,
)
LANE: Final = np.dtype(
    [
        ("busy", np.int32),  # the node that it runs, or -1
        ("count", np.int32),  # ready nodes; with a strict order, nodes that it has taken
        ("is_touched", np.int32),
        ("instance", np.int32),
        ("taken", np.int64),  # nodes that it has taken, if ranks agree on an order
    ],
    align=True,
)


class IssueRules(NamedTuple):
    strict: bool  # lanes keep the recorded order
    first_come: bool  # a lane takes what became ready first


class Programs(NamedTuple):
    """Lane l of a program holds lane_rows[lane_first[l]:lane_first[l + 1]], both counted from its first row."""

    rows: Table
    succ: I32
    lane_first: I64
    lane_rows: I32


class EngineState(NamedTuple):
    clock: NDArray[Any]  # one record
    rules: IssueRules
    programs: Programs
    instances: Table
    nodes: Table
    lanes: Table
    ends: Heap  # of (time, node)
    ready: I64  # a heap of keys for each lane, one after the other
    taken: I32  # if ranks agree: rows that each lane has taken, in its order, one lane after the other
    touched: I32  # lanes that may take a node when this round issues
    starting: I32  # nodes that start in this round; those without a lane come first
    sharing: Sharing | None


def with_room(heap: Heap, room: int) -> Heap:
    """A copy with room for at least this many more entries."""
    size = int(heap.size[0])
    if len(heap.entry) - size >= room:
        return heap
    larger = empty_heap(2 * size + room)
    larger.entry[:size] = heap.entry[:size]
    larger.size[0] = size
    return larger
