"""Borders: the rows of both sections that a border is attached to, and the ends of its messages on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost.ops import width as bytes_each
from etude.kernels.arrays import I64
from etude.make.generate.blocks.ops import Phase
from etude.make.generate.blocks.recompute import is_layer
from etude.make.generate.model.shape import Family
from etude.make.generate.ranks import RankGrid
from etude.make.generate.sections.anchors import Anchors
from etude.make.generate.sections.placed import PlacedSection
from etude.make.generate.sections.reshard import ActivationSpread, BorderSide, ReshardMessages, messages
from etude.make.generate.sections.rollout import last_rows, longest, weights
from etude.make.generate.sections.spec import Border, Carries, Sections
from etude.make.generate.sections.weave import MessageEnds
from etude.make.generate.train.job import Generated
from etude.model.schema import UNKNOWN, Kind


@dataclass(frozen=True, slots=True, eq=False)
class Travel:
    """Messages of a border in one direction, and the rows that they belong to."""

    messages: ReshardMessages
    source: int
    target: int
    sent: Anchors
    wanted: Anchors
    early: bool = False
    """What is sent exists from the start: it waits for no row."""


TOKEN_BYTES: Final = 8
"""Bytes of a token id."""
Both = tuple[Travel | None, Travel | None]
"""There and back."""


def travels(border: Border, given: Sections, placed: tuple[PlacedSection, ...]) -> Both:
    names = list(given.sections)
    a, b = names.index(border.source), names.index(border.target)
    one, other = placed[a], placed[b]
    if border.carries == Carries.WEIGHTS:
        found = weights(one, other, given.name)
        return Travel(found, a, b, _begins(one), _begins(other), early=True), None
    if border.carries == Carries.TOKENS:
        size = border.tokens or one.section.prompt + longest(one.section)
        used = _anchors(other.found, other.found.layout.stages[0][0].name, Phase.FORWARD)
        sides = _side(one, last_rows(one), ids=True), _side(other, used, ids=True)
        return Travel(messages(*sides, size, border.width or 1, TOKEN_BYTES), a, b, last_rows(one), used), None
    model, plan = one.found.model, one.found.plan
    logits = border.carries == Carries.LOGITS
    tokens = border.tokens or plan.seq * one.section.per_sample
    wide = border.width or (model.vocab if logits else model.hidden)
    made = _anchors(one.found, *(("head.logits",) if logits else (_layer(one.found, -1),)), Phase.FORWARD, first=False)
    used = _anchors(other.found, "head.loss" if logits else other.found.layout.stages[0][0].name, Phase.FORWARD)
    for anchors, placed_, what in ((made, one, border.carries), (used, other, "loss" if logits else "input")):
        if not (anchors.rows >= 0).any(axis=0).all():
            raise UsageError(f"`{placed_.name}` has no {what} that a border could connect to", where=given.name)
    there = _one_way(a, b, (one, other), (made, used), logits, (tokens, wide))
    back = None
    if one.waits and not logits:
        ends = _anchors(other.found, _layer(other.found, 0), Phase.INPUT, first=False)
        begins = _anchors(one.found, _layer(one.found, -1), Phase.INPUT)
        back = _one_way(b, a, (other, one), (ends, begins), logits, (tokens, wide))
    return there, back


def _one_way(
    a: int,
    b: int,
    sides: tuple[PlacedSection, PlacedSection],
    anchors: tuple[Anchors, Anchors],
    logits: bool,
    size: tuple[int, int],
) -> Travel:
    holds, needs = (_side(p, x, logits=logits) for p, x in zip(sides, anchors, strict=True))
    inputs = next((p for p in sides if p.sample_of is not None), None)
    if inputs is not None:  # by input: a slot for each, and its part of the tokens of a sample
        assert inputs.sample_of is not None
        each, left = divmod(size[0], inputs.section.per_sample)
        if left:
            problem = (
                f"{size[0]:,} tokens of a sample at a border do not divide into {inputs.section.per_sample} inputs"
            )
            raise UsageError(problem, where=inputs.name, hint="`tokens` of the border: a multiple of `per_sample`")
        size = each, size[1]
        holds, needs = (
            side if p is inputs else replace(side, slot=side.slot[inputs.sample_of])
            for p, side in zip(sides, (holds, needs), strict=True)
        )
    found = messages(holds, needs, *size, bytes_each(sides[0].found.plan.dtype))
    return Travel(found, a, b, *anchors)


def _side(placed: PlacedSection, anchors: Anchors, *, logits: bool = False, ids: bool = False) -> BorderSide:
    plan = placed.found.plan
    at = RankGrid.of(plan).at
    table = np.empty((plan.pp, plan.dp, plan.tp, plan.cp), np.int64)
    table[at["pp"], at["dp"], at["tp"], at["cp"]] = np.arange(plan.gpus) + placed.ranks.start
    spread = ActivationSpread(plan, placed.found.model.family in (Family.DECODER, Family.ENCODER_DECODER), logits, ids)
    return BorderSide(spread, table[anchors.home], placed.slot)


def _begins(placed: PlacedSection) -> Anchors:
    """The first row of device work of each pipeline rank, whose number serves as micro-batch."""
    rows = np.full((placed.found.plan.pp,) * 2, -1, np.int64)
    own = np.full((placed.found.plan.gpus, len(rows)), -1, np.int64)
    at = RankGrid.of(placed.found.plan).at["pp"]
    for rank, trace in enumerate(placed.found.job.trace_of.tolist()):
        one = placed.found.job.traces[trace]
        works = (one.cpu != 1) & (one.kind != int(Kind.RECV)) & (one.kind != int(Kind.METADATA))
        own[rank, at[rank]] = rows[at[rank], at[rank]] = int(np.flatnonzero(works)[0])
    return Anchors(rows, own, placed.ranks.start)


def _layer(found: Generated, number: int) -> str:
    return [b.name for stage in found.layout.stages for b in stage if is_layer(b)][number]


def _anchors(found: Generated, module: str, phase: Phase, *, first: bool = True) -> Anchors:
    """The first or last device row of each micro-batch in a module and phase, on each pipeline rank."""
    rows = np.full((found.plan.pp, found.plan.micro_batches), -1, np.int64)
    for rank, trace in enumerate(found.job.traces):
        codes, words = trace.coded("module")
        phases, labels = trace.coded("phase")
        inside = np.array([w == module or w.startswith(f"{module}.") for w in words] + [False])[codes]
        inside &= np.array([label == phase.label for label in labels] + [False])[phases]
        inside &= (trace.cpu != 1) & (trace.micro_batch >= 0) & (trace.kind != int(Kind.RECV))
        at = np.flatnonzero(inside)
        at = at[::-1] if first else at  # the last write wins
        rows[rank, trace.micro_batch[at]] = at
    return Anchors(rows)


def ends_of(
    done: Mapping[Border, Both], on: list[list[int]], first_tag: int
) -> tuple[list[tuple[MessageEnds, I64]], list[str]]:
    """Ends of messages of every rank, with the ranks behind their slots, and the names of borders. `on`: the sections
    of each rank; tags count from `first_tag`."""
    table = _table(done, first_tag)
    bounds = np.searchsorted(table[0], np.arange(len(on) + 1))
    found = []
    for rank, sections in enumerate(on):
        _, section, row, sends, peer, tags, micro, back, border, size, early = table[:, bounds[rank] : bounds[rank + 1]]
        ranks, first, slot = np.unique(peer, return_index=True, return_inverse=True)
        turn = np.argsort(np.argsort(first))  # slots in order of first use
        part = np.searchsorted(np.array(sections), section)
        one = MessageEnds(part, row, sends > 0, turn[slot], tags, micro, back > 0, border, size, early > 0)
        found.append((one, ranks[np.argsort(first)]))
    return found, [f"border.{b.source}-{b.target}" for b in done]


def _table(done: Mapping[Border, Both], tag: int) -> I64:
    """A column for each end of a message: rank, section, row, whether it sends, the other rank, tag, micro-batch,
    whether it goes back, number of the border, bytes, whether it exists from the start; by rank, section, row."""
    columns: list[list[I64]] = []
    for number, pair in enumerate(done.values()):
        for back, travel in enumerate(pair):
            if travel is None:
                continue
            m, one = travel.messages, np.ones(len(travel.messages), np.int64)
            tags = tag + m.source_micro * travel.wanted.micro_batches + m.target_micro
            tag += travel.sent.micro_batches * travel.wanted.micro_batches
            sends = (m.source, travel.source, travel.sent, m.target, m.source_micro)
            takes = (m.target, travel.target, travel.wanted, m.source, m.target_micro)
            for way, (rank, section, anchors, peer, micro) in enumerate((takes, sends)):
                row, what = anchors.row(rank, micro), one * UNKNOWN if travel.early else micro
                columns.append([rank, one * section, row, one * way, peer, tags, what, one * back, one * number,
                                m.size_bytes, one * travel.early])  # fmt: skip
    if not columns:
        return np.zeros((11, 0), np.int64)
    table = np.concatenate([np.stack(c) for c in columns], axis=1)
    return np.asarray(table[:, np.lexsort((table[5], table[3], table[2], table[1], table[0]))])
