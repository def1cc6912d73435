"""rounds: work that needs k requests and responses, as secure computation between parties does.

Two parties exchange messages, the first of them asks; more of them gather what each has to say. A message is the first
round of its own: k - 1 answers and requests follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.make.transform.edits.definition import Definition, Here, Parameter, Parties, number, rounded, size, whole
from etude.make.transform.rewrite.rewriting import AFTER, free_stream
from etude.make.transform.rewrite.selector import WORLD
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind, Why

_NAMES: Final = ("request", "response")
"""Names of even and odd turns."""
MOST: Final = 1024
"""Most rounds of one node."""


def rewrite(here: Here, k: int, message: int, factor: float, over: str) -> None:
    """After each node k requests and k responses of half the bytes each, one after another."""
    trace, rows, made = here.trace, here.rows, here.made
    if factor != 1:
        if (trace.duration_ns[rows] == UNKNOWN).any():
            hint = "--times-on dgx-h100 gives compute the times of a system first"
            raise UsageError("selected nodes have no time to multiply", hint=hint)
        made.set("duration_ns", rows, rounded(trace.duration_ns[rows] * factor))
    talks = np.isin(trace.kind[rows], (Kind.SEND, Kind.RECV))
    _more_rounds(here, rows[talks], k - 1, message)
    rows = rows[~talks]
    if not k or not len(rows):
        return
    if here.role is None:
        turn = _gather(here, rows, message // 2, _slot(here, over))
    else:
        own = int(here.job.tag_base[here.job.index(int(here.ranks[0]))])
        tag, peer = _fresh_tag(here.job) - own, made.peer()
        turn = _messages(here, rows, message // 2, peer, np.full(len(rows), tag), here.role == 0, False)
    made.leave(rows, _in_turn(here, rows, 2 * k, turn), order=True)


Turn = Callable[[int], I64]
"""Number of a turn -> a new node for each row."""


def _in_turn(here: Here, rows: I64, turns: int, turn: Turn) -> I64:
    """The last of this many turns after each row."""
    last = rows
    for turn_number in range(turns):
        one = turn(turn_number)
        here.made.wait(one, last, Why.COLLECTIVE)
        last = one
    return last


def _gather(here: Here, rows: I64, size: int, slot: int) -> Turn:
    """All parties send to all, if there are more than two."""
    columns = {"kind": int(Kind.COLL), "collective": int(Collective.ALL_GATHER), "in_bytes": size, "group": slot}
    return lambda number: here.made.add(rows, AFTER + number, _NAMES[number % 2], **columns)


def _messages(
    here: Here, rows: I64, size: int, peer: int | I64, tag: I64, first: bool, answers: bool, **columns: I64
) -> Turn:
    """One party sends first, then the other; `answers`: the first message is an answer."""

    def turn(number: int) -> I64:
        sends = (number % 2 == 0) == first
        end = {"kind": int(Kind.SEND), "dst": peer} if sends else {"kind": int(Kind.RECV), "src": peer}
        name = _NAMES[(number + answers) % 2]
        return here.made.add(rows, AFTER + number, name, in_bytes=size, tag=tag, **end, **columns)

    return turn


def _more_rounds(here: Here, rows: I64, k: int, message: int) -> None:
    """k more rounds after messages, each of which is the first round of its own: an answer, and the next request."""
    trace = here.trace
    if k < 1:
        return
    for kind, slot in ((Kind.SEND, "dst"), (Kind.RECV, "src")):
        mine = rows[trace.kind[rows] == kind]
        if len(mine):
            # its tag, but of messages that go both ways: no other message has it
            tag = np.where(trace.tag[mine] < 0, trace.tag[mine], trace.tag[mine] + _fresh_tag(here.job))
            # who answers does not wait for answers of its own
            on = np.where(trace.cpu[mine] == 1, UNKNOWN, free_stream(trace) + (kind == Kind.RECV))
            peer, first = getattr(trace, slot)[mine], kind == Kind.RECV
            turn = _messages(here, mine, message // 2, peer, tag, first, True, stream=on)
            last = _in_turn(here, mine, 2 * k, turn)
            if kind == Kind.RECV:  # what is sent is there when all rounds are over; its sender goes on
                here.made.leave(mine, last)


def _fresh_tag(job: Job) -> int:
    """A tag above all tags of the ranks."""
    of_trace = np.array([t.tag.max(initial=-1) for t in job.traces] or [-1], np.int64)[job.trace_of]
    return int(np.maximum(of_trace + job.tag_base, job.tag_base).max(initial=0)) + 1


def parties(job: Job, k: int, over: str, **others: object) -> Parties | None:
    """The pairs of ranks, if the group has two members; None if it has more."""
    del others
    role, peer = np.zeros(len(job.ranks), np.int64), np.zeros(len(job.ranks), np.int64)
    if not k:
        return None
    for at, rank in enumerate(job.ranks.tolist()):
        if over == WORLD:
            members: list[int] = list(range(min(job.world_size, 3)))
        else:
            labels, bound = job.traces[int(job.trace_of[at])].group_slots, job.group_slots(rank).tolist()
            named = [g for label, g in zip(labels, bound, strict=True) if over in (label, job.groups.names[g])]
            found = job.groups.ranks(named[0]) if named else None
            members = [] if found is None else found.tolist()
        if len(members) != 2 or rank not in members:
            return None
        role[at] = members.index(rank)
        peer[at] = members[1 - role[at]]
    return Parties(role, peer)


def _slot(here: Here, over: str) -> int:
    """Slot of a group; -1 is all ranks."""
    if over == WORLD:
        return -1
    found = [i for i, names in enumerate(here.groups) if over in names]
    if not found:
        known = ", ".join(sorted({name for names in here.groups for name in names}))
        raise UsageError(f"over: no group `{over}`", hint=f"known: world{f', {known}' if known else ''}")
    return found[0]


def _some(text: str) -> int:
    found = whole(0)(text)
    if found > MOST:
        raise UsageError(f"a node would have {found:,} rounds", hint=f"at most {MOST:,}")
    return found


EDIT = Definition(
    doc="`k` requests and responses of `message` bytes in both directions after each node, whose own time is "
    "multiplied by `factor`; between two parties as messages; a message is the first of its own rounds",
    cannot="the computation between rounds, and privacy; host threads that all send requests first never complete",
    parameters={
        "k": Parameter(read=_some, doc="rounds: 2"),
        "message": Parameter(read=size, default="0", doc="bytes of a request and its response together"),
        "factor": Parameter(read=number(), default="1", doc="on the node's own time: 1000 for homomorphic encryption"),
        "over": Parameter(read=str, default="world", doc="group of the parties"),
    },
    selects="compute",
    rewrite=rewrite,
    parties=parties,
)
