"""Groups whose size changes between two steps.

Whenever a task ends or a request arrives, devices are redistributed among the requests: in order of priority each gets
the fewest it can run on, and remaining devices go to the request whose remaining steps gain most time per device. A
group whose share changed ends with its current step; it grows only if the time saved is more than the set-up of the new
group. Texts and pixels are on one device.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.world.serve.hooks import called, number_of
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.images.groups import DONE, STEPS, DeviceGroup, Tasks
from etude.world.serve.images.requests import ImageRequests
from etude.world.serve.images.words import DegreeRule


@dataclass(slots=True, eq=False)
class _Share:
    """Requests that take their steps together, or one that waits for another task."""

    members: list[int]
    group: DeviceGroup | None = None
    """Current group."""
    degree: int = 0
    joined: bool = False


class Elastic(Tasks):
    def __init__(self, requests: ImageRequests, costs: ImageCosts, gpus: int, rule: DegreeRule) -> None:
        super().__init__(requests, costs, rule)
        self.gpus, self.free = gpus, set(range(gpus))
        self.before: dict[int, tuple[int, ...]] = {}
        """Devices that a request had last."""

    def ended(self, group: DeviceGroup) -> None:
        self.groups.remove(group)
        self.free |= set(group.devices)
        for r in group.has:
            self.before[r] = group.devices
            self.ready.append(r)

    def freed(self, group: DeviceGroup) -> None:
        self.groups.remove(group)
        self.free |= set(group.devices) - self.gone

    def lose(self, devices: set[int], now: int) -> None:
        self.free -= devices
        super().lose(devices, now)
        for r in [r for r in self.ready if not devices.isdisjoint(self.before.get(r, ()))]:
            self.ready.remove(r)
            self.begin_again(r, now)

    def begin_again(self, r: int, now: int) -> None:
        self.before.pop(r, None)
        super().begin_again(r, now)

    def regain(self, devices: set[int]) -> None:
        super().regain(devices)
        self.free |= devices

    def decide(self, now: int) -> None:
        shares = self._dealt(now)
        for share in shares:
            group = share.group
            if group is not None and (share.joined or share.degree != len(group.devices)):
                self.cut(group, now)
        for share in shares:
            if share.group is None and share.degree:
                self._start(share, now)

    def _start(self, share: _Share, now: int) -> None:
        """Starts with as many devices as it should have, or as are free now."""
        r = share.members[0]
        fitting = [d for d in self._degrees(r) if d <= min(share.degree, len(self.free))]
        if not fitting:
            return
        kept = [d for d in self.before.get(r, ()) if d in self.free][: fitting[-1]]
        more = sorted(self.free - set(kept))[: fitting[-1] - len(kept)]
        group = DeviceGroup(tuple(sorted(kept + more)), list(share.members))
        self.free -= set(group.devices)
        self.groups.append(group)
        for one in share.members:
            self.ready.remove(one)
        self.begin(group, self.stage[r], group.has, now)

    def _degrees(self, r: int) -> list[int]:
        return self.allowed[self.size[r]] if self.stage[r] == STEPS else [1]

    def _left_ns(self, share: _Share, degree: int) -> int:
        most = max(self.left[r] for r in share.members)
        return most * self.step_ns(share.members[0], degree, len(share.members))

    def _dealt(self, now: int) -> list[_Share]:
        shares = [_Share(list(group.has), group) for group in self.groups if group.task == STEPS]
        shares += [_Share([r]) for r in self.ready if self.stage[r] != DONE]
        shares.sort(key=lambda share: self.key(share.members[0]))
        there = self.gpus - len(self.gone)
        left = there - sum(len(group.devices) for group in self.groups if group.task != STEPS)
        if self.rule.hook is not None:
            return self._asked(shares, left, now)
        dealt: list[_Share] = []
        for share in shares:
            least = self._degrees(share.members[0])[0]
            if least <= left:
                share.degree = least
                left -= least
                dealt.append(share)
            elif not self._joins(share, dealt):
                dealt.append(share)
        while left and (best := self._most_gained(dealt, left)) is not None:
            share, degree = best
            left -= degree - share.degree
            share.degree = degree
        for share in dealt:
            if share.group is not None and share.degree > len(share.group.devices):
                here = len(share.group.devices)
                saved = self._left_ns(share, here) - self._left_ns(share, share.degree)
                if saved <= self.rule.set_up_ns or share.degree - here > len(self.free):
                    share.degree = here
        return dealt

    def _joins(self, share: _Share, dealt: list[_Share]) -> bool:
        """A request without a device shares the steps of others of its size."""
        r = share.members[0]
        if share.group is not None or self.stage[r] != STEPS:
            return False
        for other in dealt:
            first = other.members[0]
            alike = self.stage[first] == STEPS and self.size[first] == self.size[r]
            if alike and other.degree and len(other.members) < self.rule.batch:
                if other.group is None:
                    other.members.append(r)
                other.joined = True
                return True
        return False

    def _most_gained(self, dealt: list[_Share], left: int) -> tuple[_Share, int] | None:
        best, most = None, 0.0
        for share in dealt:
            if not share.degree or self.stage[share.members[0]] != STEPS:
                continue
            for degree in self._degrees(share.members[0]):
                if share.degree < degree <= share.degree + left:
                    gained = self._left_ns(share, share.degree) - self._left_ns(share, degree)
                    if gained / (degree - share.degree) > most:
                        best, most = (share, degree), gained / (degree - share.degree)
                    break
        return best

    def _asked(self, shares: list[_Share], left: int, now: int) -> list[_Share]:
        """From a user function: degrees(requests, gpus, now_s), a list of as many degrees, 0 to wait."""
        hook, where = self.rule.hook, f"--degree at {now / 1e9:g} s"
        assert hook is not None
        seen = [
            {
                "request": share.members[0],
                "task": self.stage[share.members[0]],
                "left": self.left[share.members[0]],
                "degree": len(share.group.devices) if share.group else 0,
                "degrees": self._degrees(share.members[0]),
                "step_s": [self.step_ns(share.members[0], d) / 1e9 for d in self._degrees(share.members[0])]
                if self.stage[share.members[0]] == STEPS
                else [],
            }
            for share in shares
        ]
        found = called(hook, where, seen, left, now / 1e9)
        listed = list(found) if isinstance(found, list | tuple) else []
        if len(listed) != len(shares):
            number_of(found, [], hook, where)
        for share, degree in zip(shares, listed, strict=True):
            share.degree = number_of(degree, [0, *self._degrees(share.members[0])], hook, where)
        return shares
