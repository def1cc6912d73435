"""Reshard: how much of a border each rank sends to which, so that each gets what it needs and does not hold.

A sample's activations are a rectangle of tokens and values of a token. A rank holds, or needs, some intervals of tokens
(its context-parallel part, and of that its part with sequence parallelism) and one interval of values (its part of a
split vocabulary). Data held by several ranks is sent by one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I64
from etude.make.generate.choices import ContextKind
from etude.make.generate.plan import Plan

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ActivationSpread:
    """How a section's ranks share a sample's activations at a border."""

    plan: Plan
    causal: bool
    logits: bool
    ids: bool = False
    """Token ids, of which tensor-parallel ranks have all."""

    def tokens(self, tp: int, cp: int, total: int) -> list[Interval]:
        """Tokens of a rank. A ring of causal attention gives each rank an early and a late piece."""
        n = self.plan.cp
        if self.causal and n > 1 and self.plan.cp_kind == ContextKind.RING:
            pieces = [_piece(total, 2 * n, cp), _piece(total, 2 * n, 2 * n - 1 - cp)]
        else:
            pieces = [_piece(total, n, cp)]
        if self.logits or not self.splits_tokens:
            return pieces
        return _cut(pieces, *_piece(sum(b - a for a, b in pieces), self.plan.tp, tp))

    def values(self, tp: int, total: int) -> Interval:
        return _piece(total, self.plan.tp, tp) if self.logits else (0, total)

    @property
    def splits_tokens(self) -> bool:
        return self.plan.sequence_parallel and self.plan.tp > 1 and not self.ids

    @property
    def copies(self) -> int:
        """Tensor-parallel ranks that hold the same."""
        return 1 if self.logits or self.splits_tokens else self.plan.tp


def _piece(total: int, parts: int, number: int) -> Interval:
    return total * number // parts, total * (number + 1) // parts


def _cut(pieces: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """From `start` to `end` of the concatenation of these pieces."""
    found, at = [], 0
    for a, b in pieces:
        low, high = max(a, a + start - at), min(b, a + end - at)
        if low < high:
            found.append((low, high))
        at += b - a
    return found


def _overlap(a: Sequence[Interval], b: Sequence[Interval]) -> int:
    return sum(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


def elements(
    holds: ActivationSpread, needs: ActivationSpread, tokens: int, width: int
) -> list[tuple[int, int, int, int, int]]:
    """(tp, cp) of the rank that holds, (tp, cp) of the one that needs, elements of a sample. Of ranks that hold the
    same, the one at the corresponding position of its axis."""
    found = []
    for tp in range(needs.plan.tp):
        only = tp * holds.plan.tp // needs.plan.tp
        for cp in range(needs.plan.cp):
            want, values = needs.tokens(tp, cp, tokens), needs.values(tp, width)
            for from_tp in range(holds.plan.tp) if holds.copies == 1 else (only,):
                wide = _overlap([values], [holds.values(from_tp, width)])
                for from_cp in range(holds.plan.cp) if wide else ():
                    long = _overlap(want, holds.tokens(from_tp, from_cp, tokens))
                    if long:
                        found.append((from_tp, from_cp, tp, cp, long * wide))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ReshardMessages:
    """A row for each message: ranks are those of the job, micro-batches those of either section."""

    source: I64
    target: I64
    source_micro: I64
    target_micro: I64
    size_bytes: I64

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class BorderSide:
    """One section at a border."""

    spread: ActivationSpread
    rank_of: I64
    """Rank of the job at (micro-batch, dp, tp, cp): the pipeline rank may depend on the micro-batch."""
    slot: I64
    """Slot of each sample of the step: micro_batch · dp + its data-parallel rank; -1 where the section has no work."""


def messages(holds: BorderSide, needs: BorderSide, tokens: int, width: int, bytes_each: float) -> ReshardMessages:
    """Messages over a border in one direction."""
    both = (holds.slot >= 0) & (needs.slot >= 0)
    dp, to_dp = holds.spread.plan.dp, needs.spread.plan.dp
    slots = len(needs.rank_of) * to_dp
    pair, count = np.unique(holds.slot[both] * slots + needs.slot[both], return_counts=True)
    (micro, d), (to_micro, to_d) = np.divmod(pair // slots, dp), np.divmod(pair % slots, to_dp)
    parts = np.array(elements(holds.spread, needs.spread, tokens, width), np.int64).reshape(-1, 5)
    tp, cp, to_tp, to_cp, size = parts.T
    source = holds.rank_of[micro[:, None], d[:, None], tp, cp]
    target = needs.rank_of[to_micro[:, None], to_d[:, None], to_tp, to_cp]
    held = source == target
    if holds.spread.copies > 1:  # the receiver may hold a copy itself
        copies = holds.rank_of[micro[:, None], d[:, None], :, cp]
        held |= (copies == target[:, :, None]).any(axis=2)
    moved = np.ceil(count[:, None] * size * bytes_each).astype(np.int64)
    wide = source.shape
    keep = ~held & (moved > 0)
    return ReshardMessages(
        source[keep],
        target[keep],
        np.broadcast_to(micro[:, None], wide)[keep],
        np.broadcast_to(to_micro[:, None], wide)[keep],
        moved[keep],
    )
