"""Members of process groups, and the group of each gloo call, which the profiler does not record."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etude.capture.ingest.comm_calls import Call, small, total, type_of
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.model.job import MAX_WORLD
from etude.model.schema import UNKNOWN, Collective, Kind

Members = dict[str, tuple[int, ...] | None]
"""Name of a group of this rank -> its members in order; None if unknown."""


def recorded_groups(
    host: HostTrace | None, device: DeviceTrace | None, listed: Iterable[Mapping[str, Any]] = ()
) -> Members:
    """Groups from all sources: the host trace, the device trace, and `listed` (a manifest, a recorder)."""
    entries: list[Mapping[str, Any]] = []
    if host is not None:
        named = [(g, name) for g in host.groups for name in (g.pg_name, str(g.backend_id or ""))]
        entries += [{"pg_name": name, "ranks": g.ranks, "size": g.group_size} for g, name in named if name]
    config = device.distributed.get("pg_config") if device is not None else None
    entries += [entry for entry in config or () if isinstance(entry, dict)] if isinstance(config, list) else []
    entries += listed
    found: Members = {}
    for entry in entries:
        members = _members(entry)
        name = str(entry.get("pg_name", ""))
        if name and (members is not None or name not in found):
            found[name] = found.get(name) or members
    return found


def _members(entry: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Members; an empty list of ranks means all. A list in a text may have been cut short."""
    size = max(small(entry.get("size") or entry.get("group_size") or entry.get("pg_size") or 0), 0)
    ranks = entry.get("ranks")
    if isinstance(ranks, str):
        ranks = [int(number) for number in re.findall(r"\d{1,9}", ranks)] if "..." not in ranks else None
    if not isinstance(ranks, list) or any(small(rank) < 0 for rank in ranks):
        return None
    return tuple(ranks) if ranks else tuple(range(size)) if 0 < size < MAX_WORLD else None


def set_groups(calls: Sequence[Call], groups: Members) -> None:
    """Fills in the members and the size of each call's group; a rank with a single group uses that one."""
    for call in calls:
        if call.group is None:
            call.group = _only_one(call, groups)
        if call.group is None:
            continue
        known = groups.get(call.group)
        call.members = known or call.members
        if call.members:
            call.size = len(call.members)
        groups[call.group] = call.members


def _only_one(call: Call, groups: Members) -> str | None:
    """The group that a call must be on: the only one, or the only one of the size that its tensors imply."""
    names = list(groups)
    into, out = total(call.inputs), total(call.outputs)
    factor = 0
    if call.collective == Collective.ALL_GATHER and into > 0 and out != UNKNOWN:
        factor = out // into
    elif call.collective in (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK) and out > 0:
        factor = into // out
    elif call.collective == Collective.ALL_TO_ALL and call.in_split:
        factor = len(call.in_split)
    if factor:
        names = [name for name in names if len(groups[name] or ()) == factor]
    return names[0] if len(names) == 1 else None


def set_peers(calls: Sequence[Call], groups: Members, rank: int) -> None:
    """Roots and peers as global ranks. If the group of a message is unknown, all possible ones must agree."""
    for call in calls:
        members = call.members or (groups.get(call.group) if call.group is not None else None)
        choices = [members] if members else [m for m in groups.values() if m]
        call.root = _agreed(call.root, choices)
        peer = _agreed(call.peer, choices)
        if call.kind == Kind.SEND:
            call.src, call.dst = rank, call.dst if call.dst >= 0 else peer
        elif call.kind == Kind.RECV:
            call.src, call.dst = call.src if call.src >= 0 else peer, rank


def _agreed(group_rank: int, choices: Sequence[tuple[int, ...]]) -> int:
    found = {members[group_rank] for members in choices if 0 <= group_rank < len(members)}
    return found.pop() if len(found) == 1 else -1


def set_flight(
    calls: Sequence[Call], entries: Sequence[Mapping[str, Any]], spans: Mapping[int, tuple[int, int]]
) -> None:
    """The group of each call that has none, from the Flight Recorder's entries, which are made inside the call.

    `spans`: start and end of a call's event in Unix time, by its place in `calls`. Without times the entries are taken
    in turn, if they are as many as the calls and of the same types. Messages are not in it.
    """
    timed = [e for e in entries if isinstance(e.get("time_created_ns"), int)]
    wanted = sorted((e for e in timed if not e.get("is_p2p")), key=lambda e: int(e["time_created_ns"]))
    if spans:
        made = [int(e["time_created_ns"]) for e in wanted]
        first = {at: bisect_left(made, start) for at, (start, _) in spans.items()}
        pairs = [(calls[at], wanted[i]) for at, i in first.items() if i < len(made) and made[i] <= spans[at][1]]
    else:
        collectives = [call for call in calls if call.kind == Kind.COLL]
        pairs = list(zip(collectives, wanted, strict=False)) if len(collectives) == len(wanted) else []
    for call, entry in pairs:
        group = entry.get("process_group")
        if call.group is None and same_type(call, str(entry.get("profiling_name", ""))):
            call.group = str(group[0]) if isinstance(group, list) and group else None


def same_type(call: Call, name: str) -> bool:
    """Whether the Flight Recorder means this call: gloo reduces and scatters with an all-reduce."""
    found = type_of(name)
    as_gloo = Collective.ALL_REDUCE if call.collective == Collective.REDUCE_SCATTER else call.collective
    return found in ((call.kind, call.collective), (call.kind, as_gloo))
