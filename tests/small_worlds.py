"""Small machines with workloads whose times are chosen, not predicted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.world.clock import NEVER, Clock, Event
from etude.world.devices import DevicePool
from etude.world.entities.images import ImagesWorkload
from etude.world.entities.machine import GIVEN, MACHINE, OFFER, WANTED, SharedMachine
from etude.world.entities.seats import SeatedScale
from etude.world.entities.serving import ServingWorkload
from etude.world.entities.training import TrainingWorkload, training_workload
from etude.world.fleet.checkpoint import SaveTier
from etude.world.fleet.costs import Config, Costs
from etude.world.fleet.events import EFFECTS, SCOPES, FleetEvents
from etude.world.fleet.recovery import Recovery
from etude.world.fleet.sharing.supply import DevicePrices
from etude.world.policies import NodeLender, policy
from etude.world.prices import paid
from etude.world.serve import Engine
from etude.world.serve.elastic.scale import ScaleRule
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.images.requests import ImageRequests
from etude.world.serve.images.serving import ImageLoop
from etude.world.serve.images.words import DegreeRule
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.serving import Group, ServingOptions, ready_for
from etude.world.serve.state import DECODE, PREFILL
from etude.world.serve.steps import StepCost, step_cost

S = 1_000_000_000
STEP = Config(gpus=4, step_ns=10 * S, tokens=100, energy_j=50.0)
CONSTANT = step_cost(tokens=[1], layers_ns=[1000.0])
TIMES = Recovery(detect_ns=60 * S, restart_ns=100 * S, regroup_ns=20 * S)


def smaller(shape: str, gpus: int) -> Config:
    """As fast on fewer devices, with their share of the batch."""
    return Config(gpus=gpus, step_ns=10 * S, tokens=25 * gpus, energy_j=12.5 * gpus, name=f"{gpus} replicas")


def costs(**given) -> Costs:
    usual = {
        "healthy": STEP,
        "gpus_per_node": 1,
        "replica_gpus": 1,
        "state_bytes": 8.0,
        "node_bytes": 5.0,
        "node_bytes_per_s": 1.0,
        "idle_w": 1.0,
        "predicted": smaller,
    }
    return Costs(**usual | given)


def tier(steps: int = 5) -> SaveTier:
    """Writes 2 bytes of a node at 1 byte/s: 2 s; reads its 5 in 5 s."""
    return SaveTier(name="remote", steps=steps, rate_bytes_per_s=1.0, survives="all")


def faults(*rows: tuple[int, int, int], notice_ns: int = 0) -> FleetEvents:
    """(time, node, duration) of nodes that stop, ns; with a notice they are taken away after it."""
    time, node, lasting = (np.array([row[k] for row in rows], np.int64) for k in range(3))
    n = len(rows)
    return FleetEvents(
        time,
        np.zeros(n, np.int64),
        np.full(n, EFFECTS.index("preempt" if notice_ns else "stop")),
        np.full(n, SCOPES.index("node")),
        node,
        np.ones(n, np.int64),
        lasting,
        np.ones(n),
        np.full(n, notice_ns, np.int64),
        np.full(n, -1, np.int64),
        ("node",),
    )


def machine_of(nodes: int, events: FleetEvents, *, per_node: int = 1, share: str = "lend") -> SharedMachine:
    return SharedMachine(DevicePool(nodes, per_node, policy("place", "pack")), events, policy("share", share))


def training(
    machine: SharedMachine, *tiers: SaveTier, name: str = "train", recover: str = "restart", lend_to: str = "", **given
) -> TrainingWorkload:
    made = training_workload(
        name,
        costs(**given),
        machine.devices,
        machine.events,
        tiers=tiers,
        recover=recover,
        recovery=TIMES,
        lend_to=lend_to,
    )
    machine.workloads[name] = made
    return made


def serving(
    machine: SharedMachine,
    requests: Requests,
    *,
    name: str = "chat",
    replicas: int = 1,
    most: int = 0,
    cold_ns: int = 0,
    every_ns: int = S,
    router: str = "turn",
    cost: StepCost = CONSTANT,
    tp: int = 1,
    least: int = 0,
    split: tuple[int, int] = (0, 0),
    rules: Mapping[str, Any] | None = None,
    **more: Any,
) -> ServingWorkload:
    """`split` replicas read prompts and write answers apart; `rules` are of the engine, `more` are options."""
    replicas = sum(split) or replicas
    engine, rows = Engine(async_scheduling=False, enable_prefix_caching=False, **rules or {}), max(most, replicas)
    rule = ScaleRule(most=rows, least=least or replicas, every_ns=every_ns, low=1.0, high=2.0)
    scale = SeatedScale(rule, replicas, cold_ns, who=name, tp=tp, devices=machine.devices)
    for row in range(replicas):
        seat = machine.devices.take_seat(name, tp, 0)
        assert seat is not None
        scale.seats[row] = seat
    apart = [Group(cost, split[0], PREFILL), Group(cost, split[1], DECODE)]
    groups, options = apart if sum(split) else [Group(cost, rows)], ServingOptions(router=router, **more)
    ready = ready_for(requests, engine, groups, options)
    made = ServingWorkload(name, requests, groups, engine, options, ready, scale, {"": {}}, machine.devices)
    machine.workloads[name] = made
    return made


def pictures(
    machine: SharedMachine,
    requests: ImageRequests,
    rule: DegreeRule,
    *,
    nodes: int,
    cold_ns: int = 0,
    step_ns: Sequence[int] = (S,),
    name: str = "pictures",
) -> ImagesWorkload:
    """Steps of these times by degree, on these nodes; texts and pixels take no time."""
    sizes, none = len(requests.sizes), np.zeros(len(requests.sizes), np.int64)
    costs = ImageCosts(rule.degrees, np.array([[[ns] for ns in step_ns]] * sizes), none, none)
    got = machine.devices.take_nodes(name, nodes, 0)
    loop = ImageLoop(requests, costs, nodes * machine.devices.per_node, rule)
    made = ImagesWorkload(name, loop, machine.devices, nodes=got, cold_ns=cold_ns)
    machine.workloads[name] = made
    return made


@dataclass
class Borrower:
    """Wants nodes at a moment, has them from when they are free, and gives them back at another."""

    machine: SharedMachine
    at_ns: int
    until_ns: int
    nodes: int = 1
    name: str = "borrower"
    missing: int = 0
    has: Sequence[int] = ()
    got_ns: int = NEVER

    def __post_init__(self) -> None:
        self.machine.workloads[self.name] = self

    def next_ns(self) -> int:
        return self.at_ns if self.at_ns < NEVER else self.until_ns

    def advance(self, until_ns: int) -> Iterable[Event]:
        devices = self.machine.devices
        if until_ns == self.at_ns:
            self.at_ns, self.missing = NEVER, self.nodes
            return [Event(until_ns, WANTED, MACHINE, (self.name, self.nodes * devices.per_node))]
        if until_ns == self.until_ns:
            self.until_ns, self.missing = NEVER, 0
            for node in self.has:
                devices.give_node(node, until_ns)
            return [Event(until_ns, GIVEN, MACHINE)]
        return ()

    def on(self, event: Event) -> Iterable[Event]:
        if event.kind == OFFER:
            self.has = [*self.has, *self.machine.devices.take_nodes(self.name, self.missing, event.time_ns)]
            self.missing = self.nodes - len(self.has)
            self.got_ns = min(self.got_ns, event.time_ns)
        return ()

    def short(self) -> int:
        return self.missing

    def lender(self) -> NodeLender | None:
        return None


def run(machine: SharedMachine, horizon_ns: int, *more) -> Clock:
    clock = Clock(horizon_ns)
    clock.add(machine, *machine.workloads.values(), *more)
    clock.post(machine.faults(), outside=True)
    for one in machine.workloads.values():
        clock.post(one.link_events() if hasattr(one, "link_events") else (), outside=True)
    clock.run()
    for one in machine.workloads.values():
        if hasattr(one, "close"):
            one.close()
    return clock


def random_world(seed: int) -> tuple[SharedMachine, int]:
    """A machine with two training jobs, of which one lends, a scaled and a fixed stream, and faults; and a horizon."""
    random = np.random.default_rng(seed)
    horizon = int(random.integers(300, 2000)) * S
    nodes = int(random.integers(12, 20))
    count = int(random.poisson(6))
    rows = sorted(
        (int(random.integers(horizon)), int(random.integers(nodes)), int(random.integers(1, 400)) * S)
        for _ in range(count)
    )
    machine = machine_of(nodes, faults(*rows), share=str(random.choice(["lend", "never"])))
    tiers = [tier(int(random.integers(2, 9)))] if random.integers(2) else []
    training(
        machine,
        *tiers,
        name="first",
        recover=str(random.choice(["restart", "spare"])),
        replicated=bool(random.integers(2)),
    )
    training(
        machine,
        *tiers,
        name="second",
        recover=str(random.choice(["shrink", "redistribute"])),
        lend_to=str(random.choice(["", "scaled"])),
        replicated=bool(random.integers(2)),
    )
    every = int(random.integers(5, 60)) * S
    for name, most in (("scaled", int(random.integers(2, 9))), ("fixed", 0)):
        size = int(random.integers(5, 60))
        arrival = np.sort(random.integers(0, horizon, size))
        serving(
            machine,
            requests_of(arrival, random.integers(1, 50, size), random.integers(1, 300, size)),
            name=name,
            replicas=int(random.integers(1, 3)),
            most=most,
            cold_ns=int(random.integers(0, 30)) * S,
            every_ns=every,
            router=str(random.choice(["turn", "least", "two"])),
            cost=step_cost(tokens=[1], layers_ns=[float(random.integers(1, 4000)) * 1e6]),
        )
    return machine, horizon


PRICES = DevicePrices(np.array([0, 100 * S, 450 * S], np.int64), np.array([3.0, 1.0, 7.0]))


def unbooked(machine: SharedMachine) -> list[int]:
    """Moments at which the devices of all holders, as they were last booked, are not those of the machine."""
    rows = {who: list(its) for who, its in machine.devices.history.items()}
    found = []
    for now in sorted({row.time_ns for its in rows.values() for row in its}):
        last = [max((r for r in its if r.time_ns <= now), key=lambda r: r.time_ns).devices for its in rows.values()]
        if sum(last) != machine.devices.count:
            found.append(now)
    return found


def wrong_in(machine: SharedMachine, horizon_ns: int) -> list[str]:
    """What does not add up after a run."""
    devices, found = machine.devices, []
    if moments := unbooked(machine):
        found.append(f"devices are booked twice or not at all at {moments[:3]}")
    edges = [min(one, horizon_ns) for one in (0, 100 * S, 450 * S, horizon_ns)]
    price = sum(rate * (b - a) for rate, a, b in zip((3, 1, 7), edges, edges[1:], strict=False)) / 3.6e12
    whole_cost = sum(paid(rows, PRICES, horizon_ns) for rows in devices.history.values())
    if abs(whole_cost - price * devices.count) > 1e-9 * whole_cost:
        found.append(f"holders pay {whole_cost} of {price * devices.count}")
    whole = sum(devices.device_ns(who, horizon_ns) for who in devices.history)
    if whole != devices.count * horizon_ns:
        found.append(f"holders have {whole} ns of {devices.count * horizon_ns}")
    for k, name in enumerate(devices.names):
        if int((devices.holder == k).sum()) != devices.held(name):
            found.append(
                f"{name} holds {int((devices.holder == k).sum())} devices, and {devices.held(name)} are booked"
            )
    for name, one in machine.workloads.items():
        parts = one.parts_ns(horizon_ns)
        if sum(parts.values()) != devices.device_ns(name, horizon_ns):
            found.append(f"{name}: {parts} are not {devices.device_ns(name, horizon_ns)}")
        if min(parts.values()) < 0:
            found.append(f"{name}: {parts} has a negative part")
        if isinstance(one, TrainingWorkload):
            account = one.job.account
            if account.useful_ns + sum(account.lost_ns.values()) != horizon_ns:
                found.append(f"{name}: its time is not the horizon")
        elif isinstance(one, ServingWorkload):
            ended = one.figures(horizon_ns)
            if ended["finished"] + ended.get("unfinished", ended["requests"]) != ended["requests"]:
                found.append(f"{name}: requests are lost")
    return found
