"""Plans the program of a rank of which only sizes are known: generated, anonymised and learned jobs, and `.et`
files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.ops import OpTable
from etude.cost.traces import ops_of
from etude.model.feeder.feed import feeder
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.call_tree import owners
from etude.run.replay.kinds import dtype_of_class, stand_in_kind
from etude.run.replay.program import NOTHING, CommKind, Program, StandInKind

_COMMS: Final = (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV))
_MOVES: Final = (int(Kind.MEM_LOAD), int(Kind.MEM_STORE))


def plan_sized(job: Job, rank: int) -> Program:
    """Nodes are played in the order of the feeder; a communication is waited for before the first node that depends on
    it."""
    trace = job.trace(rank)
    b = ProgramBuilder(rank=rank, world_size=job.world_size, job=job.name)
    order = feeder(trace, missing="drop").rank(0).drain().tolist()
    table = ops_of(trace)
    _, names = trace.coded("name")
    codes, _ = trace.coded("name")
    waiting: dict[int, int] = {}
    needs = _needed(trace)
    begun: set[int] = set()
    if not (trace.step != UNKNOWN).any():
        b.mark(0)
    works = _works(trace, table)
    for node in order:
        step = int(trace.step[node])
        if step != UNKNOWN and step not in begun:
            b.mark(len(begun))
            begun.add(step)
        for comm in needs(node):
            if comm in waiting:
                b.wait(waiting.pop(comm), node=node)
        if trace.kind[node] in _COMMS:
            waiting[node] = _comm(b, job, rank, trace, node, names[int(codes[node])] if codes[node] >= 0 else "")
            continue
        if not works[node]:
            continue
        flops, size = int(table.flops[node]), int(table.size_bytes[node])
        if trace.kind[node] in _MOVES and size < 0:
            size = int(trace.tensor_bytes[node])
        kind = stand_in_kind(int(table.op_class[node])) if trace.kind[node] == int(Kind.COMP) else StandInKind.COPY
        dims = [int(c[node]) for c in (table.m, table.n, table.k, table.batch)]
        b.stand_in(
            kind,
            names[int(codes[node])] if codes[node] >= 0 else "",
            flops=max(flops, 0),
            size_bytes=max(size, 0),
            dtype=dtype_of_class(int(table.dtype[node]), "float32" if trace.cpu[node] == 1 else "bfloat16"),
            dims=dims if dims[0] > 0 else (),
            node=node,
            work_ns=max(int(trace.duration_ns[node]), 0),
        )
    for comm in waiting.values():
        b.wait(comm)
    b.about |= {"steps": max(len(begun), 1), "source": "sized"}
    return b.build()


def _works(trace: Trace, table: OpTable) -> NDArray[np.bool_]:
    """Nodes that do work: those on devices. If no device was recorded, the host operators of which the work is known,
    except those inside another such operator."""
    worker = np.isin(trace.kind, (int(Kind.COMP), *_MOVES))
    on_device = worker & (trace.cpu != 1)
    if on_device.any():
        return on_device
    known = worker & ((table.flops > 0) | (table.size_bytes > 0))
    around = owners(trace.parent, np.where(known, np.arange(len(trace)), -1))
    inside = np.where(trace.parent >= 0, around[np.maximum(trace.parent, 0)], -1) >= 0
    return known & ~inside


def _needed(trace: Trace) -> Callable[[int], list[int]]:
    """A function that returns the communications on which a node depends."""
    is_comm = np.isin(trace.kind, _COMMS)

    def needs(node: int) -> list[int]:
        found: list[int] = []
        for start, edges in ((trace.data_start, trace.data), (trace.ctrl_start, trace.ctrl)):
            near = edges[start[node] : start[node + 1]]
            found += near[(near >= 0) & is_comm[np.maximum(near, 0)]].tolist()
        return found

    return needs


def _comm(b: ProgramBuilder, job: Job, rank: int, trace: Trace, node: int, label: str) -> int:
    kind = int(trace.kind[node])
    size_in, size_out = (int(c[node]) if c[node] != UNKNOWN else 0 for c in (trace.in_bytes, trace.out_bytes))
    group, peer = NOTHING, NOTHING
    if kind == int(Kind.COLL):
        what = CommKind(int(trace.collective[node])) if trace.collective[node] <= 10 else CommKind.ALL_REDUCE
        slot = int(trace.group[node])
        number = int(job.group_slots(rank)[slot]) if slot >= 0 else -1
        members = job.groups.ranks(number) if number >= 0 else None
        if members is not None:
            group = b.group(members.tolist(), job.groups.names[number])
    else:
        what = CommKind.SEND if kind == int(Kind.SEND) else CommKind.RECV
        slot = int(trace.dst[node] if kind == int(Kind.SEND) else trace.src[node])
        peer = int(job.peer_slots(rank)[slot]) if slot >= 0 else NOTHING
    return b.comm(
        what,
        in_bytes=max(size_in, 0),
        out_bytes=max(size_out, 0) or max(size_in, 0),
        dtype="uint8",
        group=group,
        peer=peer,
        tag=max(int(trace.tag[node]), 0),
        is_async=True,
        label=label,
        node=node,
    )
