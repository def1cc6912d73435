"""Options of a simulation besides the job and the system."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from etude.base.errors import UsageError
from etude.cost.choice import Menu
from etude.cost.collectives import AUTO
from etude.cost.collectives.table import BY_COLLECTIVE
from etude.cost.schedule import Schedule
from etude.machine.grain import Grain
from etude.machine.system import System
from etude.model.schema import Collective
from etude.run.simulate.choices import Compute as Compute
from etude.run.simulate.choices import Network as Network
from etude.run.simulate.choices import PacketFabric as PacketFabric
from etude.run.simulate.choices import Policy as Policy
from etude.run.simulate.choices import Routing as Routing
from etude.run.simulate.choices import Times as Times
from etude.run.simulate.scope import packet_scope
from etude.run.simulate.shares import Draw, check_on_links, check_shares, scope_of

if TYPE_CHECKING:
    from etude.cost.opdb import OpDatabase
    from etude.run.simulate.networks.given import FlowTimes


JITTER: Final = ("compute", "host", "collective", "p2p", "memory")
"""Classes of nodes that can jitter, each node by itself."""
STEP_JITTER: Final = "step"
"""All compute, host and memory nodes of a rank's step alike: what makes whole steps vary."""
ACTION_JITTER: Final = "action"
"""All compute, host and memory nodes of a rank's micro-batch and phase alike: what makes passes of a pipeline vary."""
LATEST_NS: Final = 1 << 55
"""A bit more than a year: the latest start of a rank."""
_ALL_JITTER: Final = (*JITTER, STEP_JITTER, ACTION_JITTER)


def _member(name: str, kind: type[StrEnum], value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(f"{name.replace('_', ' ')}: unknown value `{value}`", hint=f"known: {known}") from None


def _factor(what: str, value: float, least: float = 0.0) -> None:
    if not math.isfinite(value) or value < least or value > 1e6:
        raise UsageError(f"{what}: {value} is not a factor", hint=f"a number from {least:g} to a million")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Compute and communication that overlap on one rank take longer by these factors, as they share SMs and memory."""

    compute: float = 1.0
    """Factor on a compute node while the rank communicates."""
    communication: float = 1.0
    """Factor on a collective or message while any of its members computes."""

    def __post_init__(self) -> None:
        for name in ("compute", "communication"):
            _factor(f"overlap: {name}", getattr(self, name), least=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMemory:
    """Where memory nodes load from and store to, if not in the device's own memory."""

    bytes_per_s: float
    latency_ns: int = 0
    capacity_bytes: int = 0
    """0: not limited."""

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or self.latency_ns < 0 or self.capacity_bytes < 0:
            raise UsageError("remote memory: a bandwidth that is not positive, or a negative latency or capacity")


class LinkChange(NamedTuple):
    """From a time on, the links between two ends take `factor` times as long for a byte as originally: 1 restores them,
    math.inf lets nothing through. Traffic in flight continues at the new rate; it takes another route if a link fails,
    and waits if there is none."""

    time_ns: int
    ends: tuple[int | str, int | str]
    factor: float


def _in_order(changes: Sequence[LinkChange]) -> tuple[LinkChange, ...]:
    for change in changes:
        named = f"link {change[1][0]}-{change[1][1]}"
        if change[0] < 0:
            raise UsageError(f"{named}: a change at {change[0]} ns is before the run")
        if not change[2] > 0:
            raise UsageError(f"{named}: {change[2]} is not a positive factor")
    return tuple(sorted(map(LinkChange._make, changes), key=lambda c: c.time_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a job is simulated; anything not given follows the job and the system."""

    policy: Policy = Policy.READY
    compute: Compute = Compute.RECORDED
    scale: float = 1.0
    """For Compute.SCALED."""
    table: str = ""
    """For Compute.TABLE: a CSV file of measured times."""
    ops: OpDatabase | None = None
    """For Compute.OPS: the database of measured operators, of the system's device."""
    backend: str = ""
    """For Compute.OPS: whose kernels, where the database holds several."""
    kernels: Sequence[str] = ()
    """Other kernels, one for each class of op: ("product:w4a16:g128",); with "auto" among them the fastest for each
    op. See etude.cost.menu."""
    units: str = ""
    """Units of the device that ops run on: "auto", a name, or names that split each op: "cpu+sme"."""
    collective: Mapping[str, str | Schedule | Sequence[Schedule]] = field(default_factory=dict)
    """Algorithm by collective, over those of the system: {"all_reduce": "tree"}; or one of your own, or several for
    groups of different size."""
    collective_times: Times = Times.MODELLED
    eager_bytes: int | None = None
    """Messages up to this size are sent without waiting for the receive; None: all are."""
    concurrent_network: bool = False
    """Communication without a stream does not queue: any number may be in flight on a rank."""
    overlap: Overlap = Overlap()
    share: Mapping[str, Mapping[str, Draw]] = field(default_factory=dict)
    """Capacities by name, and what each class of node draws of them: {"sm": {"communication": Draw(demand=0.15),
    "compute": Draw(priority=1)}}; the ranks of a node share `nic@node`. Replaces `overlap`."""
    contention: bool = False
    """Kernels, collectives and copies of a rank contend on its device: cores, memory, the link to the host. Replaces
    `overlap`; see docs/contention.md."""
    grain: Grain | None = None
    """Transfers are loads or stores of lines, with this many in flight."""
    remote_memory: RemoteMemory | None = None
    jitter: Mapping[str, float] = field(default_factory=dict)
    """Spread of the times by class of node: {"compute": 0.05} is 5 %. The mean stays. `step` is one factor for all
    nodes of a rank's step, `action` one for all of a rank's micro-batch and phase."""
    seed: int = 0
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    """Rank -> factor on its compute, host and memory times."""
    starts: Mapping[int, int] = field(default_factory=dict)
    """Rank -> when it starts, in ns; the others start at 0."""
    slow_links: Mapping[tuple[int | str, int | str], float] = field(default_factory=dict)
    """Two ends -> factor on the time of transfers between them; math.inf is a link that failed. With closed forms two
    ranks; with links the two ends of one: a rank is its device, a text the name of a vertex."""
    link_changes: tuple[LinkChange, ...] = ()
    """Links whose rate changes during the run, as (time_ns, ends, factor); with `flow` and `links`."""
    network: Network | None = None
    """None: closed forms if the system has levels, `flow` if it is a graph."""
    routing: Routing = Routing.STATIC
    fabric: PacketFabric | None = None
    """Of packets; None: RoCE."""
    packets: Sequence[str] = ()
    """Of `packets`: only these transfers go by packets, the others are flows: `all_to_all`, `message`, `5ms-8ms`,
    `leaf.3`, `leaf.3/spine.1`, or `auto`, those over links that flows exceed."""
    flow_times: FlowTimes | None = None
    """Transfers take these times, of another simulator, from when they may begin: no network carries them."""
    link_stats: bool = False
    """Keep statistics of every link over time; of packets they are always kept."""
    fold: bool | None = None
    """Simulate ranks that must behave alike once: None: if possible, True: raise if not, False: never."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("policy", Policy),
            ("compute", Compute),
            ("collective_times", Times),
            ("network", Network),
            ("routing", Routing),
            ("fabric", PacketFabric),
        ):
            if name in ("network", "fabric") and getattr(self, name) is None:
                continue
            object.__setattr__(self, name, _member(name, kind, getattr(self, name)))
        for name, given in self.collective.items():
            what = Collective.parse(name)
            if isinstance(given, str):
                _check_name(name, what, given)
            else:
                _check_own(name, what, [given] if isinstance(given, Schedule) else list(given))
        Menu.of(self.kernels, self.units)
        _factor("scale", self.scale)
        for name, spread in self.jitter.items():
            if name not in _ALL_JITTER:
                raise UsageError(f"jitter: unknown class `{name}`", hint=f"known: {', '.join(_ALL_JITTER)}")
            if not 0 <= spread <= 10:
                raise UsageError(f"jitter: {name}: {spread} is not a spread", hint="0.05 is 5 %")
        for rank, factor in self.slow_ranks.items():
            _factor(f"slow rank {rank}", factor)
        for rank, start_ns in self.starts.items():
            if not 0 <= start_ns <= LATEST_NS:
                raise UsageError(f"rank {rank} starts at {start_ns} ns", hint="0, or a time up to a year later")
        for pair, factor in self.slow_links.items():
            if not factor > 0:
                raise UsageError(f"slow link {pair[0]}-{pair[1]}: {factor} is not a positive factor")
        object.__setattr__(self, "link_changes", _in_order(self.link_changes))
        if self.eager_bytes is not None and self.eager_bytes < 0:
            raise UsageError(f"eager: {self.eager_bytes} bytes is negative")
        if self.compute == Compute.TABLE and not self.table:
            raise UsageError("compute times from a table, but none is given", hint="table=FILE.csv")
        if (self.compute == Compute.OPS) != (self.ops is not None):
            raise UsageError("compute times `ops` need a database of operators", hint="--ops FILE")
        check_shares(self.share)
        if (self.share or self.contention) and self.overlap != Overlap():
            raise UsageError("shares and contention cannot be combined with overlap factors", hint="use one of them")
        if self.fabric is not None and self.network != Network.PACKETS:
            raise UsageError(f"only packets have a fabric, `{self.fabric}`", hint="--network packets")
        if self.packets:
            self._check_packets()
        if self.flow_times is not None:
            self._check_flow_times()
        if self._has_links:
            self._check_links()

    def on(self, system: System) -> Options:
        """A copy with the network that the system is simulated on, and with what its circuits do."""
        if not set(system.link_changes) <= set(self.link_changes):
            own = tuple(LinkChange(*change) for change in system.link_changes)
            return replace(self, link_changes=(*self.link_changes, *own)).on(system)
        if self.flow_times is not None and (self.network is None or self.collective != self.flow_times.collective):
            return replace(self, network=Network.LINKS, collective=self.flow_times.collective).on(system)
        if self.network is None:
            return replace(self, network=Network.ANALYTIC if system.topology is None else Network.FLOW).on(system)
        if self.link_changes:
            self._check_changes()
        if self.network.has_links:
            check_on_links(self.share)
            return self
        if self.link_stats:
            raise UsageError("closed forms have no statistics of links", hint="--network flow or links")
        if self.routing != Routing.STATIC:
            raise UsageError(
                f"routing: closed forms have no paths, which `{self.routing}` needs", hint="--network flow"
            )
        named = [pair for pair in self.slow_links if not all(isinstance(end, int) for end in pair)]
        if named:
            raise UsageError(
                f"slow link {named[0][0]}/{named[0][1]}: closed forms model ranks, not links", hint="--network flow"
            )
        if system.irregular:
            problem = f"closed forms need levels, and the graph of system `{system.name}` has none: {system.irregular}"
            raise UsageError(problem, hint="--network flow or links; or `levels` next to its `topology`")
        return self

    def algorithm(self, what: Collective) -> str:
        """The requested algorithm; `auto` if none was."""
        given = self.collective.get(what.name.lower(), AUTO)
        return given if isinstance(given, str) else AUTO

    @property
    def slow_pairs(self) -> list[tuple[tuple[int, int], float]]:
        """Pairs of ranks between which whole operations are slower, if there are no links to slow down."""
        return [] if self._has_links else [((int(a), int(b)), factor) for (a, b), factor in self.slow_links.items()]

    @property
    def why_not_folded(self) -> str:
        """Why no two ranks behave alike; empty if they may."""
        if self._has_links:
            return "ranks share links, so no two are equivalent"
        if any(map(scope_of, self.share)):
            return "ranks of a node share capacities, so no two are equivalent"
        return "with jitter no two ranks are equivalent" if any(self.jitter.values()) else ""

    @property
    def _has_links(self) -> bool:
        return self.network is not None and self.network.has_links

    def own(self, what: Collective, members: int) -> Schedule | None:
        """The user's algorithm for this many members."""
        given = self.collective.get(what.name.lower(), AUTO)
        if isinstance(given, str):
            return None
        plans = [given] if isinstance(given, Schedule) else given
        return next((plan for plan in plans if plan.members == members), None)

    def _check_packets(self) -> None:
        if self.network != Network.PACKETS:
            raise UsageError("a part of a job goes by packets only where there are packets", hint="--network packets")
        if self.routing != Routing.STATIC or (self.fabric is not None and self.fabric.spreads):
            raise UsageError(
                "packets that choose their ways one by one do not share links with flows, which have one way each",
                hint="leave out --packets, --routing, and a fabric whose packets are spread",
            )
        if self.link_stats:
            raise UsageError("statistics of links are of all packets or none", hint="leave out --packets")
        packet_scope(self.packets)

    def _check_changes(self) -> None:
        if self.network == Network.ANALYTIC:
            raise UsageError(
                "links that change during the run: closed forms give the time of a whole operation and do not model "
                "links",
                hint="--network flow",
            )
        fails = any(math.isinf(change.factor) for change in self.link_changes)
        if fails and self.network == Network.LINKS and self.routing == Routing.ADAPTIVE:
            raise UsageError(
                "links that fail during the run: with `links`, transfers that choose their way when they start are not "
                "sent over another",
                hint="--network flow; or leave out --routing",
            )

    def _check_links(self) -> None:
        if self.collective_times == Times.RECORDED:
            problem = f"recorded times of collectives use no links: they are for closed forms, not for `{self.network}`"
            raise UsageError(problem, hint="leave out --collective-times, or use --network analytic")
        if self.network == Network.PACKETS and self.link_changes:
            raise UsageError("links that change during the run are not there for packets", hint="--network flow")
        if self.network is not None and self.network.command:
            self._check_program()
        if self.fold:
            raise UsageError(
                f"the ranks cannot be folded: with network `{self.network}` they share links, so none are equivalent",
                hint="leave out --fold: all ranks are simulated",
            )

    def _check_program(self) -> None:
        """What another program that is the network does not read."""
        for what, given in self._of_own_links.items():
            if given:
                raise UsageError(f"{what}: another program is the network", hint="--network flow")

    @property
    def _of_own_links(self) -> dict[str, bool]:
        """What only links of Etude read."""
        return {
            "links that change during the run": bool(self.link_changes),
            "statistics of links": self.link_stats,
            "routing": self.routing != Routing.STATIC,
        }

    def _check_flow_times(self) -> None:
        """What changes nothing about transfers whose times are given."""
        jittered = any(self.jitter.get(name, 0) for name in ("collective", "p2p"))
        unread = {
            f"network `{self.network}`": self.network not in (None, Network.LINKS),
            **self._of_own_links,
            "slow and failed links": bool(self.slow_links),
            "lines of transfers": self.grain is not None,
            "jitter of collectives and messages": jittered,
            "overlap: communication": self.overlap.communication != 1.0,
            "shares of communication": any("communication" in draws for draws in self.share.values()),
            "contention": self.contention,
        }
        for what, given in unread.items():
            if given:
                raise UsageError(f"{what}: the times of all transfers are given", hint="leave out one of the two")


def _check_name(name: str, what: Collective, algorithm: str) -> None:
    there = (AUTO, *BY_COLLECTIVE.get(what, ()))
    if algorithm not in there:
        raise UsageError(
            f"{name} has no algorithm `{algorithm}`", hint=f"known: {', '.join(there)}; or a file: .xml, .et"
        )


def _check_own(name: str, what: Collective, plans: list[Schedule]) -> None:
    seen: set[int] = set()
    for plan in plans:
        if plan.collective not in (Collective.NONE, what):
            raise UsageError(f"{name}: algorithm `{plan.algorithm}` is for {plan.collective.name.lower()}")
        if plan.members in seen:
            raise UsageError(f"{name}: two algorithms are for groups of {plan.members}")
        seen.add(plan.members)
