"""data: input of a step. Batches are read, decoded and assembled by workers, as far ahead as a queue allows.

data sample=40MB samples=8 read=1GB/s ratio=4 decode=5GB/s          read and decoded in turn by one thread
data sample=150kB samples=256 tier=disk workers=8 rate=200MB/s queue=16
data sample=1MB store=2GB/s producers=8 make=1GB/s commit=5ms queue=4 pause=60s at=9 of=producer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.kernels.arrays import F64, I64
from etude.machine.data_plane import DataPlane
from etude.machine.system import System
from etude.make.transform.edits.below import asked_tier
from etude.make.transform.edits.definition import (
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
from etude.make.transform.rewrite.rewriting import BEFORE, free_stream, free_thread
from etude.make.transform.rewrite.selector import WORLD
from etude.model.job import Job
from etude.model.schema import IS_BATCH, READS_FILE, UNKNOWN, Collective, Kind, Why
from etude.model.trace import Trace

NOWHERE: Final = "rate"
"""Samples come at the rate `read`, not from a tier."""
SYSTEM: Final = "system"
"""Use `data` of the system's file."""
READER: Final = "reader"
PRODUCER: Final = "producer"
_PLANE: Final = {
    "read_bytes_per_s": "read", "store_bytes_per_s": "store", "decode_bytes_per_s": "decode", "workers": "workers",
    "work_bytes_per_s": "rate", "queue": "queue", "producers": "producers", "make_bytes_per_s": "make",
    "commit_ns": "commit", "commit_grows_ns": "grows", "commits": "commits", "reclaim": "reclaim",
    "visible": "visible",
}  # fmt: skip
"""Parameter for each field of `DataPlane`."""


class BatchStages(NamedTuple):
    """Time of a batch in each stage, in ns; `turns`: one thread reads and decodes."""

    size_bytes: int
    read_bytes: int
    read_ns: float
    decode_ns: float
    work_ns: float
    copy_ns: float
    make_ns: float
    """For the batches of all ranks, by one producer."""
    commit_ns: float
    grows_ns: float
    """Additional time of each commit relative to the one before."""
    adaptive: bool
    """A commit contains the batches made while the last one ran, at most half the queue."""
    reclaim: int
    turns: bool
    workers: int
    producers: int
    queue: int

    @property
    def is_free(self) -> bool:
        return not any(self[2:9])


class Fault(NamedTuple):
    pause_ns: int
    at: int
    """The batch that it hits."""
    of: str
    """Whose: `reader` or `producer`."""


def rewrite(
    here: Here, sample: int, samples: int, tier: str, request: int, ratio: float, lanes: str, copy: float, pause: int,
    at: int, of: str, **given: Any,
) -> None:  # fmt: skip
    plane = _plane(here.system, given)
    loaders, total = max(_loaders(here.job), 1), sample * samples
    read, latency_ns = _way(here, tier, plane.read_bytes_per_s / 1e9 or math.inf, request)
    read = min(read, (plane.store_bytes_per_s / 1e9 or math.inf) / loaders)
    if plane.visible == "all" and loaders < here.job.world_size:
        raise UsageError(f"visible=all: {loaders:,} of {here.job.world_size:,} ranks read samples", hint="visible=rank")
    if of == PRODUCER and pause and not plane.producers:
        raise UsageError("of=producer: there is no producer", hint="producers=8 make=1GB/s")
    making = BatchStages(
        size_bytes=total, read_bytes=math.ceil(total / ratio), read_ns=latency_ns + total / ratio / read,
        decode_ns=_takes_ns(total, plane.decode_bytes_per_s), work_ns=_takes_ns(total, plane.work_bytes_per_s),
        copy_ns=total / copy, make_ns=_takes_ns(total * loaders, plane.make_bytes_per_s), commit_ns=plane.commit_ns,
        grows_ns=plane.commit_grows_ns, adaptive=plane.commits == "adaptive", reclaim=plane.reclaim,
        turns=lanes == "one", workers=plane.workers, producers=plane.producers, queue=plane.queue,
    )  # fmt: skip
    if making.is_free and not pause and plane.visible == "rank":
        return
    first = _begins(here.trace, here.rows)
    if not len(first):
        here.note("data: on some ranks no selected node begins a micro-batch; these get no batches")
        return
    taken = _taken(here, first, making)
    ready = _made(here, first, taken, making, Fault(pause, at, of))
    if plane.visible == "all" and here.job.world_size > 1:
        shown = here.made.add(first, BEFORE, "visible", kind=int(Kind.COLL), collective=int(Collective.BARRIER),
                              group=_everyone(here), in_bytes=0, cpu=0, stream=free_stream(here.trace) + 1)  # fmt: skip
        here.made.wait(shown, ready)
        ready = shown
    here.made.wait(taken, ready)


def _plane(system: System | None, given: Mapping[str, Any]) -> DataPlane:
    """The system's data plane with the given values: rates in bytes per ns, 0 if infinite."""
    plane = system.data if system is not None else DataPlane()
    changes: dict[str, Any] = {}
    for field, name in _PLANE.items():
        value = given[name]
        if value is not None:
            rate_of = field.endswith("_bytes_per_s")
            changes[field] = (0.0 if math.isinf(value) else value * 1e9) if rate_of else value
    try:
        return replace(plane, **changes)
    except ClusterError as problem:
        raise UsageError(problem.problem, hint="producers=8") from None


def _takes_ns(size_bytes: int, bytes_per_s: float) -> float:
    return size_bytes / bytes_per_s * 1e9 if bytes_per_s else 0.0


def _way(here: Here, tier: str, read: float, request: int) -> tuple[float, float]:
    """(bytes per ns, latency) of the reads of a rank."""
    if tier == NOWHERE:
        return read, 0.0
    found = asked_tier(here.system, tier, "read=1GB/s")
    return min(read, found.rate(float(request)) / 1e9 * found.part(here.beside)), float(found.latency_ns)


def _begins(trace: Trace, rows: I64) -> I64:
    """The first of these rows in each step and micro-batch, if no input comes from another rank before it."""
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


def _made(here: Here, first: I64, taken: I64, making: BatchStages, fault: Fault) -> I64:
    """Nodes that end the production of each batch: made and committed by a producer, read, decoded, assembled by one
    worker. It begins when there is room in the queue."""
    made, n, thread = here.made, len(first), free_thread(here.trace)
    nodes = _produced(here, first, making, fault)
    took = rounded(np.full(n, making.read_ns), up=True)
    if fault.of == READER:
        took[min(fault.at, n - 1)] += fault.pause_ns
    read = made.add(first, BEFORE - 4, "read", kind=int(Kind.MEM_LOAD), tensor_bytes=making.read_bytes,
                    duration_ns=took, cpu=1, thread=thread)  # fmt: skip
    made.mark(READS_FILE)
    if nodes is not None:
        made.wait(read, nodes[1])
    begins = read if nodes is None else nodes[0]
    made.wait(begins[making.queue :], taken[: max(n - making.queue, 0)], Why.PROGRAM, data=False)
    ends = read
    stages = [
        ("decode", making.decode_ns, np.full(n, thread if making.turns else thread + 1)),
        ("assemble", making.work_ns, thread + 2 + np.arange(n) % making.workers),
    ]
    for place, (name, each_ns, lane) in enumerate(stages):
        if each_ns:
            took = rounded(np.full(n, each_ns), up=True)
            after = made.add(first, BEFORE - 3 + place, name, kind=int(Kind.COMP), duration_ns=took, cpu=1, thread=lane)
            made.wait(after, ends)
            if name == "decode" and making.turns:
                made.wait(read[1:], after[:-1], Why.PROGRAM, data=False)
            ends = after
    return ends


def _produced(here: Here, first: I64, making: BatchStages, fault: Fault) -> tuple[I64, I64] | None:
    """(what begins each batch, what shows it to readers): batch b is made by producer b modulo their number, and
    batches are committed in order, one after another. A paused producer makes its batch after that."""
    if not making.producers:
        return None
    made, n = here.made, len(first)
    thread = free_thread(here.trace) + 2 + making.workers
    starts, commit_of, commit_ns = _commits(n, making)
    took = rounded(np.full(n, making.make_ns), up=True)
    if fault.of == PRODUCER:
        took[min(fault.at, n - 1)] += fault.pause_ns
    # before the first batch of their commit, so that nodes come after what they wait for
    make = made.add(first[starts[commit_of]], BEFORE - 6, "make", kind=int(Kind.COMP), duration_ns=took, cpu=1,
                    thread=thread + 1 + np.arange(n) % making.producers)  # fmt: skip
    commit = made.add(first[starts], BEFORE - 5, "commit", kind=int(Kind.COMP), cpu=1, thread=thread,
                      duration_ns=rounded(commit_ns, up=True))  # fmt: skip
    made.wait(commit[commit_of], make)
    made.wait(commit[1:], commit[:-1], Why.PROGRAM, data=False)
    return make, commit[commit_of]


def _commits(n: int, making: BatchStages) -> tuple[I64, I64, F64]:
    """(the first batch of each commit, the commit that each batch is in, how long each takes). A commit takes longer
    with every one that the manifest holds; a checkpoint leaves no more of them than the queue has batches."""
    pace_ns = making.make_ns / min(making.producers, making.queue)
    starts: list[int] = []
    took: list[float] = []
    commit_of = np.empty(n, np.int64)
    at = held = 0
    while at < n:
        each_ns = making.commit_ns + making.grows_ns * held
        many = 1
        if making.adaptive and each_ns > pace_ns:
            most = max(making.queue // 2, 1)
            many = most if each_ns >= pace_ns * most else math.ceil(each_ns / pace_ns)
        left = making.reclaim - at % making.reclaim if making.reclaim else n
        many = min(many, left, n - at)
        commit_of[at : at + many] = len(starts)
        starts.append(at)
        took.append(each_ns)
        at, held = at + many, held + 1
        if many == left:
            held = min(held, making.queue)
    return np.array(starts, np.int64), commit_of, np.array(took)


def _taken(here: Here, first: I64, making: BatchStages) -> I64:
    """The batch that a step takes: after what the step waited for."""
    took = rounded(np.full(len(first), making.copy_ns), up=True)
    taken = here.made.add(first, BEFORE, "batch", kind=int(Kind.MEM_LOAD), tensor_bytes=making.size_bytes,
                          duration_ns=took, cpu=0, stream=free_stream(here.trace))  # fmt: skip
    here.made.mark(IS_BATCH)
    here.made.enter(first, taken)
    here.made.wait(first, taken)
    return taken


def _or_system(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """None if the system says it."""
    return lambda text: None if text == SYSTEM else read(text)


EDIT = Definition(
    machine=lambda **_: True,
    doc="each micro-batch of a rank that begins with data waits for its batch, which is read, decoded and assembled on "
    "host threads, at most `queue` batches ahead",
    cannot="the real compression of samples and its effect on training; other traffic to the storage",
    parameters={
        "sample": Parameter(read=size, doc="bytes of a sample as used by the step: 40MB"),
        "samples": Parameter(read=whole(1), default="1", doc="samples per micro-batch"),
        "read": Parameter(read=_or_system(rate), default=SYSTEM, doc="read rate of one rank: 1GB/s"),
        "tier": Parameter(read=str, default=NOWHERE, doc="tier of the system that is read: disk"),
        "request": Parameter(read=size, default="0", doc="bytes of a read request, for the slots of the tier"),
        "ratio": Parameter(read=number(above=True), default="1", doc="ratio of sample bytes to bytes read"),
        "decode": Parameter(read=_or_system(rate), default=SYSTEM, doc="decoding rate in sample bytes per second: "
                                                                       "5GB/s"),
        "lanes": Parameter(read=choice("one", "own"), default="one", doc="reading and decoding: in turn, or "
                                                                         "overlapped"),
        "workers": Parameter(read=_or_system(whole(1)), default=SYSTEM, doc="number of workers; each assembles "
                             "one batch at a time"),
        "rate": Parameter(read=_or_system(rate), default=SYSTEM, doc="rate of one worker"),
        "copy": Parameter(read=rate, default="inf", doc="rate of the copy to the device, while nothing else of the "
                                                        "step runs"),
        "queue": Parameter(read=_or_system(whole(1)), default=SYSTEM, doc="batches prepared ahead"),
        "store": Parameter(read=_or_system(rate), default=SYSTEM, doc="read rate of all ranks together"),
        "producers": Parameter(read=_or_system(whole(0)), default=SYSTEM, doc="machines that prepare batches for all "
                               "ranks, each one at a time; 0: ranks read samples"),
        "make": Parameter(read=_or_system(rate), default=SYSTEM, doc="rate of one producer in sample bytes"),
        "commit": Parameter(read=_or_system(time), default=SYSTEM, doc="commit time of a batch, until readers see "
                                                                       "it: 5ms"),
        "grows": Parameter(read=_or_system(time), default=SYSTEM, doc="growth of the commit time from one commit "
                           "to the next"),
        "commits": Parameter(read=_or_system(choice("fixed", "adaptive")), default=SYSTEM, doc="one commit per batch, "
                             "or per as many batches as are prepared meanwhile, at most half the queue"),
        "reclaim": Parameter(read=_or_system(whole(0)), default=SYSTEM, doc="batches between checkpoints, each of "
                             "which leaves `queue` commits in the manifest; 0: no checkpoints"),
        "visible": Parameter(read=_or_system(choice("rank", "all")), default=SYSTEM, doc="a batch is available "
                             "rank by rank, or to all ranks at once"),
        "pause": Parameter(read=time, default="0", doc="an interruption of one batch: 60s"),
        "at": Parameter(read=whole(0), default="0", doc="the batch that it hits"),
        "of": Parameter(read=choice(READER, PRODUCER), default=READER, doc="what is interrupted: reader or producer"),
    },
    selects="compute",
    tier="tier",
    rewrite=rewrite,
)  # fmt: skip
