"""The best interval between saves: searched by running the loop, and compared with Young and Daly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from etude.base.errors import UsageError
from etude.world.fleet.checkpoint import SaveTier, daly_ns, young_ns
from etude.world.fleet.costs import Costs

GRID: Final = tuple(2 ** (k / 2) for k in range(-4, 5))
"""Intervals that are tried, relative to Young's."""
FURTHEST: Final = 64
"""Largest interval, relative to Young's."""
SEEDS: Final = 4


@dataclass(frozen=True, slots=True)
class Searched:
    tier: str
    save_s: float
    mtbf_s: float
    young_s: float
    daly_s: float
    best_s: float
    tried: tuple[tuple[float, float], ...]
    """(seconds between saves, mean useful fraction of the time)."""

    def record(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "save_s": self.save_s,
            "mtbf_s": self.mtbf_s,
            "young_s": self.young_s,
            "daly_s": self.daly_s,
            "best_s": self.best_s,
            "tried": [{"every_s": every, "useful_fraction": part} for every, part in self.tried],
        }


def best_interval(
    costs: Costs, tiers: tuple[SaveTier, ...], mtbf_ns: float,
    useful: Callable[[tuple[SaveTier, ...], int], float], *, seeds: Sequence[int] = range(SEEDS),
) -> tuple[tuple[SaveTier, ...], Searched]:  # fmt: skip
    """The tiers with an interval for the one that has none, and the search. `useful(tiers, seed)` runs the job; every
    interval meets the same faults. Raises UsageError if no fault has a rate."""
    open_tier = next(i for i, tier in enumerate(tiers) if not tier.every_ns and not tier.steps)
    tier, nodes = tiers[open_tier], costs.nodes
    if math.isinf(mtbf_ns):
        raise UsageError(
            f"--checkpoint: an interval for `{tier.name}` is searched for, but no fault has a rate", hint="remote:1h"
        )
    save_ns = tier.stall_ns(costs.state_bytes, nodes)
    young = young_ns(save_ns, mtbf_ns)
    tried: dict[int, float] = {}
    factors = list(GRID)
    while factors:
        factor = factors.pop(0)
        steps = max(round(young * factor / costs.healthy.step_ns), 1)
        if steps not in tried:
            chosen = with_interval(tiers, open_tier, steps * costs.healthy.step_ns)
            tried[steps] = sum(useful(chosen, seed) for seed in seeds) / len(seeds)
        best = max(tried, key=lambda steps: tried[steps])
        if not factors and best == max(tried) and factor < FURTHEST:
            factors.append(2 * factor)  # the best is larger still: copies are hardly needed
    each = costs.healthy.step_ns / 1e9
    found = Searched(
        tier.name, save_ns / 1e9, mtbf_ns / 1e9, young / 1e9, daly_ns(save_ns, mtbf_ns) / 1e9, best * each,
        tuple((steps * each, part) for steps, part in tried.items()),
    )  # fmt: skip
    return with_interval(tiers, open_tier, best * costs.healthy.step_ns), found


def with_interval(tiers: tuple[SaveTier, ...], which: int, every_ns: float) -> tuple[SaveTier, ...]:
    return tuple(tier.at(every_ns) if i == which else tier for i, tier in enumerate(tiers))
