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
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.world.clock import NEVER, LoneEntity
from etude.world.fleet.rl.replicas import USES, RolloutReplica, Sample
from etude.world.fleet.rl.spec import BORROWED, Making, Priced, Stages, When

EXPLORE, ROLLOUT, TRAIN, SEND = "explore", "rollout", "train", "sync"
TURN, ANSWER, UPDATE, SYNC = "turn", "answer", "update", "sync"
RANK: Final = {TURN: 0, ANSWER: 1, UPDATE: 2, SYNC: 3}
"""What the loop announces to itself, and the order in which it happens at an instant."""
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
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys((EXPLORE, ROLLOUT, TRAIN, SEND), 0))
    """Number of completed stages of each kind."""
    busy: set[str] = field(default_factory=set)
    """Kinds of which a stage is in progress or queued."""
    left: dict[str, int] = field(default_factory=dict)
    """Unfinished samples of the current stage."""
    began: dict[str, int] = field(default_factory=dict)
    lag: int = 0
    tokens: dict[str, F64] = field(default_factory=dict)
    waits: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    end_ns: int = -1


@dataclass(slots=True)
class RlLoop(LoneEntity):
    priced: Priced
    replicas: list[RolloutReplica]
    train_group: str
    train_devices: int
    seed: int = 0
    tenants: list[Tenant] = field(init=False)
    queues: dict[str, deque[Sample]] = field(default_factory=lambda: {ROLLOUT: deque(), EXPLORE: deque()})
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

    def __post_init__(self) -> None:
        self.tenants = [Tenant() for _ in range(self.priced.spec.tenants)]
        self.line.extend(range(len(self.tenants)))
        self.settle()

    # -- from outside ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return all(tenant.done[SEND] == self.priced.spec.steps for tenant in self.tenants)

    @property
    def end_ns(self) -> int:
        """When the last tenant was done."""
        return max(tenant.end_ns for tenant in self.tenants) if self.done else NEVER

    @property
    def wants(self) -> bool:
        """Whether rollouts are in progress or wait for replicas."""
        return bool(self.queues[ROLLOUT]) or any(replica.heap for replica in self.replicas)

    def replicas_on(self, group: str) -> list[int]:
        return [number for number, replica in enumerate(self.replicas) if replica.group == group]

    def run_on(self, group: str, devices: int, now: int) -> None:
        """Runs as many replicas of a group as fit these devices; those that are new pause to regroup."""
        for k, number in enumerate(self.replicas_on(group)):
            speed = 1.0 if k < devices // self.replicas[number].devices else 0.0
            if self.replicas[number].speed != speed:
                self.set_speed(number, speed, now, ready_ns=now + self.priced.spec.regroup_ns if speed else 0)

    def set_speed(self, number: int, speed: float, now: int, *, ready_ns: int = 0) -> None:
        """Changes the part of its devices that a replica has; with none, its samples go elsewhere and the steps of
        their current turns are lost."""
        self.now_ns, replica = now, self.replicas[number]
        replica.advance(now)
        if speed <= 0:
            for needed, sample in reversed(replica.emptied()):
                self.lost_steps += self._steps(sample) - needed
                self.queues[sample.stage].appendleft(sample)
        replica.speed, replica.ready_ns = speed, max(replica.ready_ns, ready_ns)
        self._fill()
        self._plan(number)

    def relink(self, priced: Priced, now: int) -> None:
        """From now on steps of samples and updates take other times; an update in progress goes on as it began."""
        self.now_ns, self.priced = now, priced
        for number, replica in enumerate(self.replicas):
            replica.advance(now)
            replica.step_ns = priced.step_ns
            self._plan(number)

    def stand(self, group: str, now: int, ns: int) -> None:
        """Pauses all replicas of a group for `ns`."""
        for number in self.replicas_on(group) if ns else ():
            replica = self.replicas[number]
            replica.advance(now)
            replica.ready_ns = max(replica.ready_ns, now + ns)
            self._plan(number)

    def device_ns(self) -> dict[str, float]:
        """Device time by use, and what of it was lost; that of devices that only train while they do."""
        found = {use: sum(one.used_ns[use] for one in self.replicas) for use in USES}
        found["train"] += self.train_ns
        steps = sum(one.steps_made for one in self.replicas)
        return found | {"redone": found["make"] * self.lost_steps / steps if steps else 0.0}

    # -- events ------------------------------------------------------------------------------------------------------

    def due_ns(self) -> int:
        return NEVER if self.done else self.later.next_ns()

    def happen(self, kind: str, about: Any) -> None:
        if kind == TURN:
            self._turn(*about)
        elif kind == ANSWER:
            self._answer(about)
        elif kind == UPDATE:
            self._updated(about)
        else:
            self._synced(about)

    def settle(self) -> None:
        """Every stage that may start does, and samples go to replicas."""
        self._start_all()
        self._fill()
        made = sum(len(replica.heap) for replica in self.replicas)
        self.series.append((self.now_ns, made, sum(map(len, self.queues.values())), int(self.training >= 0)))

    def _plan(self, number: int) -> None:
        replica = self.replicas[number]
        replica.version += 1
        at = replica.next_ns()
        if at is not None:
            self.later.note(max(at, self.now_ns), TURN, (number, replica.version))

    def _turn(self, number: int, version: int) -> None:
        replica = self.replicas[number]
        if version != replica.version:
            return
        replica.advance(self.now_ns)
        for sample in replica.due():
            tenant = self.tenants[sample.tenant]
            self.done_steps += self._steps(sample)
            wait = tenant.waits[sample.number, sample.turn] if sample.stage == ROLLOUT else 0.0
            if wait:
                self.later.note(self.now_ns + round(wait), ANSWER, sample, rank=RANK[ANSWER])
            else:
                self._answer(sample)
        self._plan(number)

    def _answer(self, sample: Sample) -> None:
        """Handles the environment's answer to a turn."""
        tenant = self.tenants[sample.tenant]
        if sample.turn + 1 < tenant.tokens[sample.stage].shape[1]:
            self.queues[sample.stage].append(sample._replace(turn=sample.turn + 1))
            return
        self.samples_done += 1
        tenant.left[sample.stage] -= 1
        if not tenant.left[sample.stage]:
            self._end(sample.tenant, sample.stage, tenant.lag)

    def _end(self, number: int, stage: str, lag: int = 0) -> None:
        tenant = self.tenants[number]
        if stage != SEND or self.priced.sync_ns:
            self.stretches.append(Stretch(number, tenant.done[stage], stage, tenant.began[stage], self.now_ns, lag))
        tenant.done[stage] += 1
        tenant.busy.discard(stage)

    # -- starts ------------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        together = self.priced.spec.stages is Stages.TOGETHER
        if together and self.holder < 0 and self.line:
            self.holder = self.line.popleft()
        for number, tenant in enumerate(self.tenants):
            if not together or number == self.holder:
                self._start(number, tenant)
        self._train()

    def _start(self, number: int, tenant: Tenant) -> None:
        spec, done, busy = self.priced.spec, tenant.done, tenant.busy
        i = done[EXPLORE]
        if spec.explore and EXPLORE not in busy and i < spec.steps:
            before = done[ROLLOUT] if spec.explore.when is When.STALE else done[SEND]
            if before >= i and done[ROLLOUT] >= i:
                self._make(number, EXPLORE, spec.explore)
        i = done[ROLLOUT]
        fresh = done[SEND] >= i - spec.staleness and (spec.explore is None or done[EXPLORE] > i)
        if ROLLOUT not in busy and i < spec.steps and fresh:
            tenant.lag = i - done[SEND]
            self._make(number, ROLLOUT, spec.rollout)
        if TRAIN not in busy and done[SEND] == done[TRAIN] < done[ROLLOUT]:
            busy.add(TRAIN)
            self.updates.append(number)

    def _make(self, number: int, stage: str, making: Making) -> None:
        tenant, step = self.tenants[number], self.tenants[number].done[stage]
        rng = np.random.default_rng((self.seed, MILLION, number, step, stage == EXPLORE))
        shape = (making.samples, making.turns)
        tenant.tokens[stage] = np.maximum(np.round(making.tokens * _varied(rng, making.spread, shape)), 1.0)
        if stage == ROLLOUT:
            env = self.priced.spec.environment
            tenant.waits = env.time_ns * _varied(rng, env.spread, shape)
        tenant.left[stage], tenant.began[stage] = making.samples, self.now_ns
        tenant.busy.add(stage)
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
                    replica.advance(self.now_ns)
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
        takes = self.priced.train_ns
        if self._set_training(True):
            takes += self.priced.spec.train.switch_ns
        else:
            self.train_ns += takes * self.train_devices
        self.tenants[self.training].began[TRAIN] = self.now_ns
        self.later.note(self.now_ns + takes, UPDATE, self.training, rank=RANK[UPDATE])

    def _set_training(self, trains: bool) -> bool:
        """Whether there are replicas on the devices of updates, which pause for them."""
        own, switch_ns = self.replicas_on(self.train_group), self.priced.spec.train.switch_ns
        for number in own:
            replica = self.replicas[number]
            replica.advance(self.now_ns)
            replica.trains = trains
            if not trains:
                replica.ready_ns = max(replica.ready_ns, self.now_ns + switch_ns)
            self._plan(number)
        return bool(own)

    def _updated(self, number: int) -> None:
        self._end(number, TRAIN)
        self.training = -1
        self._set_training(False)
        self.tenants[number].began[SEND] = self.now_ns
        self.later.note(self.now_ns + self.priced.sync_ns, SYNC, number, rank=RANK[SYNC])

    def _synced(self, number: int) -> None:
        self._end(number, SEND)
        tenant = self.tenants[number]
        ended = tenant.done[SEND] == self.priced.spec.steps
        if ended:
            tenant.end_ns = self.now_ns
        if self.holder == number:
            self.holder = -1
            if not ended:
                self.line.append(number)


def _varied(rng: np.random.Generator, spread: float, shape: tuple[int, int]) -> F64:
    """Factors of mean 1; `spread` is the sigma of their logarithm."""
    return rng.lognormal(-(spread**2) / 2, spread, shape) if spread else np.ones(shape)


def replicas_of(group: str, devices: int, making: Making, step_ns: dict[str, F64]) -> list[RolloutReplica]:
    """As many replicas as fit the devices of a group. Raises UsageError if none fits."""
    count = devices // making.tp
    if not count and group != BORROWED:
        raise UsageError(f"{devices} devices of `{group}` are fewer than a replica needs", hint=f"tp: {making.tp}")
    return [RolloutReplica(group, making.tp, step_ns, making.at_once) for _ in range(count)]
