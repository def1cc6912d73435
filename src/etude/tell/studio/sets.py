"""Ranks by what they are in the job: members of a group, positions in groups of a kind, stages of pipelines."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from etude.base.errors import EtudeError
from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.model.match import match

MOST_MEMBERS: Final = 200_000
"""Members of all sets together."""
_NUMBERED: Final = re.compile(r"(?P<kind>[A-Za-z_]\w*?)[._]?(?P<number>\d+)")


def sets_of(job: Job) -> dict[str, list[int]]:
    """Name -> ranks: `tp.3` a group, `tp[1]` the second member of each group `tp.N`, `stage 2` a pipeline stage."""
    present = set(job.ranks.tolist())
    found = _stages(job)
    places: dict[str, list[int]] = {}
    for number, name in enumerate(job.groups.names):
        members = job.groups.ranks(number)
        mine = [rank for rank in (() if members is None else members.tolist()) if rank in present]
        if not 1 < len(mine) < len(present):
            continue
        found.setdefault(name, mine)
        if (kind := _NUMBERED.fullmatch(name)) is not None:
            for place, rank in enumerate(mine):
                places.setdefault(f"{kind['kind']}[{place}]", []).append(rank)
    found |= {name: sorted(set(ranks)) for name, ranks in places.items()}
    total, kept = 0, {}
    for name, ranks in found.items():
        total += len(ranks)
        if total <= MOST_MEMBERS:
            kept[name] = ranks
    return kept


def _stages(job: Job) -> dict[str, list[int]]:
    """Ranks that send to each other one after the other, with two ends, are a pipeline; its k-th rank is of stage k.
    Context parallelism sends too, but around rings, or between two ranks that run one program; where each rank has a
    program of its own, as in recordings, two ranks say nothing."""
    try:
        links = match(job).links
    except EtudeError:  # a job that does not match has no stages that could be named
        return {}
    pairs = np.unique(np.sort(np.stack([links.src_at, links.dst_at], 1).astype(np.int64), axis=1), axis=0)
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & (pairs[:, 0] >= 0)]  # -1: the rank is absent
    if not len(pairs):
        return {}
    count = len(job.ranks)
    of, degree = _components(pairs, count), np.bincount(pairs.ravel(), minlength=count)
    chains: dict[int, list[int]] = {}
    for at in np.flatnonzero(degree).tolist():
        chains.setdefault(int(of[at]), []).append(at)
    sizes = {len(chain) for chain in chains.values()}
    chain = next(iter(chains.values()))
    programs = {int(job.trace_of[at]) for at in chain}
    ends = [sum(degree[at] == 1 for at in one) for one in chains.values()]
    if len(sizes) != 1 or degree.max() > 2 or set(ends) != {2} or len(programs) == 1:
        return {}
    if len(chain) == 2 and len(job.traces) == count:
        return {}
    ranks = job.ranks.tolist()
    return {f"stage {k}": sorted(ranks[chain[k]] for chain in chains.values()) for k in range(sizes.pop())}


def _components(pairs: I64, count: int) -> I64:
    """The least member of the component that each is in."""
    of = np.arange(count)
    while True:
        least = of.copy()
        for one, other in (pairs.T, pairs.T[::-1]):
            np.minimum.at(least, one, of[other])
        least = least[least]
        if (least == of).all():
            return of
        of = least
