"""data: what comes before a step. Batches are read, decoded and put together by workers, as far ahead as a queue goes.

data sample=40MB samples=8 read=1GB/s ratio=4 decode=5GB/s          read and decoded in turn by one thread
data sample=150kB samples=256 from=disk workers=8 rate=200MB/s queue=16
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.cost.tiers.transfers import tier_of
from etude.errors import ClusterError, UsageError
from etude.model.job import Job
from etude.model.schema import IS_BATCH, READS_FILE, UNKNOWN, Collective, Kind, Why
from etude.model.trace import Trace
from etude.transform.edits.definition import (
    Definition,
    Here,
    Parameter,
    choice,
    number,
    rate,
    rounded,
    size,
    time,
    whole,
)
from etude.transform.rewrite.rewriting import BEFORE, free_stream, free_thread
from etude.transform.rewrite.selector import WORLD

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

NOWHERE: Final = "rate"
"""Samples come at `read`, not from a tier."""


class Making(NamedTuple):
    """What a batch takes in each stage, in ns; `turns`: one thread reads and decodes."""

    size_bytes: int
    read_bytes: int
    read_ns: float
    decode_ns: float
    work_ns: float
    copy_ns: float
    turns: bool
    workers: int


def rewrite(
    here: Here, sample: int, samples: int, read: float, tier: str, request: int, ratio: float, decode: float,
    lanes: str, workers: int, rate: float, copy: float, queue: int, store: float, visible: str, pause: int, at: int,
) -> None:  # fmt: skip
    total = sample * samples
    way, latency_ns = _way(here, tier, read, request)
    loaders = _loaders(here.job)
    way = min(way, store / max(loaders, 1))
    if visible == "all" and loaders < here.job.world_size:
        raise UsageError(f"visible=all: {loaders:,} of {here.job.world_size:,} ranks read samples", hint="visible=rank")
    making = Making(
        total, math.ceil(total / ratio), latency_ns + total / ratio / way, total / decode, total / rate, total / copy,
        lanes == "one", workers,
    )  # fmt: skip
    if not any(making[2:6]) and not pause and visible == "rank":
        return
    first = _begins(here.trace, here.rows)
    if not len(first):
        here.note("data: no selected node begins a micro-batch of its own on some ranks; these get no batches")
        return
    taken = _taken(here, first, making)
    ready = _made(here, first, taken, making, queue, (pause, at))
    if visible == "all" and here.job.world_size > 1:
        shown = here.made.add(first, BEFORE, "visible", kind=int(Kind.COLL), collective=int(Collective.BARRIER),
                              group=_everyone(here), in_bytes=0, cpu=0, stream=free_stream(here.trace) + 1)  # fmt: skip
        here.made.wait(shown, ready)
        ready = shown
    here.made.wait(taken, ready)


def _way(here: Here, tier: str, read: float, request: int) -> tuple[float, float]:
    """(bytes per ns, latency) of the reads of a rank."""
    if tier == NOWHERE:
        return read, 0.0
    if here.system is None:
        raise UsageError(f"how fast `{tier}` is read is not known", hint="--system h200-server, or read=1GB/s")
    try:
        found = tier_of(here.system, tier)
    except ClusterError as problem:
        raise UsageError(problem.problem, hint=f"{problem.hint}; or read=1GB/s") from None
    return min(read, found.rate(float(request)) / 1e9), float(found.latency_ns)


def _begins(trace: Trace, rows: I64) -> I64:
    """The first of these rows in each step and micro-batch, where no input comes from another rank before it."""
    phases, words = trace.coded("phase")
    forward = np.array([*(word.startswith("forward") for word in words), not words])[phases]
    rows = rows[forward[rows] & (trace.lane[rows] >= 0) & (trace.cpu[rows] != 1)]
    unit = np.unique(np.stack([trace.step, trace.micro_batch], 1), axis=0, return_inverse=True)[1].reshape(-1)
    some = trace.micro_batch[rows] != UNKNOWN
    rows = rows[some] if some.any() else rows
    first = np.sort(rows[np.unique(unit[rows], return_index=True)[1]])
    received = np.flatnonzero((trace.kind == Kind.RECV) & forward)
    earliest = np.full(int(unit.max(initial=-1)) + 1, len(trace), np.int64)
    np.minimum.at(earliest, unit[received], received)
    return first[earliest[unit[first]] > first]


def _loaders(job: Job) -> int:
    """Ranks that read samples."""
    loads = [bool(len(_begins(t, np.flatnonzero(t.kind == Kind.COMP)))) for t in job.traces]
    return int(np.array(loads)[job.trace_of].sum())


def _everyone(here: Here) -> int:
    for slot, names in enumerate(here.groups):
        if WORLD in names:
            return slot
    raise UsageError("visible=all: the job has no group of all ranks", hint="visible=rank")


def _made(here: Here, first: I64, taken: I64, making: Making, queue: int, pause: tuple[int, int]) -> I64:
    """Nodes that end the making of each batch: read, decoded, put together by one worker. It begins when there is a
    place in the queue."""
    made, n = here.made, len(first)
    thread = free_thread(here.trace)
    took = rounded(np.full(n, making.read_ns), up=True)
    took[min(pause[1], n - 1)] += pause[0]
    nodes = made.add(first, BEFORE - 4, "read", kind=int(Kind.MEM_LOAD), tensor_bytes=making.read_bytes,
                     duration_ns=took, cpu=1, thread=thread)  # fmt: skip
    made.mark(READS_FILE)
    made.wait(nodes[queue:], taken[: max(n - queue, 0)], Why.PROGRAM, data=False)
    stages = [
        ("decode", making.decode_ns, np.full(n, thread if making.turns else thread + 1)),
        ("assemble", making.work_ns, thread + 2 + np.arange(n) % making.workers),
    ]
    for place, (name, each_ns, lane) in enumerate(stages):
        if each_ns:
            took = rounded(np.full(n, each_ns), up=True)
            after = made.add(first, BEFORE - 3 + place, name, kind=int(Kind.COMP), duration_ns=took, cpu=1, thread=lane)
            made.wait(after, nodes)
            if name == "decode" and making.turns:
                made.wait(nodes[1:], after[:-1], Why.PROGRAM, data=False)
            nodes = after
    return nodes


def _taken(here: Here, first: I64, making: Making) -> I64:
    """The batch that a step takes: behind what the step waited for."""
    took = rounded(np.full(len(first), making.copy_ns), up=True)
    taken = here.made.add(first, BEFORE, "batch", kind=int(Kind.MEM_LOAD), tensor_bytes=making.size_bytes,
                          duration_ns=took, cpu=0, stream=free_stream(here.trace))  # fmt: skip
    here.made.mark(IS_BATCH)
    here.made.enter(first, taken)
    here.made.wait(first, taken)
    return taken


EDIT = Definition(
    doc="each micro-batch of a rank that begins with data waits for its batch, which is read, decoded and put together "
    "on threads of the host, at most `queue` batches before it is taken",
    cannot="what samples compress to and what that does to training; other traffic on the way to the storage",
    parameters={
        "sample": Parameter(read=size, doc="bytes of a sample as the step takes it: 40MB"),
        "samples": Parameter(read=whole(1), default="1", doc="of a micro-batch"),
        "read": Parameter(read=rate, default="inf", doc="bytes a second that one rank reads: 1GB/s"),
        "tier": Parameter(read=str, default=NOWHERE, doc="tier of the system that is read: disk"),
        "request": Parameter(read=size, default="0", doc="bytes of a read request, for the slots of the tier"),
        "ratio": Parameter(read=number(above=True), default="1", doc="bytes of a sample over those that are read"),
        "decode": Parameter(read=rate, default="inf", doc="bytes of samples a second: 5GB/s"),
        "lanes": Parameter(read=choice("one", "own"), default="one", doc="reading and decoding: in turn, or beside"),
        "workers": Parameter(read=whole(1), default="1", doc="each puts a batch together, one after another"),
        "rate": Parameter(read=rate, default="inf", doc="bytes a second of one worker"),
        "copy": Parameter(read=rate, default="inf", doc="into the device, while nothing else of the step runs"),
        "queue": Parameter(read=whole(1), default="2", doc="batches made before they are taken"),
        "store": Parameter(read=rate, default="inf", doc="bytes a second that all ranks together read"),
        "visible": Parameter(read=choice("rank", "all"), default="rank", doc="a batch is there rank by rank, or for "
                             "all at once"),
        "pause": Parameter(read=time, default="0", doc="an interruption of one read: 60s"),
        "at": Parameter(read=whole(0), default="0", doc="the batch that it hits"),
    },
    selects="compute",
    rewrite=rewrite,
)  # fmt: skip
