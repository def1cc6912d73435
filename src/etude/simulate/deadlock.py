"""Why a simulation stood still: who waits at which node, for whom, and what does not match."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import DeadlockError
from etude.model.check.findings import ProgramClasses as SamePrograms
from etude.model.check.findings import Report, ordinal
from etude.model.check.groups import check_collectives
from etude.model.check.messages import check_messages
from etude.model.graph import cycle_text, find_cycle
from etude.model.job import ranges
from etude.model.match import WORLD, match
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.simulate import kernels as k
from etude.simulate.operations import Run

if TYPE_CHECKING:
    from etude.simulate.run import State

SHOWN = 8
"""Waiting ranks that the message names; the error holds all."""


@dataclass(slots=True)
class Wait:
    """A node that has come and waits for others; or, where there is none, the first that a rank cannot start."""

    at: int
    row: int
    text: str
    lacking: list[int] = field(default_factory=list)
    """Positions of the ranks that it waits for."""


def explain(run: Run, state: State) -> DeadlockError:
    """The error that tells of the deadlock."""
    cycles = _cycles(run)
    waits = _waits(run, state) + cycles
    causes = _causes(run)
    left = state.nodes - state.done
    stuck = sum(int((run.classes.of == run.classes.of[w.at]).sum()) for w in {w.at: w for w in waits}.values())
    who = f"{stuck:,} rank{'s wait' if stuck != 1 else ' waits'} for ever"
    lines = [f"deadlock: {who}; {left:,} of {state.nodes:,} simulated nodes never end"]
    lines += [f"  {_who(run, w.at)}: {w.text}" for w in waits[:SHOWN]]
    if len(waits) > SHOWN:
        lines.append(f"  ... and {len(waits) - SHOWN:,} more")
    circle = _circle(run, waits)
    if circle:
        lines.append(f"circle: {circle}")
    lines += [f"cause: {cause}" for cause in causes]
    causes += [f"{_who(run, w.at)}: {w.text}" for w in cycles]
    return DeadlockError("\n".join(lines), waiting=tuple(_record(run, w) for w in waits), causes=tuple(causes))


def _cycles(run: Run) -> list[Wait]:
    """Programs that stand in their own way; one rank speaks for each."""
    found: dict[int, Wait] = {}
    for at in run.classes.first.tolist():
        t = int(run.job.trace_of[at])
        if t in found:
            continue
        cycle = find_cycle(run.job.traces[t])
        if len(cycle):
            ids = [run.source_id(at, row) for row in cycle.tolist()]
            found[t] = Wait(at, int(cycle[0]), f"nodes wait for one another: {cycle_text(ids)}")
    return list(found.values())


def _record(run: Run, wait: Wait) -> dict[str, object]:
    return {
        "rank": int(run.job.ranks[wait.at]),
        "ranks": ranges(run.job.ranks[run.classes.of == run.classes.of[wait.at]]),
        "node": run.source_id(wait.at, wait.row),
        "what": wait.text,
        "waits_for": [int(run.job.ranks[other]) for other in wait.lacking],
    }


def _who(run: Run, at: int) -> str:
    same = run.job.ranks[run.classes.of == run.classes.of[at]]
    return f"rank {same[0]}" if len(same) == 1 else f"ranks {ranges(same)}"


def _named(run: Run, at: int, row: int) -> str:
    trace = run.source.traces[int(run.source.trace_of[at])]
    name = trace.text("name", row)
    what = Collective(min(int(trace.collective[row]), int(Collective.OTHER)))
    kind = what.name.lower() if what else Kind(int(trace.kind[row])).name.lower()
    return f"node {run.source_id(at, row)} ({kind}{f' `{name[:60]}`' if name else ''})"


def _waits(run: Run, state: State) -> list[Wait]:
    """One entry for each simulated rank that is stuck: the first node that waits for others, else a held one."""
    found = []
    started, done = state.time[:, k.START] != UNKNOWN, state.node[:, k.WAITS] == k.DONE
    for i, at in enumerate(run.classes.first.tolist()):
        here = slice(int(run.base[i]), int(run.base[i + 1]))
        waiting = np.flatnonzero(started[here] & ~done[here])
        found += [_wait(run, state, at, row) for row in waiting[:1].tolist()]
        held = np.flatnonzero(~started[here] & (state.node[here, k.WAITS] == 0))
        if not len(waiting) and len(held):
            lane = "its lane keeps the recorded order and is to run another node first"
            found.append(Wait(at, int(held[0]), f"{_named(run, at, int(held[0]))} is ready, but {lane}"))
    return found


def _wait(run: Run, state: State, at: int, row: int) -> Wait:
    trace = run.job.traces[int(run.job.trace_of[at])]
    if trace.kind[row] == Kind.COLL:
        return _collective_wait(run, state, at, row)
    return _message_wait(run, state, at, row)


def _collective_wait(run: Run, state: State, at: int, row: int) -> Wait:
    uses, sides, job = run.matching.uses, run.matching.sides, run.job
    for use in np.flatnonzero(uses.at == at).tolist():
        rows = sides.rows[sides.span(int(uses.side[use]))]
        if row in rows:
            break
    group, call = int(uses.group[use]), int(np.flatnonzero(rows == row)[0])
    late, never = [], []
    for other in np.flatnonzero(uses.group == group).tolist():
        theirs = sides.rows[sides.span(int(uses.side[other]))]
        if call >= len(theirs):
            never.append(int(uses.at[other]))
        elif state.time[run.node(uses.at[other], theirs[call]), k.START] == UNKNOWN:
            late.append(int(uses.at[other]))
    users = set(uses.at[uses.group == group].tolist())
    members = np.arange(job.world_size) if group == WORLD else job.groups.ranks(group)
    absent = set() if members is None else set(np.flatnonzero(np.isin(job.ranks, members)).tolist()) - users
    never += sorted(absent)
    name = "the world" if group == WORLD else f"group `{job.groups.names[group]}`"
    parts = []
    if late:
        parts.append(f"{_ranks(run, late)}, which {'has' if len(late) == 1 else 'have'} not come to it")
    if never:
        parts.append(f"{_ranks(run, never)}, which {'has' if len(never) == 1 else 'have'} no such call")
    text = f"{_named(run, at, row)}, the {ordinal(call)} of {name}, waits for {' and for '.join(parts)}"
    return Wait(at, row, text, late + never)


def _ranks(run: Run, at: list[int]) -> str:
    ranks = run.job.ranks[at]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"


def _message_wait(run: Run, state: State, at: int, row: int) -> Wait:
    links, sides, pairs = run.matching.links, run.matching.sides, run.matching.pairings
    trace = run.job.traces[int(run.job.trace_of[at])]
    sends = trace.kind[row] == Kind.SEND
    me, side = (links.src_at, links.send_side) if sends else (links.dst_at, links.recv_side)
    other, mine, theirs = (
        (links.dst_at, pairs.send_at, pairs.recv_at) if sends else (links.src_at, pairs.recv_at, pairs.send_at)
    )
    link = next(
        j for j in np.flatnonzero((me == at) & (side >= 0)).tolist() if row in sides.rows[sides.span(int(side[j]))]
    )
    peer = int(other[link])
    verb = "to be received by" if sends else "for a message from"
    tag = int(trace.tag[row])
    with_tag = f" (tag {tag + int(run.job.tag_base[at])})" if tag >= 0 else ""
    text = f"{_named(run, at, row)} waits {verb} rank {run.job.ranks[peer]}{with_tag}"
    pairing = int(links.pairing[link])
    if pairing >= 0:
        span = slice(int(pairs.start[pairing]), int(pairs.start[pairing + 1]))
        hit = np.flatnonzero((sides.rows[mine[span]] == row) & _within(sides, mine[span], int(side[link])))
        if len(hit):
            partner = int(sides.rows[theirs[span][hit[0]]])
            return Wait(at, row, f"{text}, which has not come to {_named(run, peer, partner)}", [peer])
    return Wait(at, row, f"{text}, which has no such {'receive' if sends else 'send'}", [peer])


def _within(sides: Any, place: NDArray[np.int64], side: int) -> NDArray[np.bool_]:
    span = sides.span(side)
    return (place >= span.start) & (place < span.stop)


def _circle(run: Run, waits: list[Wait]) -> str:
    """Ranks that wait for each other in a ring, in words; empty if there is none."""
    by_class = {int(run.classes.of[w.at]): w for w in waits}
    for start in by_class:
        path: list[int] = []
        here = start
        while here in by_class and here not in path:
            path.append(here)
            ahead = [int(run.classes.of[a]) for a in by_class[here].lacking]
            here = next((c for c in ahead if c in by_class), -1)
        if here in path:
            ring = path[path.index(here) :]
            steps = [
                f"{_who(run, by_class[c].at)} at node {run.source_id(by_class[c].at, by_class[c].row)}" for c in ring
            ]
            shown = [*steps[:6], "..."] if len(steps) > 7 else steps
            return " waits for ".join([*shown, steps[0]])
    return ""


def _causes(run: Run) -> list[str]:
    """What `check` finds wrong with the communication."""
    report, matching = Report(run.source), match(run.source)
    check_collectives(report, matching)
    check_messages(report, SamePrograms(run.source.trace_of, ()), matching)
    return [f"{f.where}: {f.what}" if f.where else f.what for f in report.sorted() if f.severity == "error"]
