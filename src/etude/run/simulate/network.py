"""The network of a simulation: the only file that branches on `options.network`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import ClusterError, DeadlockError
from etude.base.units import format_time
from etude.kernels.arrays import I64
from etude.kernels.heap import empty_heap
from etude.machine.fabrics import topology_of_system
from etude.machine.faults import links_between, with_faults
from etude.machine.topology import Topology
from etude.run.simulate.carrying import carried_operations
from etude.run.simulate.costs import with_noise
from etude.run.simulate.detail import chosen_links, packet_detail
from etude.run.simulate.draws import call_draws
from etude.run.simulate.link_stats import LinkStats, link_stats, room_for_visits
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.given import FlowTimes, later_starts, with_times
from etude.run.simulate.networks.operation import Model, NetworkOptions
from etude.run.simulate.networks.program import NetworkProgram
from etude.run.simulate.networks.registry import Registry, grown
from etude.run.simulate.networks.rerouting import Rerouting, moved, rates_over_time, waiting
from etude.run.simulate.networks.resending import resent
from etude.run.simulate.networks.sharing import Sharing
from etude.run.simulate.networks.state import OPERATION, LinkState, NetworkState, OperationState, Table
from etude.run.simulate.operations import Operations
from etude.run.simulate.options import LinkChange, Network, PacketFabric
from etude.run.simulate.packets.deadlock import deadlock_of
from etude.run.simulate.result import LINKS_SHOWN, LinkUse, QueueUse
from etude.run.simulate.scope import PacketScope, packet_scope
from etude.run.simulate.state import with_room

_MODELS: Final[dict[Network, tuple[Model, int]]] = {
    Network.LINKS: ("links", 4),
    Network.FLOW: ("flow", 2),
    Network.PACKETS: ("packets", 2),
}
"""Networks with links: the model, and how many chunks of one transfer may be in progress. `links` takes them one by
one; where flows share a link, more than two only delay each other."""


def closed_forms(ops: Operations) -> I64:
    """Time of each operation once its members have arrived, by the closed forms of `etude.cost`."""
    return ops.time_ns


TIMES: Final[dict[Network, Callable[[Operations], I64]]] = {
    Network.ANALYTIC: closed_forms,
}
"""Times of operations that no link carries."""


_PACKETS: Final = "packets of 4 KiB, store and forward, first in first out"
_ROOM: Final = "queues of what a link moves in an idle round trip, or of 16 packets, marks from 20 to 80% of them"
PACKETS_NOTES: Final = {
    PacketFabric.ROCE: f"{_PACKETS}, without loss: PFC pauses a link at 15 packets in the "
    "buffer behind it and what the link moves in two of its latencies; rates of links are those of payload",
    PacketFabric.INFINIBAND: f"{_PACKETS}, without loss: a link has credit for 64 KiB in the buffer behind it and what "
    "it moves in two of its latencies, without virtual lanes; rates of links are those of payload",
    PacketFabric.ROCE_DCQCN: f"{_PACKETS}, behind PFC as RoCE: queues mark packets from 20 to 80% of what a link moves "
    "in an idle round trip, and senders slow down (DCQCN), from the rate of the line for each transfer",
    PacketFabric.ROCE_LOSSY: f"{_PACKETS}, without pauses: {_ROOM}, and what does not fit is dropped; senders slow "
    "down at marks (DCQCN) and send all from a gap on again",
    PacketFabric.DCTCP: f"{_PACKETS}: {_ROOM}, and what does not fit is dropped, and sent again when its time is over; "
    "windows shrink by a third of what came marked",
    PacketFabric.ULTRA_ETHERNET_CREDITS: f"{_PACKETS}, over up to 16 ways each: {_ROOM}; what does not fit is cut to "
    "64 B and sent again; receivers share their line among senders by credit (RCCC)",
    PacketFabric.EQDS: f"{_PACKETS}, over up to 16 ways each: {_ROOM}; what does not fit is cut to 64 B and sent "
    "again; receivers give credit packet by packet",
    PacketFabric.NDP: f"{_PACKETS}, over up to 16 ways each: {_ROOM}; what does not fit is cut to 64 B and sent again; "
    "a window unasked, then a packet for each pull of the receiver",
    PacketFabric.FAIR: "packets of 4 KiB, store and forward; queues without end send a packet of each transfer in "
    "turn; windows of 1.5 times what the slowest link moves in an idle round trip, or of 16 packets, with answers that "
    "take nothing of a link: what `flow` stands for, in packets",
    PacketFabric.ULTRA_ETHERNET: f"{_PACKETS}, over up to 16 ways each: windows (NSCC) of 1.5 times what the slowest "
    "link moves in an idle round trip, or of 16 packets; queues of the longest such trip, or of 16 packets, marks from "
    "20 to 80% of them; what does not fit is cut to 64 B and sent again; rates of links are those of payload",
}


BORDER_NOTE: Final = (
    "part of the job goes by packets, the rest are flows: on a link of both, flows have their fair share, with a share "
    "for each transfer that goes by packets, and packets have the rate that flows leave"
)


GIVEN_NOTE: Final = (
    "times of flows are given: each takes its own from when what it waits for has arrived; what links carry is not "
    "known"
)


class CarriedBytes(NamedTuple):
    """Bytes and busy time of each link of a topology, in its order."""

    names: tuple[str, ...]
    bytes: I64
    busy_ns: I64


class RunningNetwork:
    """The network that the engine drives, through the kernels of `seam`."""

    def __init__(self, lowered: Lowered, ops: Operations, sharing: Sharing | None) -> None:
        self.notes: list[str] = []
        self.topology: Topology | None = None
        self.rerouting: Rerouting | None = None
        self.carried_op: I64 = np.zeros(0, np.int64)
        done = np.zeros(int(lowered.base[-1]), np.int32), np.zeros(1, np.int64)
        self.state = NetworkState(
            OperationState(_operations(lowered, ops), empty_heap(len(ops) + 1), *done), links=None, flows=None
        )
        self.program: NetworkProgram | None = None
        self.times: FlowTimes | None = None
        network = lowered.options.network
        if network is not None and network.has_links:
            self._carry(lowered, ops, sharing, *_MODELS.get(network, ("external", 2)))

    def _carry(self, lowered: Lowered, ops: Operations, sharing: Sharing | None, model: Model, window: int) -> None:
        """Moves operations onto links where possible."""
        topology, said = with_faults(topology_of_system(lowered.system), lowered.options.slow_links)
        self.topology = topology
        self.notes += [f"all ranks are simulated separately, because they share the {len(topology.src):,} links", *said]
        made, messages, number = carried_operations(lowered, ops, topology, window, self.notes)
        times = lowered.options.flow_times
        if times is not None:
            model, messages = "external", replace(messages, parts=np.ones_like(messages.parts))
        instance_of = np.zeros(len(topology), np.int64)
        instance_of[lowered.job.ranks] = np.arange(len(lowered.job.ranks))  # all are simulated: one instance each
        registry = Registry(
            topology,
            NetworkOptions(
                model=model,
                busy_factor=lowered.options.overlap.communication,
                routing=lowered.options.routing.value,
                fabric=(lowered.options.fabric or PacketFabric.ROCE).value,
                mixed=bool(lowered.options.packets),
            ),
            instances=None if sharing is None else sharing.instances,
            instance_of=instance_of,
            work=sharing.nodes if sharing is not None and sharing.by_rate else None,
        )
        registry.register(made)
        registry.register_messages(messages)
        links, flows = registry.state()
        if times is not None:
            links = with_times(links, times, made, number)
            self.times = times
            self.notes += [*times.notes, GIVEN_NOTE]
        elif model == "external":
            command = (lowered.options.network or Network.LINKS).command
            self.program = NetworkProgram(command, topology)
            self.notes.append(f"the network is another program, `{command}`: what its links carry is not known here")
        if model == "packets":
            self.notes.append(PACKETS_NOTES[lowered.options.fabric or PacketFabric.ROCE])
        self.carried_op = number
        if lowered.options.link_changes:
            self.rerouting = Rerouting(topology, links.paths)
            if flows is None:
                changes = [(c.time_ns, links_between(topology, c.ends), c.factor) for c in lowered.options.link_changes]
                links = links._replace(rates=rates_over_time(topology, changes))
        if lowered.options.packets:
            links = self._mixed(links, ops, packet_scope(lowered.options.packets), number)
        elif lowered.options.link_stats or model == "packets":
            plans, asked = links.schedules.plans, lowered.options.link_stats
            hops = 1 if model == "packets" else registry.most_hops
            visits = room_for_visits(links.carried, plans["transfers"], hops, asked)
            links = links._replace(visits=visits)
        carried = self.state.operations.table["carried"]
        carried[number] = np.arange(len(number))
        on = carried[ops.of] >= 0
        place = links.carried["place0"][carried[ops.of[on]]] + ops.member[on]
        links.places["node"][place] = ops.node[on]
        place_of = np.full(int(lowered.base[-1]), -1, np.int64)
        place_of[ops.node[on]] = place
        self.state = self.state._replace(links=links._replace(place_of=place_of), flows=flows)

    def _mixed(self, links: LinkState, ops: Operations, scope: PacketScope, number: I64) -> LinkState:
        assert self.topology is not None
        over = chosen_links(self.topology, scope)
        self.notes.append(BORDER_NOTE)
        return links._replace(detail=packet_detail(links, ops, number, scope, over))

    def look_for_exceeded(self) -> None:
        """Before a run: flows note which links are exceeded."""
        if self.state.flows is not None:
            self.state = self.state._replace(flows=self.state.flows._replace(looks=True))

    def exceeded(self) -> I64:
        return np.flatnonzero(self.state.flows.links["exceeded"]) if self.state.flows is not None else np.zeros(0, int)

    def packets_over(self, over: I64) -> None:
        """Transfers over these links go by packets too."""
        links, topology = self.state.links, self.topology
        if links is None or links.detail is None or topology is None:
            return
        p = links.paths
        path = np.repeat(np.arange(len(p.start) - 1), np.diff(p.start))
        links.detail.of_path[path[np.isin(p.link, over)]] = 1
        name = f", {topology.link_name(int(over[0]))} among them" if len(over) else ""
        self.notes.append(f"flows exceed {len(over):,} links{name}: what goes over them goes by packets")

    def change(self, change: LinkChange) -> None:
        """Changes the rate of links from now on. Flows get new rates, over other links if some failed; with `links`,
        which serves one message at a time, the changes were known in advance."""
        links, flows = self.state.links, self.state.flows
        if links is None or self.topology is None or self.rerouting is None:
            return
        rows = links_between(self.topology, change.ends)
        links.links["bytes_per_ns"][rows] = self.topology.bytes_per_s[rows] / 1e9 / change.factor
        links.clock["now_ns"][0] = max(int(links.clock["now_ns"][0]), change.time_ns)
        paths = self.rerouting.change(rows, change.factor)
        if flows is None:
            if paths is not None:
                way = self.rerouting
                links = resent(links, paths, self.topology, way.rest, way.failed, change.time_ns)
                self.state = self.state._replace(links=links)
            return
        if paths is not None:
            links, flows = moved(links, flows, paths)
            self.state = self.state._replace(links=links, flows=flows)
        live = int(flows.clock["live"][0])
        flows.fresh[:live] = flows.live[:live]
        flows.clock["fresh"][0] = live

    def flow_notes(self) -> list[str]:
        """How well given times fit, if there were any."""
        if self.times is None or self.state.links is None:
            return []
        count, most_ns = later_starts(self.state.links, self.times, self.carried_op)
        flows = len(self.times.took_ns)
        if not count:
            return [f"all {flows:,} flows begin when they began where their times come from"]
        return [
            f"{count:,} of {flows:,} flows begin at other moments than where their times come from, by up to "
            f"{format_time(most_ns)}: they keep their times, though other traffic may be there now"
        ]

    def close(self) -> None:
        """Ends the program that is the network, if there is one."""
        if self.program is not None:
            self.program.close()

    def no_way(self) -> ClusterError | DeadlockError | None:
        """The error for transfers that wait for links that failed and do not come back, or for full buffers."""
        links, topology = self.state.links, self.topology
        if links is not None and links.packets is not None and topology is not None:
            return deadlock_of(links.packets, topology.link_name)
        ends = waiting(links, self.state.flows, topology) if links is not None and topology is not None else []
        if topology is None or self.rerouting is None or not ends:
            return None
        name = topology.vertex_name
        gone = [topology.link_name(i) for i in np.flatnonzero(np.isinf(self.rerouting.factor)).tolist()]
        others = f", nor between {len(ends) - 1:,} other pairs" if len(ends) > 1 else ""
        return ClusterError(
            f"no route from {name(ends[0][0])} to {name(ends[0][1])} is left{others}: "
            f"{len(gone):,} directed links failed during the run, {gone[0]} among them",
            where=topology.name,
            hint="add a later change that restores it: --link-change 20ms:A/B=1",
        )

    def grow(self, room: int) -> None:
        """Makes room for this many more ends of operations, and for more transfers if there was too little."""
        links = self.state.links
        if self.program is not None and links is not None and self.program.is_asked(links):
            self.program.exchange(links)
            return
        operations = self.state.operations
        self.state = self.state._replace(operations=operations._replace(ends=with_room(operations.ends, room)))
        if self.state.links is not None and self.state.links.clock[0]["crowded"]:
            links, flows = grown(self.state.links, self.state.flows)
            self.state = self.state._replace(links=links, flows=flows)

    def link_use(self) -> tuple[LinkUse, ...]:
        """Links that carried something, the busiest first."""
        if self.state.links is None or self.topology is None:
            return ()
        self._busy_ports()
        moved, busy = self.state.links.links["carried_bytes"], self.state.links.links["busy_ns"]
        used = np.flatnonzero((moved > 0) | (busy > 0))
        order = used[np.lexsort((used, -moved[used], -busy[used]))][:LINKS_SHOWN].tolist()
        return tuple(LinkUse(self.topology.link_name(i), int(moved[i]), int(busy[i])) for i in order)

    def carried_bytes(self) -> CarriedBytes:
        """What went over each link, and how long it was in use."""
        if self.state.links is None or self.topology is None:
            return CarriedBytes((), np.zeros(0, np.int64), np.zeros(0, np.int64))
        names = tuple(self.topology.link_name(i) for i in range(len(self.topology.src)))
        self._busy_ports()
        links = self.state.links.links
        return CarriedBytes(names, links["carried_bytes"].astype(np.int64), links["busy_ns"].astype(np.int64))

    def packet_notes(self) -> list[str]:
        """What happened in queues, if there were packets."""
        links, topology = self.state.links, self.topology
        if links is None or links.packets is None or topology is None:
            return []
        packets, ports = links.packets, links.packets.ports
        fullest = int(ports["most_queue_bytes"].argmax())
        cut, resent = int(ports["trims"].sum()), int(packets.clock[0]["resent"])
        dropped = int(ports["drops"].sum())
        what = f"{dropped:,} of them dropped" if dropped and not cut else f"{cut:,} of them cut"
        lost = f", {what} and {resent:,} sent again" if cut or dropped or resent else ""
        clock = links.clock[0]
        border = []
        if links.detail is not None:
            of, size = (int(clock["packet_transfers"]), int(clock["packet_bytes"]))
            whole, all_bytes = of + int(clock["flow_transfers"]), size + int(clock["flow_bytes"])
            border = [f"{of:,} of {whole:,} transfers, {size / max(all_bytes, 1):.1%} of their bytes, went by packets"]
        notes = [
            *border,
            f"{int(packets.clock[0]['sent']):,} packets{lost}; the longest queue: "
            f"{int(ports[fullest]['most_queue_bytes']):,} B at {topology.link_name(fullest)}",
        ]
        if paused := int((ports["pauses"] > 0).sum()):
            longest = int(ports["paused_ps"].argmax())
            notes.append(
                f"{int(ports['pauses'].sum()):,} pauses of {paused:,} links, the longest paused "
                f"{topology.link_name(longest)}, for {ports[longest]['paused_ps'] / 1e6:,.1f} us in all"
            )
        return notes

    def queue_use(self) -> tuple[QueueUse, ...]:
        """Queues that held something, and links that were paused, if there were packets."""
        links, topology = self.state.links, self.topology
        if links is None or links.packets is None or topology is None:
            return ()
        ports, now_ps = links.packets.ports, max(int(links.packets.clock[0]["now_ps"]), 1)
        used = np.flatnonzero((ports["most_queue_bytes"] > 0) | (ports["pauses"] > 0))
        order = used[np.lexsort((used, -ports["paused_ps"][used], -ports["most_queue_bytes"][used]))][:LINKS_SHOWN]
        return tuple(
            QueueUse(
                link=topology.link_name(i),
                longest_bytes=int(ports["most_queue_bytes"][i]),
                mean_bytes=float(ports["queue_byte_ps"][i] / now_ps),
                marks=int(ports["marks"][i]),
                cut=int(ports["trims"][i]),
                dropped=int(ports["drops"][i]),
                pauses=int(ports["pauses"][i]),
                paused_ns=int(ports["paused_ps"][i]) // 1000,
            )
            for i in order.tolist()
        )

    def _busy_ports(self) -> None:
        """Takes the time for which links were in use from their ports, if there are packets."""
        links = self.state.links
        if links is not None and links.packets is not None and links.detail is None:
            links.links["busy_ns"] = links.packets.ports["busy_ps"] // 1000

    def link_stats(self, lowered: Lowered, ops: Operations, nodes: Table) -> LinkStats | None:
        """Statistics of links over time, if requested; of packets always."""
        links = self.state.links
        if links is None or self.topology is None or not len(links.visits):
            return None
        return link_stats(lowered, ops, nodes, links, self.topology, self.carried_op)


def _operations(lowered: Lowered, ops: Operations) -> Table:
    """All operations before any member has arrived; none is carried."""
    table = np.zeros(len(ops), OPERATION)
    table["missing"], table["sender"] = ops.missing, ops.sender
    table["last_comer"] = table["carried"] = -1
    table["duration_ns"] = _durations(lowered, ops)
    return table


def _durations(lowered: Lowered, ops: Operations) -> I64:
    jitter = lowered.options.jitter
    spread = np.where(ops.is_message, jitter.get("p2p", 0.0), jitter.get("collective", 0.0))
    time_ns = TIMES.get(lowered.options.network or Network.ANALYTIC, closed_forms)(ops)
    return with_noise(time_ns, spread, call_draws(lowered, ops)) if spread.any() else time_ns
