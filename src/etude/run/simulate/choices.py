"""What can be chosen of a simulation, by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

EXTERNAL: Final = "external:"


class Policy(StrEnum):
    """Which of its ready nodes a free lane takes."""

    READY = "ready"
    """The one that became ready first; within one instant the first by (priority, row)."""
    PRIORITY = "priority"
    """The first by (priority, row)."""
    RECORDED = "recorded"
    """Strict: the next in the recorded order; the lane waits until that one is ready."""
    HINT = "hint"
    """A hint: the first ready node in the recorded order."""


class Compute(StrEnum):
    """Where the time of a compute node comes from."""

    RECORDED = "recorded"
    """The trace's `duration_ns`; where it is unknown, the roofline."""
    ROOFLINE = "roofline"
    TABLE = "table"
    """Measured times of operators, by name and shape; where an operator is not in the table, the roofline."""
    OPS = "ops"
    """A database of measured operators; where it has none that is like a node, the roofline."""
    SCALED = "scaled"
    """The trace's `duration_ns` times `scale`."""


class Times(StrEnum):
    """Where the time of a collective or a message comes from."""

    MODELLED = "modelled"
    RECORDED = "recorded"
    """The least `duration_ns` of its members, which is that of the one that waited least; modelled if there is none."""


class Network(StrEnum):
    """What carries collectives and messages."""

    ANALYTIC = "analytic"
    """Closed forms: an operation lasts a known time, whatever else is in progress."""
    LINKS = "links"
    """Transfers over routed links that take one message at a time."""
    FLOW = "flow"
    """Transfers over routed links that all live ones share max-min fairly."""
    PACKETS = "packets"
    """Packets in the queues of routed links, store and forward, behind PFC."""

    @classmethod
    def _missing_(cls, value: object) -> Network | None:
        """`external:COMMAND`, which is one of these for each command."""
        if not isinstance(value, str) or not value.startswith(EXTERNAL) or not value.removeprefix(EXTERNAL).strip():
            return None
        one = str.__new__(cls, value)
        one._name_, one._value_ = "EXTERNAL", value
        return one

    @property
    def command(self) -> str:
        """The program that is the network; empty if it is one of ours."""
        return self.removeprefix(EXTERNAL).strip() if self.startswith(EXTERNAL) else ""

    @property
    def has_links(self) -> bool:
        return self in (Network.LINKS, Network.FLOW, Network.PACKETS) or bool(self.command)


class PacketFabric(StrEnum):
    """Which rules packets have."""

    ROCE = "roce"
    """Senders at the rate of the line; full buffers pause links (PFC)."""
    INFINIBAND = "infiniband"
    """Senders at the rate of the line; links send only what the buffer behind them has credit for."""
    ROCE_DCQCN = "roce-dcqcn"
    """As `roce`, with senders that slow down where queues mark their packets."""
    ROCE_LOSSY = "roce-lossy"
    """The same without pauses: what does not fit is dropped, and all from the gap on is sent again."""
    DCTCP = "dctcp"
    """Senders with a window that marks make smaller; what does not fit is dropped, and sent again when its time is
    over."""
    ULTRA_ETHERNET = "ultra-ethernet"
    """Senders with a window (NSCC), packets over all ways; what does not fit is cut to its header and sent again."""
    ULTRA_ETHERNET_CREDITS = "ultra-ethernet-credits"
    """The same, with receivers that give their senders credit (RCCC)."""
    EQDS = "eqds"
    """Receivers give credit packet by packet, first to those whose packets were cut."""
    NDP = "ndp"
    """Senders send a window unasked, then a packet for each pull of their receiver; what does not fit is cut."""
    FAIR = "fair"
    """No real fabric, but what `flow` stands for: queues without end that send a packet of each transfer in turn, and
    windows that fill the path."""

    @property
    def spreads(self) -> bool:
        """Packets of a transfer take all ways, whatever the routing."""
        return self in (
            PacketFabric.ULTRA_ETHERNET,
            PacketFabric.ULTRA_ETHERNET_CREDITS,
            PacketFabric.EQDS,
            PacketFabric.NDP,
        )


class Routing(StrEnum):
    """Which of several equally short routes bytes take, in networks with links."""

    STATIC = "static"
    """The one that a hash of both ends selects (ECMP): flows may share a link while others are idle."""
    ADAPTIVE = "adaptive"
    """The least loaded one when a transfer starts."""
    SPRAY = "spray"
    """All of them, an equal part each."""
