"""Schedules from other tools: MSCCL-style XML, or a Chakra trace of sends and receives for each member."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np

from etude.base.errors import ClusterError, MismatchError
from etude.cost.schedule import Put, Schedule
from etude.cost.schedule_points import TransferPoints
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind

_MSCCL = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}
_SENDS = {"s": Put.COPY, "rcs": Put.COPY, "rrs": Put.COPY, "rrcs": Put.COPY}
_RECEIVES = {"r": Put.COPY, "rcs": Put.COPY, "rrs": Put.REDUCE, "rrc": Put.REDUCE, "rrcs": Put.REDUCE}
_LOCAL = ("cpy", "re", "nop")

_Key = tuple[int, int, int]
"""(member, thread block or rank's row, step)."""


# --- MSCCL ----------------------------------------------------------------------------------------------------------


def from_msccl(text: str | bytes) -> Schedule:
    """An `<algo>` of `<gpu>`s, `<tb>`s and `<step>`s. Thread blocks run their steps in order; the k-th send of a block
    meets the k-th receive of the peer's block on that channel; `depid` and `deps` wait for a step of another block."""
    try:
        algo = ElementTree.fromstring(text)
    except ElementTree.ParseError as problem:
        raise ClusterError(f"is not XML: {problem}", where="msccl") from None
    if algo.tag != "algo":
        raise ClusterError(f"`<algo>` expected, `<{algo.tag}>` found", where="msccl")
    where = f"msccl `{algo.get('name', '')}`"
    collective = _MSCCL.get(algo.get("coll", "").lower())
    if collective is None:
        raise ClusterError(f"unknown collective `{algo.get('coll')}`", where=where, hint=f"known: {', '.join(_MSCCL)}")
    gpus, chunks = _number(algo, "ngpus", where), _number(algo, "nchunksperloop", where)
    steps = dict(_steps(algo, gpus, where))
    pairs = _pairs(steps, where)
    points = TransferPoints()
    number: dict[Any, int] = {}
    for key, (step, _) in steps.items():
        if step.get("type") in _SENDS:
            to = pairs[key]
            # The receiver need not have reached its step: a channel has room for what is in progress.
            waits = _before(key, steps, where)
            if step.get("type") in _RECEIVES:
                waits.append((key, "came"))
            put = _RECEIVES[steps[to][0].get("type", "")]
            first, count = _number(step, "srcoff", where), _number(step, "cnt", where)
            number[key] = number[to, "came"] = points.add(key[0], to[0], first, count, put, waits)
        else:
            waits = _before(key, steps, where)
            if step.get("type") in _RECEIVES:
                waits.append((key, "came"))
            number[key] = points.add(key[0], key[0], 0, 0, Put.COPY, waits)
    blocks = chunks * (gpus if collective == Collective.ALL_TO_ALL else 1)
    owners = gpus if collective in (Collective.ALL_GATHER, Collective.ALL_TO_ALL) else 1
    return points.schedule(
        number, where, collective=collective, algorithm=algo.get("name") or "msccl", members=gpus, owners=owners,
        blocks=blocks, protocol=algo.get("proto", "").lower(),
    )  # fmt: skip


def _number(element: ElementTree.Element, name: str, where: str, otherwise: str = "") -> int:
    try:
        return int(element.get(name, otherwise))
    except ValueError:
        raise ClusterError(
            f"`<{element.tag}>`: `{name}` is `{element.get(name)}`, which is not a number", where=where
        ) from None


def _steps(
    algo: ElementTree.Element, gpus: int, where: str
) -> Iterator[tuple[_Key, tuple[ElementTree.Element, ElementTree.Element]]]:
    for gpu in algo.iter("gpu"):
        member = _number(gpu, "id", where)
        if not 0 <= member < gpus:
            raise ClusterError(f"gpu {member} is outside 0..{gpus - 1}", where=where)
        for block in gpu.iter("tb"):
            for at, step in enumerate(block.iter("step")):
                kind = step.get("type", "")
                if kind not in _SENDS and kind not in _RECEIVES and kind not in _LOCAL:
                    known = ", ".join(dict.fromkeys([*_SENDS, *_RECEIVES, *_LOCAL]))
                    raise ClusterError(f"gpu {member}: unknown step type `{kind}`", where=where, hint=f"known: {known}")
                yield (member, _number(block, "id", where), at), (step, block)


def _pairs(steps: dict[_Key, tuple[ElementTree.Element, ElementTree.Element]], where: str) -> dict[_Key, _Key]:
    """Step that sends -> step that receives it."""
    sends: dict[tuple[int, int, int], list[_Key]] = {}
    receives: dict[tuple[int, int, int], list[_Key]] = {}
    for key, (step, block) in steps.items():
        channel = _number(block, "chan", where, "0")
        if step.get("type") in _SENDS:
            sends.setdefault((key[0], _number(block, "send", where), channel), []).append(key)
        if step.get("type") in _RECEIVES:
            receives.setdefault((_number(block, "recv", where), key[0], channel), []).append(key)
    for way in sends.keys() | receives.keys():
        one, other = len(sends.get(way, [])), len(receives.get(way, []))
        if one != other:
            text = f"{way[0]} sends {one} times to {way[1]} on channel {way[2]}, which receives {other} times"
            raise MismatchError(text, where=where)
    return {s: r for way, keys in sends.items() for s, r in zip(keys, receives[way], strict=True)}


def _before(key: _Key, steps: dict[_Key, Any], where: str) -> list[Any]:
    member, block, at = key
    waits: list[Any] = [(member, block, at - 1)] if at else []
    step = steps[key][0]
    block_before = _number(step, "depid", where, "-1")
    if block_before >= 0:
        other = (member, block_before, _number(step, "deps", where, "-1"))
        if other not in steps:
            raise ClusterError(f"gpu {member}: a step waits for step {other[2]} of block {other[1]}", where=where)
        waits.append(other)
    return waits


# --- Chakra ---------------------------------------------------------------------------------------------------------


def from_job(job: Job, collective: Collective = Collective.NONE) -> Schedule:
    """A job of sends and receives as an algorithm: rank i is member i, sizes are those of its nodes. The k-th send to a
    rank with some tag meets the k-th receive there. Other nodes take their duration."""
    points = TransferPoints()
    number: dict[Any, int] = {}
    size: list[int] = []
    receives: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    sends: list[tuple[tuple[int, int, int], tuple[int, int], int]] = []
    member = {int(rank): i for i, rank in enumerate(job.ranks)}
    waits: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, rank in enumerate(job.ranks.tolist()):
        trace = job.traces[job.trace_of[i]]
        peers = job.peer_of[job.peer_start[i] : job.peer_start[i + 1]]
        in_bytes = job.values.get(rank, {}).get("in_bytes", trace.in_bytes)
        for row in range(len(trace)):
            deps = [*trace.data[trace.data_start[row] : trace.data_start[row + 1]].tolist()]
            deps += trace.ctrl[trace.ctrl_start[row] : trace.ctrl_start[row + 1]].tolist()
            waits[i, row] = [(i, d) for d in deps if d >= 0]
            kind = trace.kind[row]
            if kind in (Kind.SEND, Kind.RECV):
                slot = trace.dst[row] if kind == Kind.SEND else trace.src[row]
                peer = int(peers[slot]) if slot >= 0 else -1
                if peer not in member:
                    raise MismatchError(f"node {row} names rank {peer}, which does not exist", where=f"rank {rank}")
                ends = (rank, peer) if kind == Kind.SEND else (peer, rank)
                way = (*ends, int(trace.tag[row] + (job.tag_base[i] if trace.tag[row] >= 0 else 0)))
                if kind == Kind.RECV:
                    receives.setdefault(way, []).append((i, row))
                elif in_bytes[row] == UNKNOWN:
                    raise MismatchError(f"node {row} sends an unknown number of bytes", where=f"rank {rank}")
                else:
                    sends.append((way, (i, row), int(in_bytes[row])))
            else:
                delay = 0 if trace.duration_ns[row] == UNKNOWN else int(trace.duration_ns[row])
                number[i, row] = points.add(i, i, 0, 0, Put.COPY, waits[i, row], delay)
                size.append(0)
    used: dict[tuple[int, int, int], int] = {}
    for way, key, amount in sends:
        at = used.get(way, 0)
        used[way] = at + 1
        if at >= len(receives.get(way, [])):
            raise MismatchError(f"send {at} with tag {way[2]} has no receive on rank {way[1]}", where=f"rank {way[0]}")
        to = receives[way][at]
        number[key] = number[to] = points.add(key[0], to[0], 0, 1, Put.COPY, [*waits[key], *waits[to]])
        size.append(amount)
    for way, rows in receives.items():
        if used.get(way, 0) < len(rows):
            raise MismatchError(f"a receive with tag {way[2]} from rank {way[0]} has no send", where=f"rank {way[1]}")
    made = points.schedule(
        number, job.name, collective=collective, algorithm=job.name or "trace", members=len(job), owners=1, blocks=1
    )
    return replace(made, fixed_bytes=np.array(size, np.int64))
