"""Groups of devices and their tasks: the state of a stream of images."""

from __future__ import annotations

from typing import Any, Final

from etude.world.clock import Agenda
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.images.requests import ImageRequests
from etude.world.serve.images.words import DegreeRule

ENCODE, STEPS, DECODE, DONE = 0, 1, 2, 3
TASKS: Final = ("encode", "steps", "decode")
CUT: Final = "cut"
"""A task that lost a device."""


class DeviceGroup:
    """Devices that do a task of some requests."""

    __slots__ = ("begin", "count", "devices", "each", "end", "has", "members", "note", "set_up", "task")

    def __init__(self, devices: tuple[int, ...], has: list[int]) -> None:
        self.devices, self.has, self.members = devices, has, has
        self.task, self.begin, self.set_up, self.end = STEPS, 0, 0, 0
        self.each, self.count = 0, 0  # ns of a step, and steps until it ends
        self.note = 0  # number of its end in the agenda; 0: it does nothing


class Tasks:
    """Progress of each request, tasks of groups, and when they end."""

    def __init__(self, requests: ImageRequests, costs: ImageCosts, rule: DegreeRule) -> None:
        self.requests, self.costs, self.rule = requests, costs, rule
        self.size, self.left = requests.size.tolist(), requests.steps.tolist()
        self.stage = [ENCODE] * len(requests)
        self.ready: list[int] = []
        """Requests without a group, in order of priority."""
        self.last: dict[int, tuple[int, ...]] = {}
        """The group that a device was in before."""
        self.later = Agenda()
        self.rows: list[tuple[Any, ...]] = []
        self.groups: list[DeviceGroup] = []
        self.gone: set[int] = set()
        """Devices that are not there."""
        self.again: dict[int, int] = {}
        """Requests that began again, and when they last did."""
        self._step = _by_degree(costs)
        self._once = {ENCODE: costs.encode_ns.tolist(), DECODE: costs.decode_ns.tolist()}
        self.allowed = [
            [d for d in rule.degrees if d in self._step and self._step[d][k][0]] for k in range(len(requests.sizes))
        ]
        """Degrees that each size can have."""

    def step_ns(self, r: int, degree: int, sharing: int = 1) -> int:
        return int(self._step[degree][self.size[r]][sharing - 1])

    def key(self, r: int) -> tuple[int, int]:
        """Priority of a request."""
        if self.rule.order == "edf":
            return int(self.requests.arrival_ns[r] + self.requests.deadline_ns[r]), r
        if self.rule.order == "shortest":
            return self.left[r] * self.step_ns(r, self.allowed[self.size[r]][0]), r
        return r, r

    def arrive(self, r: int) -> None:
        self._move_on(r)
        self.ready.append(r)

    def _move_on(self, r: int) -> None:
        """Skips tasks that take no time."""
        if self.stage[r] == ENCODE and not self._once[ENCODE][self.size[r]]:
            self.stage[r] = STEPS
        if self.stage[r] == STEPS and not self.left[r]:
            self.stage[r] = DECODE
        if self.stage[r] == DECODE and not self._once[DECODE][self.size[r]]:
            self.stage[r] = DONE

    def begin(self, group: DeviceGroup, task: int, members: list[int], now: int) -> None:
        """The group starts this task of these requests now. Groups that stay were set up before."""
        devices = group.devices
        new = self.rule.elastic and len(devices) > 1 and any(self.last.get(d) != devices for d in devices)
        for device in devices:
            self.last[device] = devices
        group.task, group.members, group.begin = task, members, now
        group.set_up = self.rule.set_up_ns if new else 0
        if task == STEPS:
            group.each = self.step_ns(members[0], len(devices), len(members))
            self._until(group, min(self.left[r] for r in members))
        else:
            group.each = sum(self._once[task][self.size[r]] for r in members)
            self._until(group, 1)

    def _until(self, group: DeviceGroup, count: int) -> None:
        group.count, group.end = count, group.begin + group.set_up + group.each * count
        if group.note:
            self.later.drop(group.note)
        group.note = self.later.note(group.end, "end", group)

    def cut(self, group: DeviceGroup, now: int) -> None:
        """The group ends after its current step."""
        past = max(now - group.begin - group.set_up, 0)
        count = max(-(-past // group.each), 1)
        if group.task == STEPS and count < group.count:
            self._until(group, count)

    def reprice(self, costs: ImageCosts, now: int) -> None:
        """Steps that begin from now on take other times."""
        self.costs, self._step = costs, _by_degree(costs)
        for group in self.groups:
            if not group.note or group.task != STEPS:
                continue
            if now > group.begin + group.set_up:
                self.cut(group, now)
            else:
                group.each = self.step_ns(group.members[0], len(group.devices), len(group.members))
                self._until(group, group.count)

    def freed(self, group: DeviceGroup) -> None:
        """The group does nothing more."""
        raise NotImplementedError

    def lose(self, devices: set[int], now: int) -> None:
        """Devices are gone: requests of groups with one of them begin again, without what was done of them."""
        self.gone |= devices
        for device in devices:
            self.last.pop(device, None)
        for group in [one for one in self.groups if one.note and devices & set(one.devices)]:
            self.later.drop(group.note)
            set_up, members = min(group.set_up, now - group.begin), list(group.members)
            self.rows.append((members, CUT, group.begin, now, set_up, 0, len(group.devices), list(group.devices)))
            again, group.has, group.note = group.has, [], 0
            self.freed(group)
            for r in again:
                self.begin_again(r, now)

    def begin_again(self, r: int, now: int) -> None:
        self.stage[r], self.left[r], self.again[r] = ENCODE, int(self.requests.steps[r]), now
        self.arrive(r)

    def regain(self, devices: set[int]) -> None:
        """Devices are there again."""
        self.gone -= devices

    def over(self, group: DeviceGroup) -> list[int]:
        """Completes the group's task; returns its requests that have their pixels."""
        group.note = 0
        steps = group.count if group.task == STEPS else 0
        self.rows.append((
            list(group.members), TASKS[group.task], group.begin, group.end, group.set_up, steps, len(group.devices),
            list(group.devices),
        ))  # fmt: skip
        for r in group.members:
            if group.task == STEPS:
                self.left[r] -= steps
            else:
                self.stage[r] = group.task + 1
            self._move_on(r)
        finished = [r for r in group.members if self.stage[r] == DONE]
        group.has = [r for r in group.has if self.stage[r] != DONE]
        return finished


def _by_degree(costs: ImageCosts) -> dict[int, list[list[int]]]:
    """Times of steps, by size and by requests that share one."""
    return {degree: costs.step_ns[:, j].tolist() for j, degree in enumerate(costs.degrees)}
