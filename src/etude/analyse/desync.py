"""Ranks that do not call the same thing: a different operation, size, data type or order, or a missing call; ranks that
wait for one another; and calls in which all members hang although they agree.

Calls are identified by their number in the group, as the recorder wrote it (the attribute `comm_seq`). Without such
numbers nothing is reported, because a recording that begins late would look the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.analyse.operations import group_name
from etude.analyse.recorded_calls import Members, Place, SeenCall, Stands, numbered_calls
from etude.model.job import Job, ranges
from etude.model.match import WORLD
from etude.model.run import Run

__all__ = ["Desync", "desync"]

SURE: Final = 0.99
"""Confidence where few ranks differ from the others."""
EVEN: Final = 0.8
"""If as many differ as agree: something is wrong, but it is unclear on which rank."""
STANDS: Final = 0.9
"""If all members hang in one call."""
REACH: Final = 16
"""How many calls ahead a missing call is searched."""


@dataclass(frozen=True, slots=True)
class Desync:
    rank: int
    """-1 where no rank is to blame."""
    kind: str
    confidence: float
    evidence: str
    ranks: tuple[int, ...]


def desync(run: Run) -> Iterator[Desync]:
    """Every group's first disagreement; ranks that wait for one another; calls in which all members hang."""
    groups, stands = numbered_calls(run)
    told: set[int] = set()
    for group, members in sorted(groups.items()):
        found = list(_disagreements(run.job, group, members))
        yield from found
        if found:
            told.add(group)
    yield from _circles(run.job, groups, stands, told)
    for group in sorted(set(groups) - told):
        yield from _all_stand(run.job, group, groups[group], stands)


# -- who differs -------------------------------------------------------------------------------------------------------


def _disagreements(job: Job, group: int, members: Members) -> Iterator[Desync]:
    """What differs in the first call on which the members do not agree: later differences follow from it."""
    for place in sorted({place for calls in members.values() for place in calls}):
        here = {rank: calls[place] for rank, calls in members.items() if place in calls}
        where = f"in call {place[0]} of group `{group_name(job, group)}` of {_count(job, group, members)} ranks"
        found = list(_other_operation(members, here, place, where))
        found = found or list(_other_size(job, group, members, place, where))
        if found:
            yield from found
            return


def _other_operation(members: Members, here: dict[int, SeenCall], place: Place, where: str) -> Iterator[Desync]:
    called = Counter(seen.what for seen in here.values())
    if len(called) < 2:
        return
    (usual, most), (_, second) = called.most_common(2)
    right = [rank for rank, seen in here.items() if seen.what == usual]
    others = {rank: seen for rank, seen in here.items() if seen.what != usual}
    for what in sorted({seen.what for seen in others.values()}):
        mine = sorted(rank for rank, seen in others.items() if seen.what == what)
        how = _how(members[mine[0]], members[right[0]], place)
        evidence = (
            f"{where} {_ranks(mine)} {_calls(mine)} {here[mine[0]]} where {_ranks(right)} {_calls(right)} "
            f"{here[right[0]]}{how}"
        )
        blamed = sorted(here) if most == second else mine
        yield Desync(blamed[0], "desync", EVEN if most == second else SURE, evidence, tuple(blamed))


def _how(mine: dict[Place, SeenCall], theirs: dict[Place, SeenCall], place: Place) -> str:
    """How the calls of one rank diverge from those of another, as far as both were recorded."""
    a = [mine[p] for p in sorted(mine) if p >= place][: REACH + 1]
    b = [theirs[p] for p in sorted(theirs) if p >= place][: REACH + 1]
    for k in range(1, min(len(a), len(b))):
        if a[k].sign == b[0].sign and a[0].sign == b[k].sign:
            return f": this call and number {sorted(mine)[sorted(mine).index(place) + k][0]} are in the opposite order"
    ahead, behind = _run(a, b[1:]), _run(a[1:], b)
    if ahead > behind:
        return ": it skipped this call and continued with the next"
    if behind > ahead:
        return ": it has a call here that the others do not have"
    return ""


def _run(a: list[SeenCall], b: list[SeenCall]) -> int:
    """Number of calls that agree in order, if all calls that both have agree."""
    pairs = list(zip(a, b, strict=False))
    return len(pairs) if all(x.sign == y.sign for x, y in pairs) else 0


def _other_size(job: Job, group: int, members: Members, place: Place, where: str) -> Iterator[Desync]:
    here = {rank: calls[place] for rank, calls in members.items() if place in calls}
    what = next(iter(here.values())).what
    for side, compared in (("dtype", "data type"), ("in_sizes", "input"), ("out_sizes", "output")):
        values: dict[int, Any] = {rank: _compared(seen, side) for rank, seen in here.items()}
        known = Counter(value for value in values.values() if value is not None)
        if len(known) < 2 or _explained(job, group, here, side, what):
            continue
        (usual, most), (_, second) = known.most_common(2)
        mine = sorted(rank for rank, value in values.items() if value not in (None, usual))
        right = sorted(rank for rank, value in values.items() if value == usual)
        said = ", ".join(sorted({_told(values[rank]) for rank in mine}))
        evidence = (
            f"{where} ({what}) the {compared} of {_ranks(mine)} is {said}, that of {_ranks(right)} is {_told(usual)}"
            f"{_how(members[mine[0]], members[right[0]], place)}"
        )
        blamed = sorted(here) if most == second else mine
        yield Desync(blamed[0], "desync", EVEN if most == second else SURE, evidence, tuple(blamed))
        return
    yield from _other_splits(job, group, here, where)


def _compared(seen: SeenCall, side: str) -> Any:
    """What must be the same on all members; None where it may differ or is not recorded."""
    if side == "dtype":
        return seen.dtype or None
    sizes = getattr(seen, side)
    rooted = {"gather": "out_sizes", "scatter": "in_sizes"}  # only the root has it
    if sizes is None or seen.what in ("all_to_all", "barrier") or rooted.get(seen.what) == side:
        return None
    return sum(sizes)


def _explained(job: Job, group: int, here: dict[int, SeenCall], side: str, what: str) -> bool:
    """Uneven shares of a whole: each member contributes a different share, and all list the same shares."""
    lists = {"all_gather": ("in_sizes", "out_sizes"), "reduce_scatter": ("out_sizes", "in_sizes")}.get(what)
    members = _members(job, group)
    if lists is None or side != lists[0] or members is None or set(members) != set(here):
        return False
    shares = [getattr(here[rank], side) for rank in members]
    wholes = {getattr(here[rank], lists[1]) for rank in members}
    return None not in shares and wholes == {tuple(sum(share) for share in shares)}


def _other_splits(job: Job, group: int, here: dict[int, SeenCall], where: str) -> Iterator[Desync]:
    """All-to-all: what a rank sends to another must be what that rank receives from it; the totals must agree."""
    members = _members(job, group)
    if members is None or set(members) != set(here) or {s.what for s in here.values()} != {"all_to_all"}:
        return
    sent = [here[rank].in_sizes for rank in members]
    got = [here[rank].out_sizes for rank in members]
    if any(sizes is None for sizes in (*sent, *got)):
        return
    whole = len(members)
    if whole > 1 and all(len(sizes or ()) == whole for sizes in (*sent, *got)):
        wrong = [(i, j) for i in range(whole) for j in range(whole) if sent[i][j] != got[j][i]]  # type: ignore[index]
        if wrong:
            i, j = wrong[0]
            pair = tuple(sorted({members[i], members[j]}))
            evidence = (
                f"{where} (all_to_all) rank {members[i]} sends {sent[i][j]:,} elements to rank {members[j]}, "  # type: ignore[index]
                f"which receives {got[j][i]:,} from it"  # type: ignore[index]
            )
            yield Desync(pair[0], "desync", EVEN, evidence, pair)
        return
    total_in, total_out = sum(sum(s or ()) for s in sent), sum(sum(s or ()) for s in got)
    if total_in != total_out:
        evidence = f"{where} (all_to_all) {total_in:,} elements are sent and {total_out:,} received: splits differ"
        yield Desync(members[0], "desync", EVEN, evidence, tuple(members))


# -- who waits ---------------------------------------------------------------------------------------------------------


def _circles(job: Job, groups: dict[int, Members], stands: Stands, told: set[int]) -> Iterator[Desync]:
    """Ranks that wait for one another, each in a call that the other has not reached."""
    needs = {}
    for rank, (group, place) in stands.items():
        members = _members(job, group) or sorted(groups[group])
        away = [m for m in members if place not in groups[group].get(m, {})]
        lacks = [m for m in away if m in stands and stands[m][0] != group]
        if lacks and group not in told:
            needs[rank] = lacks[0]
    done: set[int] = set()
    for first in sorted(needs):
        path: list[int] = []
        rank = first
        while rank in needs and rank not in path and rank not in done:
            path.append(rank)
            rank = needs[rank]
        done.update(path)
        if rank in path:
            circle = path[path.index(rank) :]
            each = [f"rank {r} is in {_stood(job, groups, stands[r])}" for r in circle[:4]]
            evidence = f"{_ranks(sorted(circle))} wait for one another and call in different orders: {'; '.join(each)}"
            yield Desync(min(circle), "desync", STANDS, evidence, tuple(sorted(circle)))


def _stood(job: Job, groups: dict[int, Members], stand: tuple[int, Place]) -> str:
    group, place = stand
    what = next(calls[place].what for calls in groups[group].values() if place in calls)
    return f"{what} {place[0]} of group `{group_name(job, group)}`"


def _all_stand(job: Job, group: int, members: Members, stands: Stands) -> Iterator[Desync]:
    """A call in which every member hangs, with the same operation and size."""
    known = _members(job, group)
    if known is None or len(known) < 2 or not all(stands.get(rank, (None,))[0] == group for rank in known):
        return
    places = {stands[rank][1] for rank in known}
    if len(places) > 1:
        return
    place = places.pop()
    here = {rank: members[rank][place] for rank in known}
    what = f"{next(iter(here.values())).what} {place[0]} of group `{group_name(job, group)}` of {len(known)} ranks"
    started = [rank for rank in known if here[rank].started]
    idle = [rank for rank in known if here[rank].started is False]
    if started and idle and len(idle) < len(started):
        for rank in idle:
            evidence = (
                f"its device has not started {what}, in which {_ranks(started)} wait: earlier work never completes"
            )
            yield Desync(rank, "missing_participant", STANDS, evidence, (rank,))
        return
    evidence = f"all members are in {what}, with the same operation, size and data type: the network or a device hangs"
    yield Desync(-1, "stalled_collective", STANDS, evidence, tuple(known))


# -- words -------------------------------------------------------------------------------------------------------------


def _members(job: Job, group: int) -> list[int] | None:
    if group == WORLD:
        return list(range(job.world_size))
    found = job.groups.ranks(group)
    return None if found is None or not len(found) else found.tolist()


def _count(job: Job, group: int, members: Members) -> int:
    known = _members(job, group)
    return len(known) if known else len(members)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(np.array(sorted(ranks)))}"


def _calls(ranks: list[int]) -> str:
    return "call" if len(ranks) > 1 else "calls"


def _told(value: Any) -> str:
    return f"{value:,} elements" if isinstance(value, int) else str(value)
