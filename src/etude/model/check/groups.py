"""Problems within groups: impossible members, collectives that disagree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.units import counted
from etude.kernels.arrays import I32, I64, distinct_values
from etude.kernels.distinct import first_rows, slices
from etude.model.check.findings import FindingList, ProgramClasses, listed, ordinal, split_by
from etude.model.job import ranges
from etude.model.match import WORLD, Matching, positions
from etude.model.schema import UNKNOWN, Collective

UNEVEN: Final = (Collective.ALL_TO_ALL, Collective.SCATTER, Collective.BARRIER, Collective.NONE, Collective.OTHER)
"""Collectives whose input may differ from member to member: all-to-all has a split for each, only the root of a
scatter has an input. For all others (all-reduce, all-gather, broadcast, reduce, gather, ...) it must agree."""


# -- groups ------------------------------------------------------------------------------------------------------------


def check_groups(report: FindingList, programs: ProgramClasses, matching: Matching) -> None:
    """Impossible members, and ranks that use groups they do not belong to."""
    job = report.job
    groups = job.groups
    owner = np.repeat(np.arange(len(groups), dtype=np.int32), np.diff(groups.start))
    members = groups.members
    outside = np.flatnonzero((members < 0) | (members >= job.world_size))
    if len(outside):
        k = outside[0]
        what = f"{named(report, int(owner[k]))} has member {members[k]}, outside the world of {job.world_size:,}"
        report.groups("member_outside", what, "ranks count from 0", len(distinct_values(owner[outside])))
    twice = np.zeros(0, np.int64)
    if not ((owner[1:] != owner[:-1]) | (members[1:] > members[:-1])).all():  # else members ascend
        order = np.lexsort((members, owner))
        twice = order[1:][(np.diff(owner[order]) == 0) & (np.diff(members[order]) == 0)]
    if len(twice):
        k = twice[0]
        what = f"{named(report, int(owner[k]))} has member {members[k]} more than once"
        report.groups("member_twice", what, "", len(distinct_values(owner[twice])))
    _check_users(report, programs, matching)


def _check_users(report: FindingList, programs: ProgramClasses, matching: Matching) -> None:
    """One finding per program for groups whose members are unknown; one for each slot bound to groups of others."""
    job, uses, sides = report.job, matching.uses, matching.sides
    first_row = sides.rows[sides.start[uses.side]]
    in_group = uses.group != WORLD
    known = np.ones(len(uses.group), bool)
    known[in_group] = job.groups.known[uses.group[in_group]]
    for which in split_by(programs.of[uses.at], np.flatnonzero(~known)):
        at = distinct_values(uses.at[which])
        mine = which[uses.at[which] == at[0]]
        names = [job.groups.names[g] for g in uses.group[mine].tolist()]
        rows = np.sort(first_row[mine])
        verb = "group is" if len(names) == 1 else "groups are"
        what = f"the members of {listed(names)} are not known, so the collectives there are not compared"
        hint = f"{len(names)} {verb} named by nodes but in no group file: give one with the job"
        report.nodes("members_unknown", at, rows[:1], what, hint, count=1)
    foreign = np.flatnonzero(known & (uses.group_rank < 0))
    slot = np.zeros(len(uses.at), np.int64) if len(foreign) else foreign
    slot[foreign] = programs.of[uses.at[foreign]].astype(np.int64) << 32 | first_row[foreign]
    for which in split_by(slot, foreign):
        at = distinct_values(uses.at[which])
        use = int(which[np.flatnonzero(uses.at[which] == at[0])[0]])
        group = named(report, int(uses.group[use]))
        node = report.id_of(int(at[0]), int(first_row[use]))
        what = f"node {node} uses {group}, which rank {job.ranks[at[0]]} is not a member of"
        rows = sides.rows[sides.span(int(uses.side[use]))]
        report.nodes("not_a_member", at, rows, what, "only members may call a collective; the others never complete")


def named(report: FindingList, group: int) -> str:
    """group `tp` (ranks 0-3), or the world."""
    if group == WORLD:
        return f"the world (ranks 0-{report.job.world_size - 1})"
    groups = report.job.groups
    return (
        f"group `{groups.names[group]}` (ranks {ranges(groups.members[groups.start[group] : groups.start[group + 1]])})"
    )


# -- collectives -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class IssuedCalls:
    """The collectives that a rank issues on a group: what each does and its bytes, UNKNOWN if they may differ."""

    collective: NDArray[np.uint8]
    size_bytes: I64

    def __len__(self) -> int:
        return len(self.collective)

    def text(self, k: int) -> str:
        size = int(self.size_bytes[k])
        name = Collective(min(int(self.collective[k]), int(Collective.OTHER))).name.lower()
        return name if size == UNKNOWN else f"{name} of {size:,} B"


@dataclass(frozen=True, slots=True, eq=False)
class CallDifference:
    kind: str
    k: int
    """The first call that differs."""
    count: int
    say: Callable[[str, str], str]
    """(the group, the rank that is right) -> text."""


NO_CALLS: Final = 0


def calls_of(matching: Matching) -> tuple[I32, list[IssuedCalls]]:
    """Number of the calls of each use, and the distinct calls; number 0 is none at all."""
    sides, uses = matching.sides, matching.uses
    size = np.where(np.isin(sides.collective, UNEVEN), UNKNOWN, sides.size_bytes)
    seen: dict[bytes, int] = {b"": NO_CALLS}
    calls = [IssuedCalls(np.zeros(0, np.uint8), np.zeros(0, np.int64))]
    number = np.zeros(len(sides), np.int32)
    for side in np.flatnonzero(np.bincount(uses.side, minlength=len(sides))).tolist():
        span = sides.span(side)
        key = sides.collective[span].tobytes() + size[span].tobytes()
        number[side] = seen.setdefault(key, len(calls))
        if number[side] == len(calls):
            calls.append(IssuedCalls(sides.collective[span], size[span]))
    return number[uses.side], calls


def check_collectives(report: FindingList, matching: Matching) -> None:
    """The k-th collective on a group must be the same on every member that is present; the most common calls are taken
    to be right (ties go to the first member)."""
    number, calls = calls_of(matching)
    found: dict[tuple[int, int], list[tuple[int, int, I32]]] = {}
    for group, which in _suspects(report, matching, number):
        at, mine = _members(report, matching, group, which, number)
        right = _most_common(mine[mine != NO_CALLS])
        model = int(at[np.flatnonzero(mine == right)[0]])
        for wrong in distinct_values(mine[mine != right]).tolist():
            found.setdefault((right, wrong), []).append((group, model, at[mine == wrong]))
    for (right, wrong), places in found.items():
        difference = compare(calls[right], calls[wrong])
        if difference is not None:
            _report_calls(report, matching, difference, places)


def _suspects(report: FindingList, matching: Matching, number: I32) -> list[tuple[int, NDArray[Any]]]:
    """Groups on which calls differ or a present member has none: (group, its uses by members)."""
    job, uses = report.job, matching.uses
    inside = np.flatnonzero(uses.group_rank >= 0)
    if not len(inside):
        return []
    groups = job.groups
    present = np.zeros(len(groups) + 1, np.int64)  # the last is the world's
    for low, high in slices(groups.start):
        owner = np.repeat(np.arange(low, high), np.diff(groups.start[low : high + 1]))
        members = groups.members[groups.start[low] : groups.start[high]]
        here = positions(job, members) >= 0
        owner = owner[here]
        once = first_rows((owner << 32 | members[here])[:, None])
        present[low:high] = np.bincount(owner[once] - low, minlength=high - low)
    present[WORLD] = int((job.ranks < job.world_size).sum())
    cuts = np.flatnonzero(np.diff(uses.group[inside])) + 1
    begin = np.concatenate([[0], cuts])
    count = np.diff(np.append(begin, len(inside)))
    same = np.minimum.reduceat(number[inside], begin) == np.maximum.reduceat(number[inside], begin)
    group = uses.group[inside[begin]]
    bad = np.flatnonzero(~same | (count < present[group]))
    return [(int(group[b]), inside[begin[b] : begin[b] + count[b]]) for b in bad.tolist()]


def _members(report: FindingList, matching: Matching, group: int, which: NDArray[Any], number: I32) -> tuple[I32, I32]:
    """(positions of the members that are present, number of their calls), in the group's order."""
    job = report.job
    members = np.arange(job.world_size) if group == WORLD else job.groups.ranks(group)
    assert members is not None
    at = positions(job, np.asarray(members, np.int64))
    at = at[at >= 0]
    at = at[np.sort(np.unique(at, return_index=True)[1])]
    of = np.full(len(job.ranks), NO_CALLS, np.int32)
    of[matching.uses.at[which]] = number[which]
    return at, of[at]


def _most_common(numbers: I32) -> int:
    values, first, count = np.unique(numbers, return_index=True, return_counts=True)
    return int(values[np.lexsort((first, -count))[0]])


def compare(right: IssuedCalls, wrong: IssuedCalls) -> CallDifference | None:
    """How the second differs from the first; None if they agree as far as was recorded."""
    n = min(len(right), len(wrong))
    a, b = right.collective[:n], wrong.collective[:n]
    vague = (a == Collective.NONE) | (b == Collective.NONE)
    other_type = (a != b) & ~vague
    x, y = right.size_bytes[:n], wrong.size_bytes[:n]
    other_size = (x != y) & (x != UNKNOWN) & (y != UNKNOWN)
    differ = np.flatnonzero(other_type | other_size)
    k = int(differ[0]) if len(differ) else n
    if len(right) != len(wrong):
        return CallDifference("collective_missing", k, abs(len(right) - len(wrong)), _say_missing(right, wrong, k))
    if not len(differ):
        return None
    here, there = wrong.text(k), right.text(k)
    if _same_calls(right, wrong):

        def order(group: str, model: str) -> str:
            return (
                f"issues the collectives of {group} in a different order than {model}: "
                f"the {ordinal(k)} is {here} here and {there} there"
            )

        return CallDifference("collective_order", k, len(differ), order)
    kind = "collective_type" if other_type[k] else "collective_bytes"
    return CallDifference(
        kind,
        k,
        len(differ),
        lambda group, model: f"the {ordinal(k)} collective of {group} is {here}, but {there} on {model}",
    )


def _say_missing(right: IssuedCalls, wrong: IssuedCalls, k: int) -> Callable[[str, str], str]:
    def say(group: str, model: str) -> str:
        many = counted(len(right), "collective")
        if not len(wrong):
            return f"does not join the {many} that {model} issues on {group}; the first is {right.text(0)}"
        begin = f"issues {counted(len(wrong), 'collective')} on {group}, but {model} issues {len(right):,}"
        here = wrong.text(k) if k < len(wrong) else "missing"
        there = right.text(k) if k < len(right) else "missing"
        return f"{begin}; the {ordinal(k)} is {here} here and {there} on {model}"

    return say


def _same_calls(a: IssuedCalls, b: IssuedCalls) -> bool:
    def ordered(c: IssuedCalls) -> NDArray[Any]:
        return np.stack([c.collective.astype(np.int64), c.size_bytes])[:, np.lexsort((c.size_bytes, c.collective))]

    return np.array_equal(ordered(a), ordered(b))


def _report_calls(
    report: FindingList, matching: Matching, difference: CallDifference, places: list[tuple[int, int, I32]]
) -> None:
    """One finding for all groups on which calls differ in the same way."""
    job = report.job
    at = distinct_values(np.concatenate([wrong for _, _, wrong in places]))
    group, model, _ = next(place for place in places if at[0] in place[2])
    what = difference.say(named(report, group), f"rank {job.ranks[model]}")
    if len(places) > 1:
        what += f" (also on {len(places) - 1:,} more groups)"
    row = _row_of_call(matching, group, int(at[0]), difference.k)
    hint = "every member must issue the same collectives in the same order, or none of them completes"
    if row < 0:
        report.ranks(difference.kind, job.ranks[at], what, _other_group(report, matching, group, int(at[0])) or hint)
    else:
        report.nodes(difference.kind, at, np.array([row]), what, hint)


def _row_of_call(matching: Matching, group: int, at: int, k: int) -> int:
    uses, sides = matching.uses, matching.sides
    use = np.flatnonzero((uses.group == group) & (uses.at == at))
    if not len(use):
        return -1
    rows = sides.rows[sides.span(int(uses.side[use[0]]))]
    return int(rows[min(k, len(rows) - 1)])


def _other_group(report: FindingList, matching: Matching, group: int, at: int) -> str:
    """A hint if a rank uses a group of the same name with other members."""
    if group == WORLD:
        return ""
    names, uses = report.job.groups.names, matching.uses
    for other in uses.group[uses.at == at].tolist():
        if other not in (WORLD, group) and names[other] == names[group]:
            return f"rank {report.job.ranks[at]} uses a group of that name with other members: {named(report, other)}"
    return ""
