"""Documents of a micro-batch as items: blocks of tokens with causal attention, owned by context-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.kernels.arrays import I64
from etude.make.generate.maps.items import Items, moved
from etude.make.generate.maps.packing import ROOM, pack
from etude.make.generate.maps.shares import runs_of

PIECES: Final = 16
"""Default number of blocks of a micro-batch per rank."""


@dataclass(frozen=True, slots=True, eq=False)
class DocumentBlocks:
    """Runs of tokens of documents. `start` and `stop` are positions in the document."""

    document: I64
    start: I64
    stop: I64

    @property
    def tokens(self) -> I64:
        return self.stop - self.start

    @property
    def pairs(self) -> I64:
        """Pairs of query and key: each token with itself and those before it in its document."""
        return (self.stop * (self.stop + 1) - self.start * (self.start + 1)) // 2

    def items(self, pair_cost: float) -> Items:
        """Work in tokens; `pair_cost` is the cost of a pair. A block reads those of its document up to itself."""
        same = self.document[None, :] == self.document[:, None]
        reader, needs = np.nonzero(same & (self.start[None, :] < self.stop[:, None]))
        counts = np.bincount(reader, minlength=len(self.start))
        work = self.tokens + pair_cost * self.pairs
        return Items(work, self.tokens, np.concatenate([[0], np.cumsum(counts)]), needs)


def blocks_of(documents: list[int], cuts: I64) -> DocumentBlocks:
    """Documents in sequence, cut at their ends and at these positions."""
    ends = np.cumsum(documents)
    edges = np.unique(np.concatenate([[0], ends, cuts[cuts < ends[-1]]]))
    first, last = edges[:-1], edges[1:]
    document = np.searchsorted(ends, first, side="right")
    begin = ends[document] - np.array(documents)[document]
    return DocumentBlocks(document, first - begin, last - begin)


def cut(documents: list[int], how: str, block: int, ranks: int) -> DocumentBlocks:
    """The blocks that a map distributes: runs for `contiguous`, `zigzag` and `ring`, otherwise `block` tokens of a
    document each."""
    total = sum(documents)
    if how in ("contiguous", "zigzag", "ring"):
        parts = ranks if how == "contiguous" else 2 * ranks
        return blocks_of(documents, np.arange(1, parts) * total // parts)
    size = block or max(total // (PIECES * ranks), 1)
    ends = np.cumsum(documents)
    starts = ends - np.array(documents)
    return blocks_of(documents, np.concatenate([np.arange(a, b, size) for a, b in zip(starts, ends, strict=True)]))


@dataclass(frozen=True, slots=True, eq=False)
class Dealing:
    """The share of one micro-batch on each context-parallel rank."""

    tokens: I64
    pairs: I64
    """Pairs of queries that a rank (row) owns and keys that a rank (column) owns."""
    moved: I64
    """Tokens whose keys and values each rank (row) sends to each other (column)."""

    work: float
    """Work of the fullest rank, in tokens."""


SLACK: Final = 0.05
SIZES: Final = (0.5, 1, 2, 4)
ROOMS: Final = (0.0, 0.05, 0.1, 0.2)


def dealt_out(
    documents: list[int], how: str, block: int, ranks: int, pair_cost: float, shares: tuple[int, ...] = ()
) -> Dealing:
    """`search`: of all maps, with blocks of this size and others, and different room for whole documents, the one that
    moves least among those whose fullest rank has at most 5% more work than the best. `shares`: tokens of each rank, of
    one document."""
    if shares:
        start, owner = runs_of(shares, how)
        blocks = blocks_of(documents, start)
        return _owned(blocks, owner[np.searchsorted(start, blocks.start, side="right") - 1], ranks, pair_cost)
    if how != "search":
        return _dealt(cut(documents, how, block, ranks), how, ranks, pair_cost)
    usual = block or max(sum(documents) // (PIECES * ranks), 1)
    tried = [_dealt(cut(documents, one, 0, ranks), one, ranks, pair_cost) for one in ("contiguous", "zigzag")]
    for size in sorted({max(round(usual * s), 1) for s in SIZES}):
        blocks = cut(documents, "lpt", size, ranks)
        tried.append(_dealt(blocks, "lpt", ranks, pair_cost))
        tried += [_dealt(blocks, "whole_first", ranks, pair_cost, room) for room in ROOMS]
    best = min(one.work for one in tried)
    return min((one for one in tried if one.work <= best * (1 + SLACK)), key=lambda one: int(one.moved.sum()))


def _dealt(blocks: DocumentBlocks, how: str, ranks: int, pair_cost: float, room: float = ROOM) -> Dealing:
    owner = pack(how, blocks.items(pair_cost), blocks.document, ranks, room)
    dealing = _owned(blocks, owner, ranks, pair_cost)
    if how != "ring":
        return dealing
    all_keys = np.repeat(dealing.tokens[:, None], ranks, axis=1)
    np.fill_diagonal(all_keys, 0)
    return replace(dealing, moved=all_keys)


def _owned(blocks: DocumentBlocks, owner: I64, ranks: int, pair_cost: float) -> Dealing:
    items = blocks.items(pair_cost)
    reader, read = np.repeat(np.arange(len(items)), np.diff(items.needs_start)), items.needs
    # A block sees all blocks before it, and the causal part of itself.
    own = blocks.tokens * (blocks.tokens + 1) // 2
    seen = np.where(reader == read, own[reader], blocks.tokens[reader] * blocks.tokens[read])
    pairs = np.zeros((ranks, ranks), np.int64)
    np.add.at(pairs, (owner[reader], owner[read]), seen)
    tokens = np.zeros(ranks, np.int64)
    np.add.at(tokens, owner, blocks.tokens)
    work = float(np.bincount(owner, weights=items.work, minlength=ranks).max())
    return Dealing(tokens, pairs, moved(items, owner, ranks), work)
