"""The job as a network of NPUs runs it: a rank for each, and its groups as ASTRA-sim names them."""

from __future__ import annotations

import numpy as np

from etude.model.job import Job, ranges
from etude.run.astra.abort import AstraAbort
from etude.run.astra.config import check_groups

ALL_RANKS = ("", "0")
"""Names that mean all ranks, whoever is listed under them."""


def on_network(job: Job, num_npus: int, is_one_for_all: bool) -> Job:
    """The job with a rank for each NPU: its first ranks, or its only one on all of them."""
    if is_one_for_all:
        return _on_all(job, num_npus)
    present = job.ranks[:num_npus]
    is_absent = np.arange(len(present)) != present
    if len(present) < num_npus or is_absent.any():
        missing = int(np.argmax(is_absent)) if is_absent.any() else len(present)
        problem = f"the network has {num_npus:,} NPUs, but there is no trace of rank {missing}"
        raise AstraAbort(problem, where=f"ranks {ranges(job.ranks)}", hint="ASTRA-sim needs a file per NPU")
    return job if len(job) == num_npus else _first(job, num_npus)


def _first(job: Job, n: int) -> Job:
    return job.replace(
        ranks=job.ranks[:n],
        trace_of=job.trace_of[:n],
        group_start=job.group_start[: n + 1],
        group_of=job.group_of[: job.group_start[n]],
        peer_start=job.peer_start[: n + 1],
        peer_of=job.peer_of[: job.peer_start[n]],
        id_base=job.id_base[:n],
        tag_base=job.tag_base[:n],
        metadata_of=job.metadata_of[:n],
        values={rank: own for rank, own in job.values.items() if rank < n},
        timing=None,
        world_size=n,
    )


def _on_all(job: Job, n: int) -> Job:
    if len(job) != 1:
        raise AstraAbort(f"one trace is given to all NPUs, not those of {len(job)} ranks")
    own = job.values.get(int(job.ranks[0]))
    return job.replace(
        ranks=np.arange(n, dtype=np.int32),
        trace_of=np.repeat(job.trace_of, n),
        group_start=np.arange(n + 1) * len(job.group_of),
        group_of=np.tile(job.group_of, n),
        peer_start=np.arange(n + 1) * len(job.peer_of),
        peer_of=np.tile(job.peer_of, n),
        id_base=np.repeat(job.id_base, n),
        tag_base=np.repeat(job.tag_base, n),
        metadata_of=np.repeat(job.metadata_of, n),
        values=dict.fromkeys(range(n), own) if own else {},
        timing=None,
        world_size=n,
    )


def groups_of(job: Job) -> dict[int, tuple[int, ...]]:
    """The groups of a job by their ids; a name for all ranks needs none."""
    known: dict[str, list[int]] = {}
    for number, name in enumerate(job.groups.names):
        members = job.groups.ranks(number)
        if members is None or name in ALL_RANKS:
            continue
        if known.setdefault(name, members.tolist()) != members.tolist():
            hint = "ASTRA-sim identifies a group by its number alone"
            raise AstraAbort(f"group `{name}` has different members on other ranks", where=job.name, hint=hint)
    return check_groups(known, job.name)
