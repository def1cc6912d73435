"""What ASTRA-sim needs of `.et` files and a Job does not hold.

- Groups are numbers from 1 on: it reads their names as such. Names that are such numbers stay.
- Barriers, reductions to one rank, gathers and scatters are collectives that it can run: see `astra_collectives`.
- What only moves bytes says one operation: its roofline divides by them.
- Communication is on the device, where a recording of gloo has it on the host; a node that only describes groups is an
  operator of the host that takes no time: it aborts on both as they are.
- Collectives have one size on all members: it hangs where one brings more than another. What experts receive depends
  on routing, and what ranks have on the lengths of their samples. In a job every rank says what it sends and receives;
  here all members of such a collective say what the fullest of them moves, which is how long it takes.

`astra_problems` says what ASTRA-sim cannot run of a job as it is, `order_problem` where its own order is at fault: it
has no streams, so that ranks which do not take the same time may begin the collectives of a group in different orders,
and wait for one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.units import counted
from etude.kernels.arrays import I32, I64, distinct_values
from etude.kernels.compile import kernel
from etude.make.transform.dialects.astra_collectives import rooted_notes, without_rooted
from etude.model.graph import dependencies, topological_order
from etude.model.job import Job
from etude.model.match import WORLD, Matching, match, positions
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

Values = Mapping[str, NDArray[Any]]

SIMULATED: Final = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.BROADCAST,
)
"""Collectives that it supports; a broadcast has the recorded time."""


def for_astra(job: Job) -> Job:
    """The job as ASTRA-sim can read it."""
    return _with_operations(_on_known_units(_numbered(_with_even_sizes(without_rooted(job)))))


# -- units -------------------------------------------------------------------------------------------------------------


def _on_known_units(job: Job) -> Job:
    if not any(_describes(trace).any() or _on_the_host(trace).any() for trace in job.traces):
        return job
    return replace(job, traces=tuple(_placed(trace) for trace in job.traces))


def _placed(trace: Trace) -> Trace:
    told = _describes(trace)
    return trace.replace(
        kind=np.where(told, int(Kind.COMP), trace.kind).astype(trace.kind.dtype),
        cpu=np.where(told, 1, np.where(_on_the_host(trace), 0, trace.cpu)).astype(trace.cpu.dtype),
        duration_ns=np.where(told, 0, trace.duration_ns),
    )


def _describes(trace: Trace) -> NDArray[np.bool_]:
    return np.asarray(trace.kind == int(Kind.METADATA))


def _on_the_host(trace: Trace) -> NDArray[np.bool_]:
    """Communication on the host."""
    return np.isin(trace.kind, [int(Kind.COLL), int(Kind.SEND), int(Kind.RECV)]) & (trace.cpu == 1)


# -- groups ------------------------------------------------------------------------------------------------------------


def _numbered(job: Job) -> Job:
    if _are_numbers(job):
        return job
    names = tuple(str(i + 1) for i in range(len(job.groups)))
    return replace(job, groups=replace(job.groups, names=names))


def _are_numbers(job: Job) -> bool:
    """Whether every group has a number of its own above 0, or is all ranks under a name that means them."""
    names = [name for i, name in enumerate(job.groups.names) if not _is_all(job, i)]
    return len(set(names)) == len(names) and all(n.isascii() and n.isdigit() and int(n) > 0 for n in names)


def _is_all(job: Job, group: int) -> bool:
    members = job.groups.ranks(group)
    return job.groups.names[group] in ("", "0") and (members is None or len(members) == job.world_size)


# -- operations --------------------------------------------------------------------------------------------------------


def _with_operations(job: Job) -> Job:
    traces = tuple(trace.replace(flops=_at_least_one(trace, trace.flops)) for trace in job.traces)
    values = {
        rank: {**own, "flops": _at_least_one(job.traces[int(job.trace_of[job.index(rank)])], own["flops"])}
        if "flops" in own
        else own
        for rank, own in job.values.items()
    }
    return replace(job, traces=traces, values=values)


def _at_least_one(trace: Trace, flops: NDArray[Any]) -> NDArray[Any]:
    return np.where((trace.kind == int(Kind.COMP)) & (flops == 0), 1, flops)


# -- sizes -------------------------------------------------------------------------------------------------------------


def _with_even_sizes(job: Job) -> Job:
    """The job with equal `in_bytes` of collectives on their members; unchanged if they are."""
    found = match(job)
    changes: dict[int, list[tuple[int, I64]]] = {}
    """Rank present -> new sizes of its side of a group."""
    for uses, sides, most in _uneven(found):
        if most is not None:
            for use in uses.tolist():
                changes.setdefault(int(found.uses.at[use]), []).append((int(found.uses.side[use]), most))
        del sides
    if not changes:
        return job
    values, made = dict(job.values), dict[tuple[Any, ...], Values]()
    for at, new in changes.items():
        rank = int(job.ranks[at])
        own = job.values.get(rank, {})
        key = int(job.trace_of[at]), id(own), *((side, id(most)) for side, most in new)
        if key not in made:
            sent = own.get("in_bytes", job.traces[int(job.trace_of[at])].in_bytes).copy()
            for side, most in new:
                sent[found.sides.rows[found.sides.span(side)]] = most
            made[key] = {**own, "in_bytes": sent}
        values[rank] = made[key]
    return replace(job, values=values)


def _uneven(found: Matching) -> Iterator[tuple[NDArray[Any], list[int], I64 | None]]:
    """For each group whose members bring different sizes: its uses, their distinct sides, and the most that any of them
    moves in each call; None if they do not issue the same calls."""
    uses, known = found.uses, dict[tuple[int, ...], I64 | bool]()
    cuts = np.flatnonzero(np.diff(uses.group)) + 1
    for mine in np.split(np.arange(len(uses.group)), cuts):
        sides = np.unique(uses.side[mine]).tolist()
        key = tuple(sides)
        if len(sides) > 1 and key not in known:
            known[key] = _fullest(found, sides)
        if len(sides) > 1 and known[key] is not True:
            most = known[key]
            yield mine, sides, most if isinstance(most, np.ndarray) else None


def _fullest(found: Matching, sides: list[int]) -> I64 | bool:
    """The most that any side moves in each call; True if all bring the same, False if calls differ."""
    spans = [found.sides.span(side) for side in sides]
    if len({found.sides.collective[span].tobytes() for span in spans}) > 1:
        return False
    sent = [
        found.classes.in_bytes[int(found.sides.klass[s])][found.sides.rows[span]]
        for s, span in zip(sides, spans, strict=True)
    ]
    if all(np.array_equal(sent[0], other) for other in sent[1:]):
        return True
    return np.asarray(np.max([found.sides.size_bytes[span] for span in spans], axis=0), np.int64)


# -- what it cannot run ------------------------------------------------------------------------------------------------


def astra_problems(job: Job, before: Job | None = None) -> list[str]:
    """Messages about what ASTRA-sim hangs on, aborts on or simulates wrongly; [] if it runs the files of the job as
    they are. `before` is the job of which `for_astra` made it: what was written as something else is among them."""
    found = match(job)
    order = order_problem(job, found)
    return [
        *_group_problems(job, found),
        *_size_problems(job, found),
        *_node_problems(job),
        *([order] if order else []),
        *(rooted_notes(before) if before is not None else []),
    ]


def astra_refusals(job: Job) -> list[str]:
    """Messages about what ASTRA-sim never completes; [] if it may."""
    found = match(job)
    used = np.unique(found.uses.group)
    return [*_impossible_groups(job, used[used != WORLD]), *_deadly_nodes(job)]


def _impossible_groups(job: Job, named: NDArray[Any]) -> Iterator[str]:
    sizes = [0 if (members := job.groups.ranks(int(g))) is None else len(members) for g in named.tolist()]
    if 1 in sizes:
        yield f"it never ends a collective of a group of one rank ({sizes.count(1):,} groups)"
    unknown = [g for g in named.tolist() if job.groups.ranks(int(g)) is None and not _is_all(job, int(g))]
    if unknown:
        counted = f"({len(unknown):,} groups)"
        yield f"it aborts on collectives of groups whose members are not known {counted}; `--groups` names them"


def _group_problems(job: Job, found: Matching) -> Iterator[str]:
    used = np.unique(found.uses.group)
    named = used[used != WORLD]
    if len(named) and not _are_numbers(job):
        yield f"it aborts on names of groups that are not numbers, as `{job.groups.names[int(named[0])]}`"
    yield from _impossible_groups(job, named)
    everyone = WORLD in used or any(_is_all(job, int(g)) for g in named.tolist())
    if everyone and not all(_is_all(job, int(g)) for g in named.tolist()):
        yield "it may hang on collectives of all ranks that do not name a group, together with those of groups"


def _size_problems(job: Job, found: Matching) -> Iterator[str]:
    uneven: Counter[str] = Counter()
    for _, sides, most in _uneven(found):
        span = found.sides.span(sides[0])
        if most is not None:
            sizes = [
                found.classes.in_bytes[int(found.sides.klass[s])][found.sides.rows[found.sides.span(s)]] for s in sides
            ]
            differ = np.any([sizes[0] != other for other in sizes[1:]], axis=0)
            uneven.update(_name(kind) for kind in found.sides.collective[span][differ].tolist())
    if uneven:
        calls = ", ".join(f"{count:,} {name}" for name, count in sorted(uneven.items()))
        yield f"it hangs if members of a collective have different sizes ({calls})"
    tiny = 0
    for side in np.unique(found.uses.side).tolist():
        span = found.sides.span(side)
        reduces = found.sides.collective[span] == int(Collective.ALL_REDUCE)
        tiny += int((reduces & (found.sides.size_bytes[span] >= 0) & (found.sides.size_bytes[span] < len(job))).sum())
    if tiny:
        yield f"it increases all-reduces of fewer bytes than ranks to that many bytes in each chunk ({tiny:,})"


def _node_problems(job: Job) -> Iterator[str]:
    yield from _deadly_nodes(job)
    bare = sum(int(((trace.kind == int(Kind.COMP)) & (trace.flops == 0)).sum()) for trace in job.traces)
    if bare:
        yield f"with a roofline it takes 2**63 ns for compute nodes without operations ({bare:,})"


def _deadly_nodes(job: Job) -> Iterator[str]:
    kinds: Counter[str] = Counter()
    empty = lost = told = hosted = 0
    for trace in job.traces:
        calls = trace.collective[trace.kind == int(Kind.COLL)]
        kinds.update(_name(kind) for kind in calls[~np.isin(calls, [int(c) for c in SIMULATED])].tolist())
        messages = (trace.kind == int(Kind.SEND)) | (trace.kind == int(Kind.RECV))
        empty += int((messages & (trace.in_bytes == 0)).sum())
        lost += len(trace.missing)
        told += int(_describes(trace).sum())
        hosted += int(_on_the_host(trace).sum())
    if kinds:
        yield f"it aborts on {', '.join(f'{name} ({count:,})' for name, count in sorted(kinds.items()))}"
    if told:
        yield f"it aborts on METADATA nodes ({told:,})"
    if hosted:
        yield f"it aborts on communication on the host ({hosted:,})"
    if empty:
        yield f"it aborts on messages of 0 bytes ({empty:,})"
    if lost:
        yield f"it aborts on dependencies on missing nodes ({lost:,})"


# -- the order in which it begins them ---------------------------------------------------------------------------------


def order_problem(job: Job, found: Matching | None = None) -> str:
    """A message if it may hang on the order in which a rank begins ready nodes; "" if it cannot.

    It takes one collective or send at a time, and of those that are ready the first. Two collectives have one order on
    all ranks if whatever the first waits for comes before the second, or if all members do the same in the same time. A
    collective may hold up a send for which another member waits, through messages, before it joins.
    """
    found = found or match(job)
    free = held = 0
    for trace, rows, tied in _uneven_calls(job, found):
        dep, order = dependencies(trace), topological_order(trace)
        if len(order) < len(dep):
            continue
        free += int(_free(dep.start, dep.rows, order, rows))
        sends = np.flatnonzero(trace.kind == int(Kind.SEND)).astype(np.int32)
        held += int(_holding(dep.start, dep.rows, order, tied, sends)) if len(sends) else 0
    told, verb = [], "has" if free == 1 else "have"
    if free:
        told.append(f"{counted(free, 'collective')} of ranks that do not take the same time {verb} no fixed order")
    told += [f"{counted(held, 'collective')} may hold up messages that their members wait for"] if held else []
    return f"it may hang: {', '.join(told)}" if told else ""


def _uneven_calls(job: Job, found: Matching) -> Iterator[tuple[Trace, I32, I32]]:
    """For each program the rows of its collectives with ranks that do different work; and those of them whose members
    exchange messages, possibly through others."""
    alike, uses, sides, near = _alike(job), found.uses, found.sides, _connected(job)
    wanted: dict[int, tuple[set[int], set[int]]] = {}
    for mine in np.split(np.arange(len(uses.group)), np.flatnonzero(np.diff(uses.group)) + 1):
        members = uses.at[mine]
        if len(mine) and len(distinct_values(alike[members])) > 1:
            tied = len(distinct_values(near[members])) < len(members)
            for at, side in zip(members.tolist(), uses.side[mine].tolist(), strict=True):
                both = wanted.setdefault(int(job.trace_of[at]), (set(), set()))
                both[0].add(side)
                both[1].update([side] if tied else [])
    for t, those in wanted.items():
        calls = [np.concatenate([sides.rows[:0], *(sides.rows[sides.span(side)] for side in some)]) for some in those]
        yield job.traces[t], np.unique(calls[0]), np.unique(calls[1])


def _connected(job: Job) -> I64:
    """A number for each rank present, the same for all that messages connect."""
    peers = [positions(job, job.peer_slots(rank)) for rank in job.ranks.tolist()]
    at = np.repeat(np.arange(len(peers)), [len(p) for p in peers])
    to = np.concatenate([np.zeros(0, np.int32), *peers])
    at, to = at[to >= 0], to[to >= 0]
    numbers = np.arange(len(peers))
    while True:
        least = numbers.copy()
        np.minimum.at(least, at, numbers[to])
        np.minimum.at(least, to, numbers[at])
        if np.array_equal(least, numbers):
            return numbers
        numbers = least[least]


def _alike(job: Job) -> NDArray[np.int64]:
    """A number for each rank present; ranks with one number do the same in the same time, and so do those that they
    exchange messages with, to whom they are the same: who sends to two ranks sends to one of them first."""
    shown = {t: _digest(job.traces[t], {}) for t in set(job.trace_of.tolist())}
    texts = [
        _digest(job.traces[t], job.values[rank]) if job.values.get(rank) else shown[t]
        for rank, t in zip(job.ranks.tolist(), job.trace_of.tolist(), strict=True)
    ]
    numbers, count = np.unique(texts, return_inverse=True)[1].astype(np.int64), -1
    peers = [positions(job, job.peer_slots(rank)) for rank in job.ranks.tolist()]
    turns = [{other: turn for turn, other in reversed(list(enumerate(at.tolist())))} for at in peers]
    mine = [np.array([turns[p].get(i, -1) for p in at.tolist()], np.int64) for i, at in enumerate(peers)]
    while count < int(numbers.max(initial=-1)):
        count = int(numbers.max())
        known: dict[tuple[int, bytes], int] = {}
        near = [np.where(at >= 0, numbers[at] << 32 | turn, -1).tobytes() for at, turn in zip(peers, mine, strict=True)]
        pairs = zip(numbers.tolist(), near, strict=True)
        numbers = np.array([known.setdefault(pair, len(known)) for pair in pairs], np.int64)
    return numbers


def _digest(trace: Trace, own: Values) -> str:
    found = sha256()
    for name in ("kind", "duration_ns", "flops", "tensor_bytes", "in_bytes", "tag"):
        found.update(np.ascontiguousarray(own.get(name, getattr(trace, name))).tobytes())
    return found.hexdigest()


@kernel
def _free(start, rows, order, calls):  # type: ignore[no-untyped-def]
    """How many of these rows the next may overtake: it does not wait for everything that this one waits for."""
    place = np.empty(len(order), np.int64)
    for at in range(len(order)):
        place[order[at]] = at
    seen = np.full(len(order), -1, np.int64)
    stack = np.empty(len(order), np.int32)
    count = 0
    for k in range(len(calls) - 1):
        one, other = calls[k], calls[k + 1]
        low = np.int64(len(order))
        for j in range(start[one], start[one + 1]):
            if rows[j] >= 0:
                low = min(low, place[rows[j]])
        top = 0
        stack[top] = other
        top += 1
        while top > 0:
            top -= 1
            node = stack[top]
            for j in range(start[node], start[node + 1]):
                d = rows[j]
                if d >= 0 and seen[d] != k and place[d] >= low:
                    seen[d] = k
                    stack[top] = d
                    top += 1
        for j in range(start[one], start[one + 1]):
            if rows[j] >= 0 and seen[rows[j]] != k:
                count += 1
                break
    return count


@kernel
def _holding(start, rows, order, calls, sends):  # type: ignore[no-untyped-def]
    """How many of these calls may be in progress when a send is ready that does not wait for them. Sends are numbered
    in the order of what they send; all up to `before` are ready before a node, all from `after` on wait for it."""
    number = np.full(len(order), -1, np.int64)
    is_send = np.zeros(len(order), np.bool_)
    is_send[sends] = True
    count = 0
    for i in order:
        if is_send[i]:
            number[i] = count
            count += 1
    before = np.full(len(order), -1, np.int64)
    after = np.full(len(order), count, np.int64)
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        if number[i] >= 0:
            after[i] = number[i]
        for k in range(start[i], start[i + 1]):
            if rows[k] >= 0:
                after[rows[k]] = min(after[rows[k]], after[i])
    made = np.full(len(order), -1, np.int64)
    for i in sends:
        for k in range(start[i], start[i + 1]):
            if rows[k] >= 0:
                made[rows[k]] = max(made[rows[k]], number[i])
    for i in order:
        for k in range(start[i], start[i + 1]):
            if rows[k] >= 0:
                before[i] = max(before[i], max(before[rows[k]], made[rows[k]]))
    found = 0
    for i in calls:
        found += after[i] > before[i] + 1
    return found


def _name(kind: int) -> str:
    return Collective(kind).name.lower() if kind in list(Collective) else "unknown collectives"
