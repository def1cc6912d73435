"""scale: the job on more ranks, along one axis of its groups.

    scale axis=dp to=64        as many copies of every rank as the groups of the axis grow by

Assumed, and said: each copy does what the rank that was recorded did, at the same speed; what is sharded over the axis
stays the same in all, so that each rank's part becomes smaller; ranks of a copy are together, behind those before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64, Bool
from etude.make.transform.edits.definition import Definition, Parameter, whole
from etude.make.transform.rewrite import Selector
from etude.make.transform.rewrite.selector import WORLD
from etude.model.job import MAX_WORLD, Groups, Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

_SHARDED_IN = (Collective.ALL_GATHER, Collective.GATHER)
"""Collectives whose input is a part of what all have."""
_SHARDED_OUT = (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK, Collective.SCATTER)


def rewrite(job: Job, select: Selector, axis: str, to: int) -> tuple[Job, int, list[str]]:
    if select != Selector():
        raise UsageError("scale applies to the whole job and takes no selector", hint="scale axis=dp to=64")
    if len(job.ranks) != job.world_size:
        raise UsageError(
            f"{len(job.ranks):,} of {job.world_size:,} ranks are present", hint="use a job with all its ranks"
        )
    notes = []
    if axis != WORLD and _is_one_group(job) and not _is_known(job, axis):
        notes, axis = [f"there is no group `{axis}`: the only group, of all ranks, is used"], WORLD
    grows, size = _axis(job, axis)
    if to % size:
        raise UsageError(f"to: {to} is not a multiple of the {size} ranks that `{axis}` has")
    times = to // size
    if times == 1:
        return job, 0, notes
    if job.world_size * times > MAX_WORLD:
        raise UsageError(
            f"{job.world_size * times:,} ranks are more than a job may have", hint=f"at most {MAX_WORLD:,}"
        )
    traces, slots = _traces(job, grows, times)
    scaled = _copies(job.replace(traces=traces, values=_values(job, slots, times)), grows, times)
    notes += [
        f"each of the {len(job.ranks):,} ranks becomes {times}: with its times, and with its work (the batch grows)",
        f"what is sharded over `{axis}` is cut into {times} times as many parts",
        f"rank r of copy c is rank c x {job.world_size} + r of the larger job",
    ]
    return scaled, scaled.nodes - job.nodes, notes


def _is_one_group(job: Job) -> bool:
    """Whether all collectives go over all ranks, as in plain data parallelism."""
    return all(len(np.unique(_members(job, g))) == job.world_size for g in range(len(job.groups)))


def _is_known(job: Job, axis: str) -> bool:
    named = Selector(group=(axis,))
    return bool(_labelled(job, named)) or named.groups_named(job.groups.names)


def _axis(job: Job, axis: str) -> tuple[Bool, int]:
    """(groups that grow, ranks of the axis). A group grows with the axis if it contains two ranks of one group of the
    axis, as that of all ranks does."""
    named = Selector(group=(axis,))
    labels = _labelled(job, named)
    chosen = [
        g
        for g, name in enumerate(job.groups.names)
        if (g in labels or named.groups_named([name])) and job.groups.ranks(g) is not None
    ]
    chosen += [g for g in range(len(job.groups)) if axis == WORLD and len(_members(job, g)) == job.world_size]
    sizes = {len(np.unique(_members(job, g))) for g in chosen}
    if axis == WORLD and not chosen:
        sizes = {job.world_size}
    if len(sizes) != 1 or 0 in sizes:
        known = sorted({name.partition(".")[0] for name in job.groups.names} | {WORLD})
        problem = f"axis: its groups have {sorted(sizes)} ranks" if sizes else f"axis: no group `{axis}`"
        raise UsageError(problem, hint=f"known: {', '.join(known[:12])}")
    place = np.full(job.world_size, -1, np.int64)
    for g in chosen:
        place[_members(job, g)] = g
    if axis == WORLD:
        place[:] = 0
    grows = np.zeros(len(job.groups), bool)
    for g in range(len(job.groups)):
        mine = place[_members(job, g)]
        grows[g] = len(np.unique(mine[mine >= 0])) < int((mine >= 0).sum())
    grows[chosen] = True
    return grows, sizes.pop()


def _labelled(job: Job, named: Selector) -> set[int]:
    """Groups that a slot of such a label is bound to."""
    found: set[int] = set()
    for number, trace in enumerate(job.traces):
        at = np.flatnonzero(job.trace_of == number)
        for slot, label in enumerate(trace.group_slots):
            if named.groups_named([label]):
                found |= set(job.group_of[job.group_start[at] + slot].tolist())
    return found


def _members(job: Job, group: int) -> NDArray[np.int32]:
    found = job.groups.ranks(group)
    if found is None:
        raise UsageError(f"the members of group `{job.groups.names[group]}` are not known", hint="--groups FILE")
    return found


def _traces(job: Job, grows: Bool, times: int) -> tuple[tuple[Trace, ...], list[Bool]]:
    """Traces with the parts of larger groups, and which slots of each are bound to such groups."""
    slots, traces = [], []
    for number, trace in enumerate(job.traces):
        at = np.flatnonzero(job.trace_of == number)
        bound = grows[job.group_of[job.group_start[at][:, None] + np.arange(len(trace.group_slots))]]
        if (bound != bound[:1]).any():
            hint = "`etude.extend.expand(job)` gives every rank its own program"
            raise UsageError("ranks that share a program have groups of the axis at different places", hint=hint)
        first = bound[0] if len(at) else np.zeros(len(trace.group_slots), bool)
        slots.append(np.append(first, True))  # the last: all ranks
        new = {name: _cut(trace, getattr(trace, name), name, slots[-1], times) for name in ("in_bytes", "out_bytes")}
        cut = any((new[name] != getattr(trace, name)).any() for name in new)
        calls = (trace.kind == Kind.COLL) & slots[-1][trace.group]
        if (trace.duration_ns[calls] != UNKNOWN).any():
            new["duration_ns"] = np.where(calls, UNKNOWN, trace.duration_ns)  # was for the smaller group
            cut = True
        traces.append(trace.replace(**new) if cut else trace)
    return tuple(traces), slots


def _cut(trace: Trace, column: I64, name: str, slot_grows: Bool, times: int) -> I64:
    kinds = _SHARDED_IN if name == "in_bytes" else _SHARDED_OUT
    calls = (trace.kind == Kind.COLL) & slot_grows[trace.group]
    smaller = calls & np.isin(trace.collective, kinds) & (column != UNKNOWN)
    larger = calls & np.isin(trace.collective, [Collective.GATHER] if name == "out_bytes" else [Collective.SCATTER])
    found = np.where(smaller, -(-column // times), column)
    return np.where(larger & (column != UNKNOWN), column, found)


def _values(job: Job, slots: list[Bool], times: int) -> dict[int, dict[str, NDArray[np.generic]]]:
    found, made = {}, dict[int, dict[str, NDArray[np.generic]]]()
    for rank, own in job.values.items():
        if id(own) not in made:
            number = int(job.trace_of[job.index(rank)])
            trace = job.traces[number]
            made[id(own)] = {
                name: _cut(trace, column, name, slots[number], times) if name in ("in_bytes", "out_bytes") else column
                for name, column in own.items()
            }
        found[rank] = made[id(own)]
    return found


def _copies(job: Job, grows: Bool, times: int) -> Job:
    """The ranks repeated `times` times. Groups that grow have the members of all copies, others exist for each copy."""
    world, groups = job.world_size, job.groups
    entries: list[tuple[str, list[int]]] = []
    number = np.zeros((times, len(groups)), np.int32)
    for g, name in enumerate(groups.names):
        members = _members(job, g).astype(np.int64)
        if grows[g]:
            number[:, g] = len(entries)
            entries.append((name, np.concatenate([members + c * world for c in range(times)]).tolist()))
            continue
        for c in range(times):
            number[c, g] = len(entries)
            entries.append((name if c == 0 else f"{name}.{c}", (members + c * world).tolist()))
    ranks = np.concatenate([job.ranks + c * world for c in range(times)]).astype(np.int32)
    peers = np.concatenate([np.where(job.peer_of >= 0, job.peer_of + c * world, job.peer_of) for c in range(times)])
    return job.replace(
        ranks=ranks,
        trace_of=np.tile(job.trace_of, times),
        groups=Groups.of(entries),
        group_start=_starts(job.group_start, times),
        group_of=np.concatenate([number[c][job.group_of] for c in range(times)]).astype(np.int32),
        peer_start=_starts(job.peer_start, times),
        peer_of=peers.astype(np.int64),
        id_base=np.tile(job.id_base, times),
        tag_base=np.tile(job.tag_base, times),
        metadata_of=np.tile(job.metadata_of, times),
        world_size=world * times,
        values={rank + c * world: own for c in range(times) for rank, own in job.values.items()},
        timing=None,
        notes=(),
    )


def _starts(start: I64, times: int) -> I64:
    return np.concatenate([[0], np.cumsum(np.tile(np.diff(start), times))]).astype(np.int64)


EDIT = Definition(
    doc="the job on more ranks: groups of the axis grow to `to` ranks, and every rank is copied as often",
    cannot="other effects of size: buckets, the update of sharded weights, skew of more ranks",
    parameters={
        "axis": Parameter(read=str, doc="axis or name of the groups that grow: dp, or world"),
        "to": Parameter(read=whole(1), doc="ranks of each such group: 64"),
    },
    selects="rank",
    whole=rewrite,
)
