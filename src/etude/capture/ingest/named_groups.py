"""Groups that a recording did not name, named by its user.

gloo's records, and traces before torch 2.2, may not say on which group a call was. Such calls of all ranks are on one
group without members. A file of groups says what it was: each rank takes that of its groups which it is a member of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from etude.base.errors import MismatchError, UsageError
from etude.model.job import Groups, Job
from etude.store.chakra import read_groups


def with_named_groups(job: Job, path: Path) -> Job:
    """The job with the groups of a file in the place of those whose members are not known."""
    named = read_groups(path)
    slots = np.flatnonzero(~job.groups.known[job.group_of])
    if not len(slots):
        raise UsageError("all groups of the recording have their members", where=str(path), hint="leave out --groups")
    _refuse_doubtful(named, path)
    present = np.repeat(job.ranks, np.diff(job.group_start))
    kept = np.flatnonzero(job.groups.known)
    place = np.full(len(job.groups), -1, np.int32)
    place[kept] = np.arange(len(kept))
    group_of = place[job.group_of]
    of_rank = {rank: len(kept) + at for at, members in enumerate(named.values()) for rank in members}
    for slot in slots.tolist():
        rank = int(present[slot])
        if rank not in of_rank:
            problem = f"rank {rank} has collectives of a group that was not recorded, and is in no group of the file"
            raise MismatchError(problem, where=str(path), hint='name its members, as {"tp": [0, 1, 2, 3]}')
        group_of[slot] = of_rank[rank]
    known: list[tuple[str, Sequence[int] | None]] = [
        (job.groups.names[group], job.groups.ranks(group).tolist())  # type: ignore[union-attr]
        for group in kept.tolist()
    ]
    world = max(job.world_size, *(max(members) + 1 for members in named.values()))
    return job.replace(groups=Groups.of([*known, *named.items()]), group_of=group_of, world_size=world)


def _refuse_doubtful(named: Mapping[str, Sequence[int]], path: Path) -> None:
    """A rank is in one group of the file, once: the recording does not say which of two a call was on."""
    seen: dict[int, str] = {}
    for name, members in named.items():
        if not members:
            raise UsageError(f"group `{name}` has no members", where=str(path))
        for rank in members:
            if rank in seen:
                problem = f"rank {rank} is in `{seen[rank]}` and in `{name}`" if seen[rank] != name else ""
                raise UsageError(
                    problem or f"rank {rank} is in `{name}` twice",
                    where=str(path),
                    hint="of a call whose group was not recorded the file can name one group of each rank",
                )
            seen[rank] = name
