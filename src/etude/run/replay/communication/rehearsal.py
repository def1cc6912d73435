"""Checks the communication of all programs without running it, before any process starts.

A call is complete when every member has issued it, a message when both ends have. Ranks that wait for something that
never completes are reported, and so are members that disagree about a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import DeadlockError, MismatchError
from etude.run.replay.program import CommKind, Program, StepKind

SHOWN: Final = 8
"""Number of waiting ranks that the message lists; the error has all of them."""
_SAME_SIZE: Final = (CommKind.ALL_REDUCE, CommKind.REDUCE, CommKind.BROADCAST)
_SHARED_OUT: Final = (CommKind.ALL_GATHER, CommKind.GATHER)
_SHARED_IN: Final = (CommKind.REDUCE_SCATTER, CommKind.REDUCE_SCATTER_BLOCK, CommKind.SCATTER)


@dataclass(slots=True)
class _Meeting:
    """One collective or message, and the members that have issued it."""

    needs: tuple[int, ...]
    calls: dict[int, int] = field(default_factory=dict)
    """Rank -> row of `comms`."""
    waiting: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.calls) == len(self.needs)


def rehearse(programs: Sequence[Program]) -> int:
    """Returns how many collectives and messages took place. Raises MismatchError or DeadlockError."""
    stage = _Stage({int(p.about["rank"]): p for p in programs})
    ready = list(stage.programs)
    while ready:
        ready += stage.go_on(ready.pop())
    if stage.stuck:
        raise stage.deadlock()
    return len(stage.meetings)


class _Stage:
    def __init__(self, programs: dict[int, Program]) -> None:
        self.programs = programs
        self.steps = {rank: _talk(program) for rank, program in programs.items()}
        self.at = dict.fromkeys(programs, 0)
        self.meetings: dict[tuple[object, ...], _Meeting] = {}
        self.joined: dict[tuple[int, int], _Meeting] = {}
        self.count: dict[tuple[object, ...], int] = {}
        self.stuck: dict[int, int] = {}
        """Rank -> row of the call that it waits for."""

    def go_on(self, rank: int) -> list[int]:
        """Runs a rank until it waits; returns the ranks that can continue because of it."""
        steps, freed = self.steps[rank], list[int]()
        self.stuck.pop(rank, None)
        while self.at[rank] < len(steps):
            issue, row = steps[self.at[rank]]
            if issue:
                freed += self.issue(rank, row)
            elif not (meeting := self.joined[rank, row]).complete:
                meeting.waiting.append(rank)
                self.stuck[rank] = row
                return freed
            self.at[rank] += 1
        return freed

    def issue(self, rank: int, row: int) -> list[int]:
        key, needs = self.key(rank, row)
        number = self.count[rank, *key] = self.count.get((rank, *key), -1) + 1
        meeting = self.meetings.setdefault((number, *key), _Meeting(needs))
        if meeting.calls:
            other = next(iter(meeting.calls))
            self.agree(rank, row, other, meeting.calls[other])
        meeting.calls[rank] = row
        self.joined[rank, row] = meeting
        if not meeting.complete:
            return []
        self.agree_on_shares(meeting)
        freed, meeting.waiting = meeting.waiting, []
        return freed

    def key(self, rank: int, row: int) -> tuple[tuple[object, ...], tuple[int, ...]]:
        program = self.programs[rank]
        comms = program.comms
        kind, peer = int(comms.kind[row]), int(comms.peer[row])
        if kind == CommKind.SEND:
            return ("message", rank, peer, int(comms.tag[row])), (rank, peer)
        if kind == CommKind.RECV:
            return ("message", peer, rank, int(comms.tag[row])), (peer, rank)
        group = int(comms.group[row])
        if group < 0:
            return ("world",), tuple(self.programs)
        return ("group", program.group_names[group], program.groups[group]), program.groups[group]

    # -- agreement -----------------------------------------------------------------------------------------------------

    def agree(self, rank: int, row: int, other: int, their: int) -> None:
        """Raises MismatchError if two members of one call do not agree on it."""
        here, there = self.programs[rank].comms, self.programs[other].comms
        kind, their_kind = CommKind(int(here.kind[row])), CommKind(int(there.kind[their]))
        if kind in (CommKind.SEND, CommKind.RECV):
            sent = max(here.in_bytes[row], there.in_bytes[their])
            received = max(here.out_bytes[row], there.out_bytes[their])
            same = kind != their_kind and sent == received
        else:
            same = kind == their_kind and int(here.peer[row]) == int(there.peer[their])
            mine, theirs = self.size(rank, row, kind), self.size(other, their, kind)
            same &= mine == theirs or None in (mine, theirs)
        if not same:
            problem = f"rank {rank}: {self.words(rank, row)}, but rank {other}: {self.words(other, their)}"
            hint = "`etude check` lists everything that does not match"
            raise MismatchError(problem, where=f"call {row + 1} of rank {rank}", hint=hint)

    def size(self, rank: int, row: int, kind: CommKind) -> int | None:
        """Bytes that must be the same on all members; None if shares are unequal."""
        comms = self.programs[rank].comms
        into, out, n = int(comms.in_bytes[row]), int(comms.out_bytes[row]), len(self.key(rank, row)[1])
        if kind in _SAME_SIZE:
            return into
        if comms.in_splits[row] or comms.out_splits[row]:
            return None
        if kind == CommKind.ALL_TO_ALL:
            return into
        return into * n if kind in _SHARED_OUT else out * n if kind in _SHARED_IN else 0

    def agree_on_shares(self, meeting: _Meeting) -> None:
        """Checks that what each member of an all-to-all sends to another is what the other receives. Raises
        MismatchError."""
        first = next(iter(meeting.calls))
        if self.programs[first].comms.kind[meeting.calls[first]] != CommKind.ALL_TO_ALL:
            return
        n = len(meeting.needs)
        sent, taken = np.zeros((n, n), np.int64), np.zeros((n, n), np.int64)
        for at, rank in enumerate(meeting.needs):
            comms, row = self.programs[rank].comms, meeting.calls[rank]
            sent[at] = _shares(comms.in_splits[row], int(comms.in_bytes[row]), n)
            taken[at] = _shares(comms.out_splits[row], int(comms.out_bytes[row]), n)
        wrong = np.argwhere(sent != taken.T)
        if len(wrong):
            a, b = wrong[0].tolist()
            who, to = meeting.needs[a], meeting.needs[b]
            raise MismatchError(
                f"rank {who} sends {sent[a, b]:,} B to rank {to}, which receives {taken[b, a]:,} B from it",
                where=f"call {meeting.calls[who] + 1} of rank {who}, {self.words(who, meeting.calls[who])}",
                hint="`etude check` lists everything that does not match",
            )

    def words(self, rank: int, row: int) -> str:
        program = self.programs[rank]
        comms, kind = program.comms, CommKind(int(program.comms.kind[row]))
        size = max(int(comms.in_bytes[row]), int(comms.out_bytes[row]))
        if kind == CommKind.SEND:
            return f"sends {size:,} B to rank {comms.peer[row]} with tag {comms.tag[row]}"
        if kind == CommKind.RECV:
            return f"receives {size:,} B from rank {comms.peer[row]} with tag {comms.tag[row]}"
        group = int(comms.group[row])
        name = "the world" if group < 0 else f"group `{program.group_names[group]}`"
        root = f", root {comms.peer[row]}" if int(comms.peer[row]) >= 0 else ""
        return f"{kind.name.lower()} of {size:,} B on {name}{root}"

    # -- deadlock ------------------------------------------------------------------------------------------------------

    def deadlock(self) -> DeadlockError:
        waiting = []
        for rank, row in sorted(self.stuck.items()):
            meeting = self.joined[rank, row]
            lacking = [other for other in meeting.needs if other not in meeting.calls]
            waiting.append({"rank": rank, "call": row + 1, "what": self.words(rank, row), "waits_for": lacking})
        lines = [f"deadlock: {len(waiting)} of {len(self.programs)} ranks would never complete; nothing was started"]
        for one in waiting[:SHOWN]:
            names = ", ".join(map(str, one["waits_for"][:SHOWN])) + (", ..." if len(one["waits_for"]) > SHOWN else "")  # type: ignore[index, arg-type]
            verb = self.ends(one["waits_for"])  # type: ignore[arg-type]
            lines.append(f"  rank {one['rank']}: call {one['call']}, {one['what']}, waits for rank {names}, {verb}")
        if len(waiting) > SHOWN:
            lines.append(f"  ... and {len(waiting) - SHOWN:,} more")
        return DeadlockError("\n".join(lines), waiting=tuple(waiting), hint="`etude check` lists what does not match")

    def ends(self, lacking: list[int]) -> str:
        stuck = [rank for rank in lacking if rank in self.stuck]
        return "which itself waits" if stuck else "which has no such call"


def _shares(splits: list[int], size_bytes: int, n: int) -> NDArray[np.int64]:
    """Bytes of each member's share."""
    if not splits:
        return np.full(n, size_bytes // n)
    rows = np.array(splits, np.int64)
    return rows * (size_bytes // rows.sum()) if rows.sum() else rows


def _talk(program: Program) -> list[tuple[bool, int]]:
    """(is it an issue, row) for each issue and each wait; a call that is not async is waited for at once."""
    found, steps = list[tuple[bool, int]](), program.steps
    later = program.comms.is_async.tolist()
    for kind, row in zip(steps.kind.tolist(), steps.row.tolist(), strict=True):
        if kind == StepKind.COMM:
            found.append((True, row))
            if not later[row]:
                found.append((False, row))
        elif kind == StepKind.WAIT:
            found.append((False, row))
    return found
