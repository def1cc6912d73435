"""Data that edits move to tiers below the devices: ranks of one host share its rates, and must fit it together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.cost.tiers.transfers import tier_of
from etude.kernels.arrays import I64
from etude.machine.scopes import scope_level, units_of
from etude.machine.system import System
from etude.machine.tier import Tier
from etude.model.job import Job


@dataclass(frozen=True, slots=True, eq=False)
class Below:
    """Bytes that each of these ranks has in a tier."""

    what: str
    tier: str
    ranks: NDArray[np.int32]
    size_bytes: int


def asked_tier(system: System | None, name: str, hint: str) -> Tier:
    if system is None:
        raise UsageError(f"the read rate of `{name}` is not known", hint=f"--system h200-server, or {hint}")
    try:
        return tier_of(system, name)
    except ClusterError as problem:
        raise UsageError(problem.problem, hint=f"{problem.hint}; or {hint}") from None


def beside(job: Job, system: System, tier: Tier, uses: NDArray[np.bool_]) -> I64:
    """For each rank present, how many of the ranks that use the tier share it, itself included."""
    unit = _units(job, system, tier)
    return np.maximum(np.bincount(unit, uses, minlength=int(unit.max(initial=-1)) + 1)[unit].astype(np.int64), 1)


def _units(job: Job, system: System, tier: Tier) -> I64:
    ranks = np.asarray(job.ranks, np.int64)
    level = scope_level(system, tier.per, f"tier `{tier.name}`: per")
    unit = ranks if level < 0 else units_of(system.for_ranks(job.world_size), level, ranks)
    return np.unique(unit, return_inverse=True)[1].reshape(-1).astype(np.int64)


def check_room(job: Job, system: System | None, below: list[Below]) -> None:
    """Refuses what does not fit a tier, counting all ranks that share it."""
    for name in dict.fromkeys(one.tier for one in below):
        tier = asked_tier(system, name, "rate=55GB/s")
        if system is None or not tier.capacity_bytes:
            continue
        unit, mine = _units(job, system, tier), [one for one in below if one.tier == name]
        total, each = np.zeros(int(unit.max()) + 1, object), np.zeros(len(job.ranks), object)
        for one in mine:
            each[np.searchsorted(job.ranks, one.ranks)] += one.size_bytes
        np.add.at(total, unit, each)
        full = int(np.argmax(total))
        if total[full] > tier.capacity_bytes:
            ranks = job.ranks[(unit == full) & (each > 0)]
            who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks ({ranks[0]} to {ranks[-1]})"
            what = " and ".join(dict.fromkeys(one.what for one in mine))
            room = f"`{name}` has {tier.capacity_bytes:,} B for each {tier.per}"
            hint = "part=0.5, fewer modules, or fewer ranks per host"
            raise UsageError(f"{what} of {who} take {total[full]:,} B, but {room}", hint=hint)
