"""Roles: ranks that run the same program, combined into a folded Job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model.job import DEFAULT_METADATA, Groups, Job
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Role:
    """A program and the ranks that run it. `groups` and `peers` have a row for each rank and a column for each slot."""

    trace: Trace
    ranks: NDArray[Any]
    groups: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    """Number of the group behind each group slot."""
    peers: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Rank behind each peer slot."""


def job_of_roles(
    name: str,
    roles: Sequence[Role],
    *,
    groups: Groups | None = None,
    values: Mapping[int, Mapping[str, NDArray[Any]]] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Job:
    """The job whose ranks are those of all roles."""
    owner = np.concatenate([np.full(len(role.ranks), number) for number, role in enumerate(roles)])
    ranks = np.concatenate([role.ranks for role in roles])
    row = np.concatenate([np.arange(len(role.ranks)) for role in roles])
    order = np.argsort(ranks)
    group_start, group_of = _bound([role.groups for role in roles], owner[order], row[order])
    peer_start, peer_of = _bound([role.peers for role in roles], owner[order], row[order])
    n = len(ranks)
    return Job(
        name=name,
        traces=tuple(role.trace for role in roles),
        ranks=ranks[order].astype(np.int32),
        trace_of=owner[order].astype(np.int32),
        groups=groups or Groups.of([]),
        group_start=group_start,
        group_of=group_of.astype(np.int32),
        peer_start=peer_start,
        peer_of=peer_of.astype(np.int64),
        id_base=np.zeros(n, np.uint64),
        tag_base=np.zeros(n, np.int64),
        world_size=int(ranks.max()) + 1,
        metadata=(DEFAULT_METADATA,),
        metadata_of=np.zeros(n, np.int32),
        values=values or {},
        provenance=provenance or {},
    )


def _bound(
    tables: Sequence[NDArray[Any]], owner: NDArray[Any], row: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Start of each rank's bindings, and the bindings one after another."""
    width = np.array([table.shape[1] for table in tables], np.int64)
    start = np.concatenate([[0], np.cumsum(width[owner])]).astype(np.int64)
    flat = np.zeros(int(start[-1]), np.int64)
    for number, table in enumerate(tables):
        mine = np.flatnonzero(owner == number)
        if table.shape[1]:
            flat[start[mine][:, None] + np.arange(table.shape[1])] = table[row[mine]]
    return start, flat
