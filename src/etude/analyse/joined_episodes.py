"""Findings of several matrices of one run, joined; one as others of the house have it."""

from __future__ import annotations

from dataclasses import replace

from etude.analyse.slower_sets import Episode
from etude.analyse.stretches import Slow

__all__ = ["after_first", "slow_rank_of", "with_others"]


def with_others(found: list[Episode], others: list[Episode]) -> list[Episode]:
    """The findings, and those others that name ranks that they do not; of two of which one names the ranks of the other
    and more, that one; of two with the same ranks the surer score."""
    found = [replace(one, score=max(one.score, *(o.score for o in others if o.rows == one.rows), 0.0)) for one in found]
    more = [one for one in others if not set(one.rows) <= {row for known in found for row in known.rows}]
    left = [one for one in found if not any(set(one.rows) <= set(other.rows) for other in more)]
    named = {row for one in left for row in one.rows}
    return [*left, *(one for one in more if not named & set(one.rows))]


def slow_rank_of(one: Episode, row: int) -> Slow:
    whole = one.pattern in ("whole", "drift")
    return Slow(row, 1 + one.height, one.first, one.last, whole, 1.0, one.every)


def after_first(one: Episode) -> Episode:
    """An episode of a series without its first step."""
    steps = tuple(s + 1 for s in one.steps)
    return replace(one, first=one.first + 1, last=one.last + 1, steps=steps)
