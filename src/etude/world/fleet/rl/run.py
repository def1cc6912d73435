"""run_rl(pool, spec): the steps of all tenants on the nodes of a pool, including nodes that come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from etude.base.errors import UsageError
from etude.world.clock import NEVER
from etude.world.fleet.rl.costs import priced
from etude.world.fleet.rl.loop import RlLoop, replicas_of
from etude.world.fleet.rl.replicas import RolloutReplica
from etude.world.fleet.rl.spec import BORROWED, Making, RlSpec
from etude.world.fleet.sharing.cluster import Cluster
from etude.world.fleet.sharing.gangs import SharingTimes
from etude.world.fleet.sharing.supply import Supply


@dataclass(slots=True, eq=False)
class RlRun:
    spec: RlSpec
    loop: RlLoop
    seconds: float
    there_ns: float
    """Device time of all nodes that it uses, ns."""
    left_over_ns: float
    """Device time of devices without a replica, ns."""
    cost: float | None
    interruptions: int
    """Number of times that a node was reclaimed."""
    notes: tuple[str, ...] = ()
    beside: dict[str, Any] = field(default_factory=dict)
    """Further results: those of streams in the pool."""


def makings(spec: RlSpec) -> list[Making]:
    return [spec.rollout, *([spec.explore] if spec.explore else [])]


def loop_of(cluster: Cluster, spec: RlSpec, where: str, *, seed: int = 0, borrowed: int = 0) -> RlLoop:
    """The loop before the first event. `borrowed` replicas have no devices yet. Raises UsageError."""
    widths: dict[str, Making] = {}
    for making in makings(spec):
        for name in making.nodes:
            known = widths.setdefault(name, making)
            if known.tp != making.tp:
                raise UsageError(f"replicas of {known.tp} and of {making.tp} devices on `{name}`", where=where)
    devices = {name: int(cluster.gpus[cluster.nodes_of(name)].sum()) for name in widths if name != BORROWED}
    counts = {name: number // widths[name].tp for name, number in devices.items()} | {BORROWED: borrowed}
    costs = priced(spec, f"{where}: rl", receivers=sum(counts[name] for name in widths))
    replicas: list[RolloutReplica] = []
    for name, making in widths.items():
        mine = replicas_of(name, devices.get(name, borrowed * making.tp), making, costs.step_ns)
        for one in mine:
            one.speed = 0.0 if name == BORROWED else 1.0
        replicas += mine
    trains = cluster.nodes_of(spec.train.nodes)
    if any(cluster.groups[int(cluster.group[node])].spot for node in trains):
        raise UsageError(
            f"updates on `{spec.train.nodes}`, which may be reclaimed", where=where, hint="use other nodes"
        )
    return RlLoop(costs, replicas, spec.train.nodes, int(cluster.gpus[trains].sum()), seed)


class PoolNodes:
    """Nodes of a pool that come and go during a loop."""

    def __init__(self, cluster: Cluster, loop: RlLoop, seed: int) -> None:
        self.cluster, self.loop, self.supply = cluster, loop, Supply(cluster, seed)
        self.used = {replica.group for replica in loop.replicas if replica.group != BORROWED} | {loop.train_group}
        self.devices = {name: int(cluster.gpus[cluster.nodes_of(name)].sum()) for name in self.used}
        self.up_since = dict.fromkeys(range(len(cluster)), 0)
        self.there_ns, self.left_over_ns, self.paid, self.taken = 0.0, 0.0, 0.0, 0
        self.at_ns = 0
        for node in self.supply.away:
            self._gone(node, 0)
        for name in self.used:
            self._match(name, 0)

    def _name(self, node: int) -> str:
        return self.cluster.groups[int(self.cluster.group[node])].name

    def count(self, now: int) -> None:
        """Counts device time until now, and the part of it without a replica."""
        for name in self.used:
            had = sum(r.devices for r in self.loop.replicas if r.group == name and r.speed > 0)
            if name == self.loop.train_group and not self._mine(name):
                had = self.devices[name]
            self.there_ns += (now - self.at_ns) * self.devices[name]
            self.left_over_ns += (now - self.at_ns) * (self.devices[name] - had)
        self.at_ns = now

    def _mine(self, name: str) -> list[int]:
        return [number for number, replica in enumerate(self.loop.replicas) if replica.group == name]

    def _gone(self, node: int, now: int) -> None:
        if self._name(node) in self.used:
            self.devices[self._name(node)] -= int(self.cluster.gpus[node])
        self._pay(node, now)
        del self.up_since[node]

    def _pay(self, node: int, now: int) -> None:
        if self._name(node) in self.used:
            prices = self.supply.prices[int(self.cluster.group[node])]
            self.paid += prices.paid(self.up_since[node], now) * int(self.cluster.gpus[node])

    def _match(self, name: str, now: int) -> None:
        """Runs as many replicas as fit the available devices of a group."""
        mine = self._mine(name)
        fit = self.devices[name] // self.loop.replicas[mine[0]].devices if mine else 0
        for k, number in enumerate(mine):
            wanted = 1.0 if k < fit else 0.0
            if self.loop.replicas[number].speed != wanted:
                self.loop.set_speed(number, wanted, now)

    def turn(self) -> None:
        """Handles the nodes that come and go at the next instant; their groups pause to regroup."""
        now = self.supply.next_ns()
        self.loop.advance(now + 1)
        if self.loop.done:
            return
        self.count(now)
        changed = set[str]()
        for node, there in self.supply.due(now):
            if self._name(node) in self.used:
                changed.add(self._name(node))
                self.taken += not there
            if there:
                self.up_since[node] = now
                if self._name(node) in self.used:
                    self.devices[self._name(node)] += int(self.cluster.gpus[node])
            else:
                self._gone(node, now)
        for name in sorted(changed):
            self._match(name, now)
            self.loop.stand(name, now, self.loop.priced.spec.regroup_ns)

    def close(self, now: int) -> None:
        self.count(now)
        for node in list(self.up_since):
            self._pay(node, now)


def run_rl(
    cluster: Cluster, spec: RlSpec, where: str, *, seed: int = 0, horizon_ns: int = 0,
    loop: RlLoop | None = None, step: Callable[[], None] | None = None,
) -> RlRun:  # fmt: skip
    loop = loop or loop_of(cluster, spec, where, seed=seed)
    nodes = PoolNodes(cluster, loop, seed)
    while not loop.done:
        turn, own = nodes.supply.next_ns(), loop.next_ns
        if turn == NEVER and own is None:
            raise UsageError(
                "no devices are left for its samples", where=where, hint="use nodes that are not reclaimed"
            )
        end = SharingTimes(horizon_ns=horizon_ns).end_ns(0, nodes.supply)
        if min(turn, turn if own is None else own) > end:
            raise UsageError(f"is not done after {end / 1e9:,.0f} s", where=where, hint="use a longer horizon")
        if turn == NEVER:
            loop.finish()
        else:
            nodes.turn()
    return ended(spec, loop, nodes)


def ended(spec: RlSpec, loop: RlLoop, nodes: PoolNodes) -> RlRun:
    now = max(tenant.end_ns for tenant in loop.tenants)
    for replica in loop.replicas:
        replica.advance(max(now, replica.at_ns))
    nodes.close(now)
    return RlRun(
        spec, loop, now / 1e9, nodes.there_ns, nodes.left_over_ns, nodes.paid or None, nodes.taken, loop.priced.notes
    )
