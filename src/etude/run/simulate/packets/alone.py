"""Flows on links, without a workload around them.

done = run_flows(PacketLinks(bytes_per_s=[...], ...), [PacketFlow(path=(0, 1), size_bytes=64_000)], rules)
done.finished_ps[0]         # when its sender held the ACK of everything, from the begin of the flow
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.base.errors import DeadlockError, UsageError
from etude.kernels.arrays import F64, I64
from etude.run.simulate.packets import events
from etude.run.simulate.packets.deadlock import deadlock_of
from etude.run.simulate.packets.state import TURNS, PacketRules, PacketState, Table, make_packets, with_more_packets

PIECE_PS: Final = 10**9
"""Between two checks for interrupts: compiled code cannot be interrupted."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PacketLinks:
    """One row per directed link: its rate, the latency of its wire, that of the switch behind it, and whether there is
    one. `names` are for messages."""

    bytes_per_s: F64
    wire_ps: I64
    switch_ps: I64
    to_switch: I64
    names: tuple[str, ...] = ()
    marks: I64 | None = None
    """0: a port that never marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketFlow:
    """A flow over the links of `path`; its answers go over `back`. `paths` and `backs` are all its ways, where packets
    choose. `more_packets`: sent beyond those of its bytes."""

    path: tuple[int, ...]
    back: tuple[int, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()
    backs: tuple[tuple[int, ...], ...] = ()
    size_bytes: int
    begin_ps: int = 0
    more_packets: int = 0
    window: int = 0
    """Packets in flight; 0: no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketTimes:
    """Times of each flow from its begin in ps: until its last packet arrived, and until the ACKs of all were back
    (-1: there are none). And what happened at each port."""

    delivered_ps: I64
    finished_ps: I64
    ports: Table
    flows: Table
    packets: int
    resent: int
    notices: int
    events: int


def run_flows(wires: PacketLinks, flows: Sequence[PacketFlow], rules: PacketRules) -> PacketTimes:
    """Runs all flows to their end. Raises DeadlockError where ports wait for one another in a cycle."""
    ways = _Ways()
    rows = []
    for number, flow in enumerate(flows):
        if not flow.path or flow.size_bytes <= 0 or (rules.answers and not flow.back):
            raise UsageError(f"flow {number} needs bytes, a path and a way back for its ACKs")
        order = np.random.default_rng((rules.seed, number)) if rules.routing == TURNS else None
        rows.append((*ways.add(flow.paths or (flow.path,), order), *ways.add(flow.backs or (flow.back,), order)))
    link = np.array(ways.links, np.int64)
    if len(link) and not 0 <= link.min() <= link.max() < len(wires.bytes_per_s):
        raise UsageError(f"a flow goes over a link outside the {len(wires.bytes_per_s)}")
    state = make_packets(
        rules, wires.bytes_per_s, wires.wire_ps, wires.switch_ps, wires.to_switch, link,
        np.array(ways.starts, np.int64), np.full(len(wires.bytes_per_s), -1), len(flows),
    )  # fmt: skip
    if wires.marks is not None:
        for name in ("mark_bytes", "mark_all_bytes"):
            state.ports[name] *= wires.marks
    for number, flow in enumerate(flows):
        row = state.flows[number]
        row["way0"], row["ways"], row["back0"], row["backs"] = rows[number]
        row["window"] = flow.window
        row["packets"] = -(-flow.size_bytes // rules.payload_bytes) + flow.more_packets
        events.begin(state, number, flow.size_bytes, flow.begin_ps)
    state = _run(state)
    if (state.flows["delivered_ps"] < 0).any():
        problem = deadlock_of(state, lambda port: wires.names[port] if wires.names else f"link {port}")
        raise problem or DeadlockError("a flow is never delivered")
    done, clock = state.flows, state.clock[0]
    begin_ps = np.array([flow.begin_ps for flow in flows], np.int64)
    return PacketTimes(
        done["delivered_ps"] - begin_ps,
        np.where(done["finished_ps"] < 0, -1, done["finished_ps"] - begin_ps),
        state.ports,
        done,
        int(clock["sent"]),
        int(clock["resent"]),
        int(clock["notices"]),
        int(clock["events"]),
    )


class _Ways:
    """Ways in one row of links, equal sets of them once."""

    def __init__(self) -> None:
        self.links: list[int] = []
        self.starts = [0]
        self.found: dict[tuple[tuple[int, ...], ...], tuple[int, int]] = {}

    def add(self, ways: tuple[tuple[int, ...], ...], order: np.random.Generator | None) -> tuple[int, int]:
        """The first of these ways, in order of their links or in a random one, and how many there are."""
        if order is not None:
            ways = tuple(ways[i] for i in order.permutation(len(ways)).tolist())
        if ways not in self.found:
            self.found[ways] = len(self.starts) - 1, len(ways)
            for way in ways if order is not None else sorted(ways):
                self.links += way
                self.starts.append(len(self.links))
        return self.found[ways]


def _run(state: PacketState) -> PacketState:
    while state.events.size[0] > 0:
        soon_ps = int(state.events.key[state.events.item[0]])
        events.advance(state, soon_ps + PIECE_PS, False)
        state.clock["delivered"] = 0
        if state.clock[0]["crowded"]:
            state = with_more_packets(state)
    return state
