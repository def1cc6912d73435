"""Input of a network with links: operations as schedules on ranks, and the options of its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.cost.schedule import Schedule, message
from etude.kernels.arrays import I64
from etude.run.simulate.choices import PacketFabric

Model = Literal["flow", "links", "packets", "external"]
Routing = Literal["static", "adaptive", "spray"]
FABRICS: Final = tuple(fabric.value for fabric in PacketFabric)
_MESSAGE = message()


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A schedule on ranks: member m of the schedule is rank members[m]."""

    schedule: Schedule
    members: Sequence[int] | NDArray[Any]
    size_bytes: int
    flow: int = 0
    """Selects one of several equal routes, as in `etude.machine.routes`; chunks count up from it."""
    launch_ns: int = 0
    """Time before its first transfers."""
    wire_ppm: int = 1_000_000
    """Bytes on the wire per byte sent, in millionths: above one million if a protocol adds flags."""
    lags: I64 | None = None
    """For each transfer: ns added to (or taken off) the latency of its route."""
    factors: I64 | None = None
    """For each transfer, multiplied with `wire_ppm`, in the same unit."""

    @classmethod
    def message(cls, src: int, dst: int, size_bytes: int, flow: int = 0, **costs: Any) -> Operation:
        return cls(_MESSAGE, (src, dst), size_bytes, flow, **costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    model: Model = "flow"
    cut_through: bool = True
    """For `links`; False: store-and-forward."""
    endpoint_ns: int = 0
    """Time before the first transfers of a member, and after every arrival."""
    reduce_bytes_per_s: float = 0.0
    """Memory rate of a reduction, which moves three times its bytes; 0: takes no time."""
    tolerance: float = 0.0
    """For `flow`: a rate is kept while it is off its fair share by less than this fraction. 0 is exact; 0.01 saves
    large runs most of the work. Links are never overbooked."""

    routing: Routing = "static"
    """Of several equal routes `static` takes the one that (from, to, flow) hashes to, `adaptive` the least loaded one
    when a transfer starts, and `spray` cuts a transfer evenly over all. Packets choose one by one: `adaptive` at each
    switch the shortest queue, `spray` by a hash."""

    fabric: str = "roce"
    """For `packets`: one of `FABRICS`."""

    mixed: bool = False
    """With `packets`: some transfers may be flows."""

    busy_factor: float = 1.0
    """Factor on the time of a transfer's bytes, if its sender or receiver computes when it starts; in thousandths."""

    def __post_init__(self) -> None:
        if self.model not in ("flow", "links", "packets", "external"):
            raise UsageError(f"unknown network model `{self.model}`", hint="known: flow, links, packets")
        if self.fabric not in FABRICS:
            raise UsageError(f"unknown fabric `{self.fabric}`", hint=f"known: {', '.join(FABRICS)}")
        if self.routing not in ("static", "adaptive", "spray"):
            raise UsageError(f"unknown routing `{self.routing}`", hint="known: static, adaptive, spray")
        if self.endpoint_ns < 0 or self.reduce_bytes_per_s < 0:
            raise ClusterError("the endpoint delay or the rate of reductions is negative")
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"a tolerance of {self.tolerance}", hint="0 is exact, 0.01 is one part in a hundred")
