"""What every record of `etude fleet --json` has, for any workload: useful time and the lost parts add up to the
whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.world.fleet.account import LOST


def contract(
    duration_s: float, useful_s: float, jobs: Sequence[Mapping[str, Any]], *, lost: Mapping[str, float] | None = None,
    tokens: float | None = None, interruptions: int = 0, energy_j: float | None = None, cost: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Times of the devices on average. What is not in `lost` is `idle`; `tokens`: those generated, if any."""
    given = dict.fromkeys(LOST, 0.0) | dict(lost or {})
    given["idle"] = max(duration_s - useful_s - sum(given.values()) + given["idle"], 0.0)
    return {
        "duration_s": duration_s,
        "useful_s": useful_s,
        "useful_fraction": useful_s / duration_s if duration_s else 0.0,
        "goodput_tokens_per_s": None if tokens is None or not duration_s else tokens / duration_s,
        "interruptions": interruptions,
        "lost_s": given,
        "jobs": [dict(job) for job in jobs],
        "energy_j": energy_j,
        "cost": cost,
    }


def flat(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: the mean and the 95th percentile of times that have a spread, and no lists."""
    found = []
    for row in rows:
        one: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, Mapping) and {"mean", "p95"} <= value.keys():
                one |= {name: value["mean"], f"{name.removesuffix('_s')}_p95_s": value["p95"]}
            elif not isinstance(value, Mapping | list):
                one[name] = value
        found.append(one)
    return found
