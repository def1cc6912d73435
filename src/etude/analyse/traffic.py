"""How much each rank sends to each other rank.

Messages count as they are. A collective is counted by what it must move, not by how: each member's share goes in equal
parts to the other members,

    all-reduce 2 (n-1)/n of the input      all-gather (n-1) times the input
    reduce-scatter, all-to-all (n-1)/n     broadcast, reduce, gather, scatter: the input, all but a share of 1/n
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import F64, I64
from etude.model.job import Job
from etude.model.match import WORLD, Matching, match
from etude.model.schema import UNKNOWN, Collective

__all__ = ["traffic", "traffic_matrix"]


BLOCKS = 64
"""Rows and columns of the matrix: with more ranks, neighbours are merged."""


def traffic(job: Job, blocks: int = BLOCKS) -> pa.Table:
    """A row for each two that exchange something: src, dst (ranks, or the first of a block of ranks), size_bytes."""
    matrix, first = traffic_matrix(job, blocks)
    src, dst = np.nonzero(matrix)
    columns = {"src": first[src], "dst": first[dst], "size_bytes": np.rint(matrix[src, dst]).astype(np.int64)}
    return pa.table(columns)


def traffic_matrix(job: Job, blocks: int = BLOCKS) -> tuple[F64, I64]:
    """(bytes from block i to block j, first rank of each block) over all ranks of the world."""
    world = max(job.world_size, 1)
    count = min(blocks, world)
    block_of = np.arange(world, dtype=np.int64) * count // world
    first = np.searchsorted(block_of, np.arange(count))
    matrix = np.zeros((count, count))
    found = match(job)
    _add_collectives(job, found, block_of, matrix)
    _add_messages(found, block_of, matrix)
    return matrix, first


def _moved(found: Matching, members: int, side: int) -> float:
    """Bytes that one member sends in all its calls on a group."""
    span = found.sides.span(side)
    size = found.sides.size_bytes[span].astype(np.float64)
    size[found.sides.size_bytes[span] == UNKNOWN] = 0.0
    what, share = found.sides.collective[span], (members - 1) / members
    factor = np.where(what == Collective.ALL_REDUCE, 2 * share, share)
    factor = np.where(what == Collective.ALL_GATHER, members - 1.0, factor)
    return float((size * factor).sum())


def _add_collectives(job: Job, found: Matching, block_of: I64, matrix: F64) -> None:
    known: dict[tuple[int, int], float] = {}
    for group in np.unique(found.uses.group).tolist():
        uses = np.flatnonzero(found.uses.group == group)
        members = np.arange(job.world_size, dtype=np.int32) if group == WORLD else job.groups.ranks(group)
        if members is None:  # then those seen count as all
            members = job.ranks[found.uses.at[uses]]
        if len(members) < 2:
            continue
        in_block = np.bincount(block_of[members], minlength=len(matrix)).astype(np.float64)
        for at, side in zip(found.uses.at[uses].tolist(), found.uses.side[uses].tolist(), strict=True):
            if (side, len(members)) not in known:
                known[side, len(members)] = _moved(found, len(members), side)
            mine = int(block_of[job.ranks[at]])
            share = known[side, len(members)] / (len(members) - 1)
            matrix[mine] += share * in_block
            matrix[mine, mine] -= share


def _add_messages(found: Matching, block_of: I64, matrix: F64) -> None:
    links = found.links
    for link in range(len(links.src)):
        side = int(links.send_side[link]) if links.send_side[link] >= 0 else int(links.recv_side[link])
        size = found.sides.size_bytes[found.sides.span(side)]
        src, dst = int(links.src[link]), int(links.dst[link])
        if 0 <= src < len(block_of) and 0 <= dst < len(block_of):
            matrix[block_of[src], block_of[dst]] += float(size[size != UNKNOWN].sum())
