"""serve_images(requests, costs, gpus, rule): when each request has its pixels.

A request is a text to encode, steps to take, and pixels to decode. The loop goes from one moment to the next at which a
request arrives or a group ends what it does: a group takes as many steps at a time as possible without an interruption.
At an instant groups end first, then requests arrive, then groups begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.world.clock import LoneEntity, run_alone
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.images.elastic import Elastic
from etude.world.serve.images.groups import DECODE, DONE, ENCODE, STEPS, DeviceGroup, Tasks
from etude.world.serve.images.requests import ImageRequests
from etude.world.serve.images.words import DegreeRule

COLUMNS = ("requests", "task", "start_ns", "end_ns", "set_up_ns", "steps", "degree", "devices")


@dataclass(frozen=True, slots=True, eq=False)
class ServedImages:
    requests: ImageRequests
    gpus: int
    rule: DegreeRule
    finish_ns: I64
    tasks: pa.Table
    """Tasks of groups, in order of their ends: the `requests` in it, `task`, `start_ns` (of the set-up, if there is
    one), `end_ns`, `set_up_ns`, `steps` of each, `degree` and the `devices`."""


class Staying(Tasks):
    """Fixed groups of one degree: a request keeps one from its text to its pixels."""

    def __init__(self, requests: ImageRequests, costs: ImageCosts, gpus: int, rule: DegreeRule) -> None:
        super().__init__(requests, costs, rule)
        degree = rule.degrees[0]
        self.groups = [DeviceGroup(tuple(range(k, k + degree)), []) for k in range(0, gpus, degree)]
        self.idle = list(self.groups)

    def ended(self, group: DeviceGroup) -> None:
        self.idle.append(group)

    def freed(self, group: DeviceGroup) -> None:
        self.idle.append(group)

    def decide(self, now: int) -> None:
        self.ready.sort(key=self.key)
        whole = [group for group in self.idle if self.gone.isdisjoint(group.devices)]
        for group in sorted(whole, key=lambda group: (not group.has, group.devices)):
            self._join(group)
            for task in (DECODE, ENCODE, STEPS):
                members = [r for r in group.has if self.stage[r] == task]
                if members:
                    self.begin(group, task, members, now)
                    self.idle.remove(group)
                    break
        if self.rule.batch > 1:
            for r in self.ready:
                for group in self.groups:
                    if group.has and len(group.has) < self.rule.batch and self.size[group.has[0]] == self.size[r]:
                        self.cut(group, now)

    def _join(self, group: DeviceGroup) -> None:
        """Requests of the group's size, or any if it has none."""
        for r in list(self.ready):
            if len(group.has) < self.rule.batch and (not group.has or self.size[group.has[0]] == self.size[r]):
                group.has.append(r)
                self.ready.remove(r)


class ImageLoop(LoneEntity):
    """Requests on the clock, until each has its pixels."""

    def __init__(self, requests: ImageRequests, costs: ImageCosts, gpus: int, rule: DegreeRule) -> None:
        super().__init__()
        if rule.batch > costs.step_ns.shape[2]:
            raise UsageError(f"steps of {rule.batch} requests have no cost")
        made = Elastic(requests, costs, gpus, rule) if rule.elastic else Staying(requests, costs, gpus, rule)
        self.requests, self.gpus, self.rule, self.tasks = requests, gpus, rule, made
        self._check()
        self.finish_ns = np.full(len(requests), -1, np.int64)
        self.later = made.later
        for r, at in enumerate(requests.arrival_ns.tolist()):
            self.later.note(at, "arrive", r, rank=1)

    def _check(self) -> None:
        for size, allowed in enumerate(self.tasks.allowed):
            if not allowed:
                frames, height, width = self.requests.sizes[size].tolist()
                raise UsageError(
                    f"{frames} x {height} x {width} on {', '.join(map(str, self.rule.degrees))} devices: heads or "
                    "tokens are not a multiple",
                    where=f"request {int(np.flatnonzero(self.requests.size == size)[0])}",
                )

    def lose(self, devices: set[int], now: int) -> None:
        """Devices are gone from now on."""
        self.now_ns = now
        self.tasks.lose(devices, now)
        self.settle()

    def relink(self, costs: ImageCosts, now: int) -> None:
        """From now on steps take other times; one in progress goes on as it began."""
        self.now_ns = now
        self.tasks.reprice(costs, now)

    def expect(self, devices: set[int], at_ns: int) -> int:
        """Devices will be there again; returns the number by which that can be dropped."""
        return self.later.note(at_ns, "back", devices, rank=1)

    def happen(self, kind: str, about: Any) -> None:
        if kind == "end":
            self.finish_ns[self.tasks.over(about)] = self.now_ns
            self.tasks.ended(about)
            return
        if kind == "back":
            self.tasks.regain(about)
            return
        self.tasks.arrive(about)
        if self.tasks.stage[about] == DONE:
            raise UsageError("has no cost", where=f"request {about}")

    def settle(self) -> None:
        self.tasks.decide(self.now_ns)

    def served(self) -> ServedImages:
        columns = list(zip(*self.tasks.rows, strict=True))
        table = pa.table({name: list(c) for name, c in zip(COLUMNS, columns, strict=True)})
        return ServedImages(self.requests, self.gpus, self.rule, self.finish_ns, table)


def serve_images(requests: ImageRequests, costs: ImageCosts, gpus: int, rule: DegreeRule) -> ServedImages:
    """All requests, until the last has its pixels."""
    return run_alone(ImageLoop(requests, costs, gpus, rule)).served()
