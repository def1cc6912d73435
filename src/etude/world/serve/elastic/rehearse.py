"""`goodput`: the plan with which most of the recent requests would have met their limits.

The requests of the last interval are served with each plan, from empty replicas, by the loop itself, as if they came
again in each of `ahead` intervals. Changes have their cost: during a drained one nothing is served and arriving
requests wait (what the old replicas still have to answer is unknown and not counted); during a live one the old plan
serves. A plan is changed for one that meets more limits, by more than a fraction MARGIN of the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.world.serve.engine import Engine
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.results import Limits, kept_limits
from etude.world.serve.serving import Group, serve

MARGIN: Final = 0.02
AHEAD: Final = 4
COLUMNS: Final = ("prompt", "output", "session", "tier", "tenant", "deadline_ns", "branches")
OPTIONS: Final = ("router", "wire", "admit", "tpot_ns", "decide_ns", "seed")


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    requests: Requests
    engine: Engine
    plans: Sequence[Sequence[Group]]
    limits: Limits
    options: dict[str, Any]
    live: bool
    ahead: int = AHEAD

    def __call__(self, seen: dict[str, Any], plans: Sequence[Any], now_s: float) -> int:
        rows, here, every_s = np.asarray(seen["requests"], np.int64), int(seen["plan"]), float(seen["every_s"])
        if not len(rows):
            return here
        arrival = np.maximum(self.requests.arrival_ns[rows] - round((now_s - every_s) * 1e9), 0)
        to_come = np.concatenate([arrival + k * round(every_s * 1e9) for k in range(self.ahead)])
        rows = np.tile(rows, self.ahead)
        stays = self.kept(rows, to_come, here)
        scores = [
            int(stays.sum() if plan == here else self._changed(rows, to_come, plan, round(cost_s * 1e9), stays).sum())
            for plan, cost_s in enumerate(seen["cost_s"])
        ]
        best = int(np.argmax(scores))
        return best if scores[best] > scores[here] + MARGIN * len(rows) else here

    def _changed(self, rows: I64, arrival: I64, plan: int, cost_ns: int, stays: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which requests meet their limits if the plan is changed, at this cost."""
        later = arrival >= cost_ns
        if not later.any():
            return stays & self.live
        if not self.live:
            return self.kept(rows, arrival, plan, cost_ns)
        found = stays.copy()
        found[later] = self.kept(rows[later], arrival[later], plan)
        return found

    def kept(self, rows: I64, arrival: I64, plan: int, wait_ns: int = 0) -> NDArray[np.bool_]:
        """Which of these requests would meet their limits if nothing is served for `wait_ns`."""
        begin = np.maximum(arrival, wait_ns)
        columns = {name: getattr(self.requests, name)[rows] for name in COLUMNS}
        some = requests_of(begin, tier_names=self.requests.tier_names, **columns)
        served = serve(some, self.engine, self.plans[plan], **self.options)
        return kept_limits(served, self.limits, waited_s=(begin - arrival) / 1e9)


def rehearsal(
    requests: Requests, engine: Engine, plans: Sequence[Sequence[Group]], limits: Limits, options: dict[str, Any],
    **how: Any,
) -> Rehearsal:  # fmt: skip
    """For one stream; `options` are those that it is served with."""
    known: dict[str, Any] = {name: options[name] for name in OPTIONS if name in options}
    return Rehearsal(requests, engine, plans, limits, known, **how)
