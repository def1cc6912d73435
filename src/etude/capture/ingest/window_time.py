"""The interval that all ranks recorded, if steps do not determine it.

It begins when the last rank began to record, and ends for each rank before the first call that a member lacks. The k-th
call of one member there is the k-th of another if each was in it while the others were: so it is only used if that
holds for all calls and messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.units import format_time
from etude.capture.ingest.clocks import NOISE_NS
from etude.capture.ingest.linked import Linked, cut
from etude.model.schema import Kind

_TALKS: Final = (Kind.COLL, Kind.SEND, Kind.RECV)


class _Rank:
    """A rank and the part of it that is left: from `begin` to before `end`."""

    def __init__(self, one: Linked, begin: int, end: int) -> None:
        self.one, self.begin, self.end = one, begin, end
        trace = one.part.trace
        self.talks = np.isin(trace.kind, _TALKS)
        self.keys = {int(row): self._key(int(row)) for row in np.flatnonzero(self.talks)}

    def _key(self, row: int) -> tuple[Any, ...]:
        """The key by which calls are matched: the group; for messages both ends and the tag."""
        trace, part = self.one.part.trace, self.one.part
        if trace.kind[row] == Kind.COLL:
            slot = int(trace.group[row])
            name, members = part.groups[slot] if slot >= 0 else ("", None)
            return name, None if members is None else tuple(members)
        src, dst = (int(part.peers[slot]) if slot >= 0 else part.rank for slot in (trace.src[row], trace.dst[row]))
        return src, dst, int(trace.tag[row])

    def keep(self) -> NDArray[np.bool_]:
        """A rank inside a call when the last rank began may be waiting for that one."""
        begun = np.where(self.talks, self.one.end_ns > self.begin, self.one.start_ns >= self.begin)
        return begun & (self.one.start_ns < self.end)

    def calls(self) -> dict[tuple[Any, ...], list[int]]:
        found: dict[tuple[Any, ...], list[int]] = {}
        for row in np.flatnonzero(self.keep() & self.talks).tolist():
            found.setdefault(self.keys[row], []).append(row)
        return found


def by_time(ranks: Sequence[Linked]) -> list[Linked] | None:
    """The ranks cut to the interval; None if there is none, or calls do not agree."""
    begin, end = max(int(one.start_ns.min()) for one in ranks), min(int(one.end_ns.max()) for one in ranks)
    if begin >= end:
        return None
    left = [_Rank(one, begin, end) for one in ranks]
    while _shortened(left):
        pass
    if not _same(left) or not all(rank.keep().any() for rank in left):
        return None
    return [_cut(rank) for rank in left]


def _shortened(ranks: list[_Rank]) -> bool:
    """Ends each rank before the first call that another member lacks; returns whether any was shortened."""
    calls = [rank.calls() for rank in ranks]
    fewest: dict[tuple[Any, ...], int] = {}
    for key in {key for found in calls for key in found}:
        fewest[key] = min(len(found.get(key, [])) for rank, found in zip(ranks, calls, strict=True) if _has(rank, key))
    changed = False
    for rank, found in zip(ranks, calls, strict=True):
        over = [int(rank.one.start_ns[rows[fewest[key]]]) for key, rows in found.items() if len(rows) > fewest[key]]
        if over and min(over) < rank.end:
            rank.end, changed = min(over), True
    return changed


def _has(rank: _Rank, key: tuple[Any, ...]) -> bool:
    """Whether the rank is a member of that group, or an end of that message."""
    if len(key) == 3:
        return rank.one.part.rank in key[:2]
    return rank.one.part.rank in key[1] if key[1] is not None else key in rank.keys.values()


def _same(ranks: list[_Rank]) -> bool:
    """Whether each member was in each call while the others were, and all called the same."""
    met: dict[tuple[Any, ...], list[tuple[int, int, int]]] = {}
    for rank in ranks:
        for key, rows in rank.calls().items():
            for number, row in enumerate(rows):
                what = int(rank.one.part.trace.collective[row])
                met.setdefault((*key, number), []).append(
                    (int(rank.one.start_ns[row]), int(rank.one.end_ns[row]), what)
                )
    return all(
        max(start for start, _, _ in seen) <= min(end for _, end, _ in seen) + NOISE_NS
        and len({what for _, _, what in seen}) == 1
        for seen in met.values()
    )


def _cut(rank: _Rank) -> Linked:
    one, keep = rank.one, rank.keep()
    if keep.all():
        return one
    span = format_time(int(one.end_ns[keep].max()) - rank.begin)
    what = f"is cut to {span} from the time at which all ranks were recording: their step numbers differ"
    return cut(one, keep, what)
