"""run_rl(pool, spec): the steps of all tenants on the nodes of a pool, including nodes that come and go."""

from __future__ import annotations

from typing import Any

from etude.base.errors import UsageError
from etude.world.clock import NEVER, DiscreteEntity, run_alone
from etude.world.fleet.rl.costs import priced
from etude.world.fleet.rl.loop import RlLoop, replicas_of
from etude.world.fleet.rl.replicas import RolloutReplica
from etude.world.fleet.rl.spec import BORROWED, Making, RlSpec
from etude.world.fleet.sharing.cluster import Cluster
from etude.world.fleet.sharing.gangs import SharingTimes
from etude.world.fleet.sharing.supply import Supply


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


class PoolRollouts(DiscreteEntity):
    """Post-training on nodes of a pool that come and go. At an instant, its own work comes first."""

    name = "rl"

    def __init__(self, cluster: Cluster, loop: RlLoop, seed: int) -> None:
        self.cluster, self.loop, self.supply = cluster, loop, Supply(cluster, seed)
        used = {replica.group for replica in loop.replicas if replica.group != BORROWED} | {loop.train_group}
        nodes = {name: cluster.nodes_of(name).tolist() for name in sorted(used)}
        self.group_of = {node: name for name, own in nodes.items() for node in own}
        """Group of each node that it uses."""
        self.devices = {name: int(cluster.gpus[own].sum()) for name, own in nodes.items()}
        self.up_since = dict.fromkeys(sorted(self.group_of), 0)
        self.there_ns, self.left_over_ns, self.at_ns = 0.0, 0.0, 0
        """Device time of all nodes that it uses, and of devices without a replica, up to a moment."""
        self.paid, self.taken = 0.0, 0
        """Dollars; number of times that a node was reclaimed."""
        self.beside: dict[str, Any] = {}
        """Further results: those of streams in the pool."""
        for node in self.supply.away:
            self._change(node, False, 0)
        for name in self.devices:
            loop.run_on(name, self.devices[name], 0)

    def due_ns(self) -> int:
        return NEVER if self.loop.done else min(self.loop.due_ns(), self.supply.next_ns())

    def instant(self, now: int) -> None:
        """After what the loop does, nodes come and go; their groups pause to regroup."""
        self.loop.advance(now)
        if self.supply.next_ns() > now or self.loop.done:
            return
        self.count(now)
        changes = [(node, there) for node, there in self.supply.due(now) if node in self.group_of]
        for node, there in changes:
            self._change(node, there, now)
            self.taken += not there
        for name in sorted({self.group_of[node] for node, _ in changes}):
            self.loop.run_on(name, self.devices[name], now)
            self.loop.stand(name, now, self.loop.priced.spec.regroup_ns)

    def count(self, now: int) -> None:
        """Counts device time until now, and the part of it without a replica."""
        for name, devices in self.devices.items():
            mine = self.loop.replicas_on(name)
            had = sum(self.loop.replicas[k].devices for k in mine if self.loop.replicas[k].speed > 0)
            if name == self.loop.train_group and not mine:
                had = devices
            self.there_ns += (now - self.at_ns) * devices
            self.left_over_ns += (now - self.at_ns) * (devices - had)
        self.at_ns = now

    def _change(self, node: int, there: bool, now: int) -> None:
        if node not in self.group_of:
            return
        self.devices[self.group_of[node]] += int(self.cluster.gpus[node]) * (1 if there else -1)
        if there:
            self.up_since[node] = now
        else:
            self._pay(node, now)
            del self.up_since[node]

    def _pay(self, node: int, now: int) -> None:
        prices = self.supply.prices[int(self.cluster.group[node])]
        self.paid += prices.paid(self.up_since[node], now) * int(self.cluster.gpus[node])

    def finish(self) -> PoolRollouts:
        """The end: the time of all devices is counted, and paid."""
        now = self.loop.end_ns
        for replica in self.loop.replicas:
            replica.advance(max(now, replica.at_ns))
        self.count(now)
        for node in self.up_since:
            self._pay(node, now)
        return self


def run_rl(cluster: Cluster, spec: RlSpec, where: str, *, seed: int = 0, horizon_ns: int = 0) -> PoolRollouts:
    its = PoolRollouts(cluster, loop_of(cluster, spec, where, seed=seed), seed)
    end = SharingTimes(horizon_ns=horizon_ns).end_ns(0, its.supply)
    run_alone(its, end)
    if not its.loop.done and its.due_ns() == NEVER:
        raise UsageError("no devices are left for its samples", where=where, hint="use nodes that are not reclaimed")
    if not its.loop.done:
        raise UsageError(f"is not done after {end / 1e9:,.0f} s", where=where, hint="use a longer horizon")
    return its.finish()
