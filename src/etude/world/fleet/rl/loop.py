"""The loop over stages: samples on replicas, environments, updates, and transfers of weights.

At an instant: samples end their turns; environments answer; updates and transfers end; nodes come and go; then every
stage that may start does, tenants in turn, and samples go to the replica on which they advance fastest.

For a tenant with staleness s: rollout i begins when rollout i-1 is done and the weights of update i-s have arrived (the
initial ones for i <= s); update i begins when rollout i and update i-1 are done. Exploration for step i comes before
its rollout: after update i-1 (serial), or after rollout i-1 (stale), at the same time as update i-1.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.world.fleet.rl.replicas import RolloutReplica, Sample
from etude.world.fleet.rl.spec import BORROWED, Making, Priced, Stages, When

TURN, ANSWER, UPDATE, SYNC, READY = range(5)
EXPLORE, ROLLOUT, TRAIN, SEND = "explore", "rollout", "train", "sync"
MILLION: Final = 1_000_003


class Stretch(NamedTuple):
    tenant: int
    step: int
    stage: str
    start_ns: int
    end_ns: int
    lag: int
    """Number of updates that its weights lack."""


@dataclass(slots=True)
class Tenant:
    explored: int = 0
    """Number of completed stages of each kind."""
    rolled: int = 0
    trained: int = 0
    synced: int = 0
    explores: bool = False
    """Whether a stage of the kind is in progress or queued."""
    rolls: bool = False
    trains: bool = False
    left: dict[str, int] = field(default_factory=dict)
    """Unfinished samples of the current stage."""
    began: dict[str, int] = field(default_factory=dict)
    lag: int = 0
    tokens: dict[str, F64] = field(default_factory=dict)
    waits: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    end_ns: int = -1


@dataclass(slots=True)
class RlLoop:
    priced: Priced
    replicas: list[RolloutReplica]
    train_group: str
    train_devices: int
    seed: int = 0
    now: int = 0
    tenants: list[Tenant] = field(init=False)
    events: list[tuple[int, int, int, tuple[int, ...], Sample | None]] = field(default_factory=list)
    queues: dict[str, deque[Sample]] = field(default_factory=dict)
    updates: deque[int] = field(default_factory=deque)
    training: int = -1
    train_ns: float = 0.0
    """Device time of devices that only train, ns."""
    holder: int = -1
    """Tenant that holds the devices, if stages are together."""
    line: deque[int] = field(default_factory=deque)
    stretches: list[Stretch] = field(default_factory=list)
    series: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(time, samples in progress, samples that wait for a replica, updates in progress)."""
    lost_steps: float = 0.0
    done_steps: float = 0.0
    samples_done: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        spec = self.priced.spec
        self.tenants = [Tenant() for _ in range(spec.tenants)]
        self.queues = {ROLLOUT: deque(), EXPLORE: deque()}
        self.line.extend(range(spec.tenants))
        self._start_all()
        self._fill()
        self._note()

    # -- from outside ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return all(tenant.synced == self.priced.spec.steps for tenant in self.tenants)

    @property
    def wants(self) -> bool:
        """Whether rollouts are in progress or wait for replicas."""
        return bool(self.queues[ROLLOUT]) or any(replica.heap for replica in self.replicas)

    @property
    def next_ns(self) -> int | None:
        return self.events[0][0] if self.events else None

    def advance(self, until_ns: int) -> None:
        """Processes all events before `until_ns`."""
        while self.events and self.events[0][0] < until_ns and not self.done:
            self._instant(self.events[0][0])
        if not self.done:
            self.now = max(self.now, until_ns)

    def through(self, until_ns: int) -> None:
        """Processes all events up to a moment, including those of it."""
        while self.events and self.events[0][0] <= until_ns and not self.done:
            self._instant(self.events[0][0])
        if not self.done:
            self.now = max(self.now, until_ns)

    def finish(self) -> None:
        while self.events and not self.done:
            self._instant(self.events[0][0])

    def set_speed(self, number: int, speed: float, now: int, *, ready_ns: int = 0) -> None:
        """Changes the part of its devices that a replica has; with none, its samples go elsewhere and the steps of
        their current turns are lost."""
        replica = self.replicas[number]
        replica.advance(now)
        if speed <= 0 and replica.heap:
            for needed, sample in reversed(replica.emptied()):
                self.lost_steps += float(self._steps(sample)) - needed
                self.queues[sample.stage].appendleft(sample)
        replica.speed = speed
        if ready_ns > replica.ready_ns:
            replica.ready_ns = ready_ns
        self.now = max(self.now, now)
        self._fill()
        self._plan(number)

    def stand(self, group: str, now: int, ns: int) -> None:
        """Pauses all replicas of a group for `ns`."""
        for number, replica in enumerate(self.replicas):
            if replica.group == group and ns:
                replica.advance(now)
                replica.ready_ns = max(replica.ready_ns, now + ns)
                self._plan(number)

    # -- events ------------------------------------------------------------------------------------------------------

    def _push(self, at: int, what: int, given: tuple[int, ...], sample: Sample | None = None) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, what, self.number, given, sample))

    def _instant(self, now: int) -> None:
        self.now = now
        while self.events and self.events[0][0] == now:
            _, what, _, given, sample = heapq.heappop(self.events)
            if what == TURN:
                number, version = given
                if version == self.replicas[number].version:
                    self._turn(number, now)
            elif what == ANSWER:
                assert sample is not None
                self._answer(sample, now)
            elif what == UPDATE:
                self._updated(given[0], now)
            elif what == SYNC:
                self._synced(given[0], now)
        self._start_all()
        self._fill()
        self._note()

    def _note(self) -> None:
        made = sum(len(replica.heap) for replica in self.replicas)
        waits = sum(map(len, self.queues.values()))
        self.series.append((self.now, made, waits, int(self.training >= 0)))

    def _plan(self, number: int) -> None:
        replica = self.replicas[number]
        replica.version += 1
        at = replica.next_ns()
        if at is not None:
            self._push(max(at, self.now), TURN, (number, replica.version))

    def _turn(self, number: int, now: int) -> None:
        replica = self.replicas[number]
        replica.advance(now)
        for sample in replica.due():
            tenant = self.tenants[sample.tenant]
            self.done_steps += self._steps(sample)
            wait = tenant.waits[sample.number, sample.turn] if sample.stage == ROLLOUT else 0.0
            if wait:
                self._push(now + round(wait), ANSWER, (), sample)
            else:
                self._answer(sample, now)
        self._plan(number)

    def _answer(self, sample: Sample, now: int) -> None:
        """Handles the environment's answer to a turn."""
        tenant = self.tenants[sample.tenant]
        if sample.turn + 1 < tenant.tokens[sample.stage].shape[1]:
            self.queues[sample.stage].append(sample._replace(turn=sample.turn + 1))
            return
        self.samples_done += 1
        tenant.left[sample.stage] -= 1
        if not tenant.left[sample.stage]:
            self._made(sample.tenant, sample.stage, now)

    def _made(self, number: int, stage: str, now: int) -> None:
        tenant = self.tenants[number]
        step = tenant.rolled if stage == ROLLOUT else tenant.explored
        self.stretches.append(Stretch(number, step, stage, tenant.began[stage], now, tenant.lag))
        if stage == ROLLOUT:
            tenant.rolled, tenant.rolls = tenant.rolled + 1, False
        else:
            tenant.explored, tenant.explores = tenant.explored + 1, False

    # -- starts ------------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        spec = self.priced.spec
        if spec.stages is Stages.TOGETHER and self.holder < 0 and self.line:
            self.holder = self.line.popleft()
        for number, tenant in enumerate(self.tenants):
            if spec.stages is Stages.TOGETHER and number != self.holder:
                continue
            self._start(number, tenant)
        self._train()

    def _start(self, number: int, tenant: Tenant) -> None:
        spec, steps = self.priced.spec, self.priced.spec.steps
        if spec.explore and not tenant.explores and tenant.explored < steps:
            i = tenant.explored
            before = tenant.rolled if spec.explore.when is When.STALE else tenant.synced
            if before >= i and tenant.rolled >= i:
                tenant.explores = True
                self._make(number, EXPLORE, i, spec.explore)
        if not tenant.rolls and tenant.rolled < steps:
            i = tenant.rolled
            if tenant.synced >= i - spec.staleness and (spec.explore is None or tenant.explored > i):
                tenant.rolls, tenant.lag = True, i - tenant.synced
                self._make(number, ROLLOUT, i, spec.rollout)
        if not tenant.trains and tenant.trained < tenant.rolled and tenant.synced == tenant.trained:
            tenant.trains = True
            self.updates.append(number)

    def _make(self, number: int, stage: str, step: int, making: Making) -> None:
        tenant, spec = self.tenants[number], self.priced.spec
        rng = np.random.default_rng((self.seed, MILLION, number, step, stage == EXPLORE))
        shape = (making.samples, making.turns)
        drawn = rng.lognormal(-(making.spread**2) / 2, making.spread, shape) if making.spread else np.ones(shape)
        tenant.tokens[stage] = np.maximum(np.round(making.tokens * drawn), 1.0)
        if stage == ROLLOUT:
            env = spec.environment
            wait = rng.lognormal(-(env.spread**2) / 2, env.spread, shape) if env.spread else np.ones(shape)
            tenant.waits = env.time_ns * wait
        tenant.left[stage], tenant.began[stage] = making.samples, self.now
        self.queues[stage].extend(Sample(number, step, stage, k, 0) for k in range(making.samples))

    def _fill(self) -> None:
        """Assigns waiting samples to the replica on which they advance fastest; ties: the one with the fewest samples,
        then the first."""
        touched = set[int]()
        for stage, queue in self.queues.items():
            if not queue:
                continue
            making = self.priced.spec.rollout if stage == ROLLOUT else self.priced.spec.explore
            assert making is not None
            able = [
                (replica.next_step_ns(stage), len(replica.heap), number)
                for number, replica in enumerate(self.replicas)
                if replica.free > 0 and replica.group in making.nodes and self._one_stage(replica, stage)
            ]
            heapq.heapify(able)
            while queue and able:
                _, _, number = able[0]
                replica, sample = self.replicas[number], queue.popleft()
                if number not in touched:
                    replica.advance(self.now)
                    touched.add(number)
                replica.add(sample, self._steps(sample))
                if replica.free:
                    heapq.heapreplace(able, (replica.next_step_ns(stage), len(replica.heap), number))
                else:
                    heapq.heappop(able)
        for number in sorted(touched):
            self._plan(number)

    def _steps(self, sample: Sample) -> float:
        """Steps of the sample's current turn."""
        return float(self.tenants[sample.tenant].tokens[sample.stage][sample.number, sample.turn])

    @staticmethod
    def _one_stage(replica: RolloutReplica, stage: str) -> bool:
        """Whether the replica may take samples of this stage: it works on one stage at a time."""
        return not replica.heap or replica.heap[0][1].stage == stage

    def _train(self) -> None:
        if self.training >= 0 or not self.updates:
            return
        self.training = self.updates.popleft()
        takes, switch = self.priced.train_ns, self.priced.spec.train.switch_ns
        own = self._of_train()
        for number in own:
            replica = self.replicas[number]
            replica.advance(self.now)
            replica.trains = True
            self._plan(number)
        if not own:
            self.train_ns += takes * self.train_devices
            switch = 0
        self.tenants[self.training].began[TRAIN] = self.now
        self._push(self.now + takes + switch, UPDATE, (self.training,))

    def _of_train(self) -> list[int]:
        """Replicas whose devices are also used for training."""
        return [number for number, replica in enumerate(self.replicas) if replica.group == self.train_group]

    def _updated(self, number: int, now: int) -> None:
        tenant, priced = self.tenants[number], self.priced
        self.stretches.append(Stretch(number, tenant.trained, TRAIN, tenant.began[TRAIN], now, 0))
        tenant.trained, self.training = tenant.trained + 1, -1
        for one in self._of_train():
            replica = self.replicas[one]
            replica.advance(now)
            replica.trains, replica.ready_ns = False, max(replica.ready_ns, now + priced.spec.train.switch_ns)
            self._plan(one)
        self._push(now + priced.sync_ns, SYNC, (number,))

    def _synced(self, number: int, now: int) -> None:
        tenant, spec = self.tenants[number], self.priced.spec
        if self.priced.sync_ns:
            self.stretches.append(Stretch(number, tenant.synced, SEND, now - self.priced.sync_ns, now, 0))
        tenant.synced, tenant.trains = tenant.synced + 1, False
        if tenant.synced == spec.steps:
            tenant.end_ns = now
        if self.holder == number:
            self.holder = -1
            if tenant.synced < spec.steps:
                self.line.append(number)


def replicas_of(group: str, devices: int, making: Making, step_ns: dict[str, F64]) -> list[RolloutReplica]:
    """As many replicas as fit the devices of a group. Raises UsageError if none fits."""
    count = devices // making.tp
    if not count and group != BORROWED:
        raise UsageError(f"{devices} devices of `{group}` are fewer than a replica needs", hint=f"tp: {making.tp}")
    return [RolloutReplica(group, making.tp, step_ns, making.at_once) for _ in range(count)]
