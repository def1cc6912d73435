"""Missing participants: which rank the others wait for when a run hangs, and which rank stopped before the others.

A rank is missing if others are in a collective that it never reached while it waits for no other rank; if its calls on
a group, or its messages with another rank, end before those of the others; if it has done less than the others since
the last collective that all reached; or if the world includes it and it was not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from etude.analyse.fell_behind import MissingRank, fell_behind, members_of
from etude.analyse.launches import launched
from etude.analyse.operations import CollectiveCalls, group_name
from etude.analyse.recorded_calls import recorded_number
from etude.base.units import counted
from etude.kernels.arrays import I64, Bool
from etude.model.job import Job, ranges
from etude.model.match import Matching, match
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind

STOPPED: Final = 0.95
"""Confidence if a rank stopped well before the others, or others hang."""
CUT: Final = 0.6
"""If it lacks no more than the end of a recording may have cut off, or only its recording may be missing."""
GONE: Final = 0.9
"""If nothing was recorded for a few ranks."""
FEW: Final = 0.05
"""Largest fraction of the world that counts as few."""
ALONE: Final = 0.8
"""If all others requested a communication that never ran."""
LACKS: Final = 0.02
"""Fraction of a group's calls that the end of a recording may have cut off."""
_ASKS: Final = re.compile(r"^c10d::(?!.*wait)|^record_param_comms|^nccl:")


def missing(run: Run, found: CollectiveCalls, matching: Matching | None = None) -> Iterator[MissingRank]:
    """Every rank once, for the strongest reason. Without times only what the ranks' programs lack is reported."""
    job = run.job
    told: set[int] = set()
    asked = _asked(run)
    waits = _waiting(run) | asked
    ways = (_stood_up(run, found, waits), _never_asked(run, asked), _stopped(job, found, waits),
            fell_behind(run, found, waits), _unanswered(job, matching or match(job), waits),
            _absent(job))  # fmt: skip
    for way in ways:
        for one in way:
            if one.rank not in told:
                told.add(one.rank)
                yield one


def _stood_up(run: Run, found: CollectiveCalls, waits: Bool) -> Iterator[MissingRank]:
    """Ranks that others wait for in a call that began and never ended, while they wait for no rank themselves."""
    job = run.job
    started = found.start_ns != UNKNOWN
    open_ = started & (found.end_ns == UNKNOWN)
    for call in np.unique(found.of[open_]).tolist():
        span = slice(int(found.first[call]), int(found.first[call + 1]))
        here = job.ranks[found.at[span]]
        group = int(found.group[call])
        members = members_of(job, found, group)
        lacking = np.setdiff1d(members, here[started[span]])
        unseen = np.setdiff1d(lacking, job.ranks)
        if 2 * len(unseen) >= len(members) and len(members) > 2:
            lacking = np.setdiff1d(lacking, unseen)  # nothing was recorded for most: not significant
        for rank in lacking.tolist():
            at = _at(job, rank)
            if at >= 0 and waits[at]:
                continue
            kind = Collective(int(found.collective[call])).name.lower()
            evidence = (
                f"never reached {kind} {_number(job, found, call)} of group `{group_name(job, group)}` of "
                f"{len(members)} ranks, in which rank {ranges(here[open_[span]])} waits"
            )
            yield MissingRank(rank, 1.0, evidence + _last_seen(run, at), _step(job, found, call))


def _never_asked(run: Run, asked: Bool) -> Iterator[MissingRank]:
    """The only rank that did not request what all others, or all that got as far, have requested in vain."""
    job = run.job
    others = np.flatnonzero(~asked)
    if len(job.ranks) < 3 or not asked.any():
        return
    if len(others) == 1:
        evidence = f"rank {ranges(job.ranks[asked])} requested a communication that never ran, and this rank did not"
        yield MissingRank(int(job.ranks[others[0]]), ALONE, evidence)
        return
    _, came = np.unique(_ran(run), axis=0, return_inverse=True)
    came = came.reshape(-1)
    beside = others[np.isin(came[others], came[asked])]
    if len(beside) == 1:
        with_it = job.ranks[asked & (came == came[beside[0]])]
        evidence = (
            f"rank {ranges(with_it)} ran as many kernels and communications and requested one more, which never ran; "
            "this rank did not request it"
        )
        yield MissingRank(int(job.ranks[beside[0]]), CUT, evidence)


def _ran(run: Run) -> I64:
    """By position: kernels, collectives, sends and receives that each rank's device ran."""
    found = np.zeros((len(run.job.ranks), 4), np.int64)
    for part in run.parts():
        kind = part.trace.kind[part.timed & (part.trace.cpu != 1)]
        found[part.at] = [int((kind == one).sum()) for one in (Kind.COMP, Kind.COLL, Kind.SEND, Kind.RECV)]
    return found


def _asked(run: Run) -> Bool:
    """Ranks whose hosts requested a communication after the last one that a device ran. A profiler records what a
    device has finished, so a hanging call is not recorded. If nothing links calls to device work: hosts with more
    requests than their devices ran."""
    found = np.zeros(len(run.job.ranks), bool)
    more = np.full(len(run.job.ranks), -1, np.int64)
    for part in run.parts():
        trace = part.trace
        host = np.flatnonzero(part.timed & (trace.cpu == 1))
        talks = np.isin(trace.kind, (Kind.COLL, Kind.SEND, Kind.RECV))
        if not len(host) or not (talks & part.timed).any():
            continue
        codes, words = trace.coded("name")
        asks = np.array([bool(_ASKS.search(word)) for word in words] + [False])[codes[host]]
        done = launched(part)
        done_at = part.start_ns[done.call[talks[done.node]]]
        if len(done_at):
            found[part.at] = bool((part.start_ns[host[asks]] > done_at.max()).any())
        elif asks.any():
            more[part.at] = int(asks.sum()) - int((talks & part.timed & (trace.cpu != 1)).sum())
    return found | (more > 0) if (more == 0).any() else found


def _stopped(job: Job, found: CollectiveCalls, waits: Bool) -> Iterator[MissingRank]:
    """Ranks with fewer calls on a group than most of its members."""
    if not len(found):
        return
    for group in np.unique(found.group).tolist():
        mine = np.flatnonzero(found.group == group)
        members = members_of(job, found, group)
        done = np.zeros(len(job.ranks), np.int64)
        np.add.at(done, found.at[np.isin(found.of, mine)], 1)
        at = np.array([a for a in (_at(job, r) for r in members.tolist()) if a >= 0], np.int64)
        if (done[at] == 0).sum() > 1:
            at = at[done[at] > 0]  # several never call: their membership is only assumed
        if len(at) < 2:
            continue
        most = int(done[at].max())
        behind = at[done[at] < most]
        if 2 * len(behind) >= len(at) and len(at) > 2:
            continue  # half of them have fewer: undecidable
        for one in behind[~waits[behind]].tolist():
            lacks, first = most - int(done[one]), int(mine[done[one]])
            kind = Collective(int(found.collective[first])).name.lower()
            sure = STOPPED if lacks > max(LACKS * most, 1) else CUT
            yield MissingRank(
                int(job.ranks[one]),
                sure,
                f"reached {int(done[one])} of {counted(most, 'collective')} of group `{group_name(job, group)}` of "
                f"{len(members)} ranks; the first one it does not join is {kind} {_number(job, found, first)}",
                _step(job, found, first),
            )


def _unanswered(job: Job, matching: Matching, waits: Bool) -> Iterator[MissingRank]:
    """Ranks with fewer messages to another rank than that one has from them."""
    links, sides = matching.links, matching.sides
    length = np.append(np.diff(sides.start), 0)  # -1, no side, is the last
    sent, got = length[links.send_side], length[links.recv_side]
    lacks: dict[int, list[int]] = {}
    for i in np.flatnonzero((sent != got) & (links.src_at >= 0) & (links.dst_at >= 0)).tolist():
        behind, partner = (links.dst_at[i], links.src[i]) if got[i] < sent[i] else (links.src_at[i], links.dst[i])
        lacks.setdefault(int(behind), []).append(int(partner))
    for at, partners in sorted(lacks.items(), key=lambda item: -len(item[1])):
        if not waits[at] and not any(len(lacks.get(_at(job, p), ())) > len(partners) for p in partners):
            with_whom = ranges(np.unique(partners))
            evidence = f"has fewer sends and receives than rank {with_whom} expects from it: it stopped earlier"
            yield MissingRank(int(job.ranks[at]), STOPPED if len(partners) > 1 else CUT, evidence)


def _absent(job: Job) -> Iterator[MissingRank]:
    """Ranks of the world for which nothing was recorded, if fewer than those present."""
    gone = np.setdiff1d(np.arange(job.world_size), job.ranks)
    if 2 * len(gone) < job.world_size:
        for rank in gone.tolist():
            evidence = f"it was not recorded; {len(job.ranks)} of the {job.world_size} ranks were"
            yield MissingRank(rank, GONE if len(gone) <= max(1, FEW * job.world_size) else CUT, evidence)


def _at(job: Job, rank: int) -> int:
    """Position of a rank among those present, -1 where it is not."""
    at = int(np.searchsorted(job.ranks, rank))
    return at if at < len(job.ranks) and job.ranks[at] == rank else -1


def _number(job: Job, found: CollectiveCalls, call: int) -> int:
    """Which call of its group: as the recorder counted, else from 1."""
    first = int(found.first[call])
    trace = job.traces[int(job.trace_of[found.at[first]])]
    said = recorded_number(trace, int(found.row[first]))
    return int(found.number[call]) + 1 if said is None else said


def _step(job: Job, found: CollectiveCalls, call: int) -> int | None:
    first = int(found.first[call])
    trace = job.traces[int(job.trace_of[found.at[first]])]
    step = int(trace.step[found.row[first]])
    return None if step == UNKNOWN else step


def _waiting(run: Run) -> Bool:
    """Ranks that hang in a communication."""
    found = np.zeros(len(run.job.ranks), bool)
    for at, trace in enumerate(run.job.trace_of.tolist()):
        start, end = run.timing.block(at)
        kind = run.job.traces[trace].kind
        found[at] = ((start != UNKNOWN) & (end == UNKNOWN) & np.isin(kind, (Kind.COLL, Kind.SEND, Kind.RECV))).any()
    return found


def _last_seen(run: Run, at: int) -> str:
    if at < 0:
        return "; nothing was recorded for it"
    start, end = run.timing.block(at)
    trace = run.job.traces[int(run.job.trace_of[at])]
    running = np.flatnonzero((start != UNKNOWN) & (end == UNKNOWN))
    if len(running):
        return f"; it is still in node {int(running[0])} (`{trace.text('name', int(running[0]))}`)"
    done = np.flatnonzero(end != UNKNOWN)
    if not len(done):
        return "; it never started"
    last = int(done[np.argmax(end[done])])
    return f"; its last completed node is {last} (`{trace.text('name', last)}`)"
