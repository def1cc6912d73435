"""Explains a deadlock: which rank waits at which node, for whom, and what does not match."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import DeadlockError
from etude.model.check.findings import FindingList, ordinal
from etude.model.check.findings import ProgramClasses as SamePrograms
from etude.model.check.groups import check_collectives
from etude.model.check.messages import check_messages
from etude.model.graph import cycle_text, find_cycle
from etude.model.job import ranges
from etude.model.match import WORLD, match
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.state import Table
from etude.run.simulate.state import DONE

SHOWN = 8
"""Waiting ranks that the message names; the error holds all."""


@dataclass(slots=True)
class Wait:
    """A node that has arrived and waits for others; if there is none, the first node that a rank cannot start."""

    at: int
    row: int
    text: str
    lacking: list[int] = field(default_factory=list)
    """Positions of the ranks it waits for."""


def explain(lowered: Lowered, nodes: Table) -> DeadlockError:
    """The error that describes the deadlock."""
    cycles = _cycles(lowered)
    waits = _waits(lowered, nodes) + cycles
    causes = _causes(lowered)
    left = int((nodes["waits"] != DONE).sum())
    stuck = sum(int((lowered.classes.of == lowered.classes.of[w.at]).sum()) for w in {w.at: w for w in waits}.values())
    who = f"{stuck:,} rank{'s never complete' if stuck != 1 else ' never completes'}"
    lines = [f"deadlock: {who}; {left:,} of {len(nodes):,} simulated nodes never complete"]
    lines += [f"  {_who(lowered, w.at)}: {w.text}" for w in waits[:SHOWN]]
    if len(waits) > SHOWN:
        lines.append(f"  ... and {len(waits) - SHOWN:,} more")
    circle = _circle(lowered, waits)
    if circle:
        lines.append(f"cycle: {circle}")
    lines += [f"cause: {cause}" for cause in causes]
    causes += [f"{_who(lowered, w.at)}: {w.text}" for w in cycles]
    return DeadlockError("\n".join(lines), waiting=tuple(_record(lowered, w) for w in waits), causes=tuple(causes))


def _cycles(lowered: Lowered) -> list[Wait]:
    """Programs that block themselves; one rank represents each."""
    found: dict[int, Wait] = {}
    for at in lowered.classes.first.tolist():
        t = int(lowered.job.trace_of[at])
        if t in found:
            continue
        cycle = find_cycle(lowered.job.traces[t])
        if len(cycle):
            ids = [lowered.source_id(at, row) for row in cycle.tolist()]
            found[t] = Wait(at, int(cycle[0]), f"nodes wait for one another: {cycle_text(ids)}")
    return list(found.values())


def _record(lowered: Lowered, wait: Wait) -> dict[str, object]:
    return {
        "rank": int(lowered.job.ranks[wait.at]),
        "ranks": ranges(lowered.job.ranks[lowered.classes.of == lowered.classes.of[wait.at]]),
        "node": lowered.source_id(wait.at, wait.row),
        "what": wait.text,
        "waits_for": [int(lowered.job.ranks[other]) for other in wait.lacking],
    }


def _who(lowered: Lowered, at: int) -> str:
    same = lowered.job.ranks[lowered.classes.of == lowered.classes.of[at]]
    return f"rank {same[0]}" if len(same) == 1 else f"ranks {ranges(same)}"


def _named(lowered: Lowered, at: int, row: int) -> str:
    trace = lowered.source.traces[int(lowered.source.trace_of[at])]
    name = trace.text("name", row)
    what = Collective(min(int(trace.collective[row]), int(Collective.OTHER)))
    kind = what.name.lower() if what else Kind(int(trace.kind[row])).name.lower()
    return f"node {lowered.source_id(at, row)} ({kind}{f' `{name[:60]}`' if name else ''})"


def _waits(lowered: Lowered, nodes: Table) -> list[Wait]:
    """One entry for each simulated rank that is stuck: the first node that waits for others, else a blocked one."""
    found = []
    started, done = nodes["start_ns"] != UNKNOWN, nodes["waits"] == DONE
    for i, at in enumerate(lowered.classes.first.tolist()):
        here = slice(int(lowered.base[i]), int(lowered.base[i + 1]))
        waiting = np.flatnonzero(started[here] & ~done[here])
        found += [_wait(lowered, nodes, at, row) for row in waiting[:1].tolist()]
        held = np.flatnonzero(~started[here] & (nodes["waits"][here] == 0))
        if not len(waiting) and len(held):
            lane = "its lane keeps the recorded order and must run another node first"
            found.append(Wait(at, int(held[0]), f"{_named(lowered, at, int(held[0]))} is ready, but {lane}"))
    return found


def _wait(lowered: Lowered, nodes: Table, at: int, row: int) -> Wait:
    trace = lowered.job.traces[int(lowered.job.trace_of[at])]
    if trace.kind[row] == Kind.COLL:
        return _collective_wait(lowered, nodes, at, row)
    return _message_wait(lowered, at, row)


def _collective_wait(lowered: Lowered, nodes: Table, at: int, row: int) -> Wait:
    uses, sides, job = lowered.matching.uses, lowered.matching.sides, lowered.job
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
        elif nodes["start_ns"][lowered.node(uses.at[other], theirs[call])] == UNKNOWN:
            late.append(int(uses.at[other]))
    users = set(uses.at[uses.group == group].tolist())
    members = np.arange(job.world_size) if group == WORLD else job.groups.ranks(group)
    absent = set() if members is None else set(np.flatnonzero(np.isin(job.ranks, members)).tolist()) - users
    never += sorted(absent)
    name = "the world" if group == WORLD else f"group `{job.groups.names[group]}`"
    parts = []
    if late:
        parts.append(f"{_ranks(lowered, late)}, which {'has' if len(late) == 1 else 'have'} not reached it")
    if never:
        parts.append(f"{_ranks(lowered, never)}, which {'has' if len(never) == 1 else 'have'} no such call")
    text = f"{_named(lowered, at, row)}, the {ordinal(call)} of {name}, waits for {' and for '.join(parts)}"
    return Wait(at, row, text, late + never)


def _ranks(lowered: Lowered, at: list[int]) -> str:
    ranks = lowered.job.ranks[at]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"


def _message_wait(lowered: Lowered, at: int, row: int) -> Wait:
    links, sides, pairs = lowered.matching.links, lowered.matching.sides, lowered.matching.pairings
    trace = lowered.job.traces[int(lowered.job.trace_of[at])]
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
    with_tag = f" (tag {tag + int(lowered.job.tag_base[at])})" if tag >= 0 else ""
    text = f"{_named(lowered, at, row)} waits {verb} rank {lowered.job.ranks[peer]}{with_tag}"
    pairing = int(links.pairing[link])
    if pairing >= 0:
        span = slice(int(pairs.start[pairing]), int(pairs.start[pairing + 1]))
        hit = np.flatnonzero((sides.rows[mine[span]] == row) & _within(sides, mine[span], int(side[link])))
        if len(hit):
            partner = int(sides.rows[theirs[span][hit[0]]])
            return Wait(at, row, f"{text}, which has not reached {_named(lowered, peer, partner)}", [peer])
    return Wait(at, row, f"{text}, which has no such {'receive' if sends else 'send'}", [peer])


def _within(sides: Any, place: NDArray[np.int64], side: int) -> NDArray[np.bool_]:
    span = sides.span(side)
    return (place >= span.start) & (place < span.stop)


def _circle(lowered: Lowered, waits: list[Wait]) -> str:
    """Describes ranks that wait for each other in a cycle; empty if there is none."""
    by_class = {int(lowered.classes.of[w.at]): w for w in waits}
    for start in by_class:
        path: list[int] = []
        here = start
        while here in by_class and here not in path:
            path.append(here)
            ahead = [int(lowered.classes.of[a]) for a in by_class[here].lacking]
            here = next((c for c in ahead if c in by_class), -1)
        if here in path:
            ring = path[path.index(here) :]
            stuck = [by_class[c] for c in ring]
            steps = [f"{_who(lowered, w.at)} at node {lowered.source_id(w.at, w.row)}" for w in stuck]
            shown = [*steps[:6], "..."] if len(steps) > 7 else steps
            return " waits for ".join([*shown, steps[0]])
    return ""


def _causes(lowered: Lowered) -> list[str]:
    """The errors that `check` finds in the communication."""
    report, matching = FindingList(lowered.source), match(lowered.source)
    check_collectives(report, matching)
    check_messages(report, SamePrograms(lowered.source.trace_of, ()), matching)
    return [f"{f.where}: {f.what}" if f.where else f.what for f in report.sorted() if f.severity == "error"]
