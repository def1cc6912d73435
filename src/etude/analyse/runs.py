"""What every analysis starts from: programs with their times, and what each node is to a device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.counting import OURS, Counting
from etude.errors import MismatchError, UsageError
from etude.files import let_go
from etude.model.frames import SEGMENT, frames
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.timing import Timing
from etude.model.trace import Trace

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class Use(IntEnum):
    """What a node is to the device of its rank. Where several run at once, the smallest number counts."""

    NONE = 0
    """Takes no time of its own there: metadata, frames, records of a wait."""
    COMPUTE = 1
    COMMUNICATION = 2
    MEMORY = 3
    """Copies and fills."""
    HOST = 4
    """Runs on the host and is no work of a device: beside one that has work of its own, or between operators."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One program with one set of times, and the ranks that have both in common."""

    at: I64
    """Positions of these ranks among those present."""
    trace: Trace
    start_ns: I64
    end_ns: I64

    @property
    def timed(self) -> Bool:
        """Nodes whose start and end are known."""
        return (self.start_ns != UNKNOWN) & (self.end_ns != UNKNOWN)


def runs(job: Job, timing: Timing) -> Iterator[Run]:
    """The runs of a job, each once however many ranks share it. What lies in files is in memory for one at a time."""
    if len(timing.block_of) != len(job.ranks):
        raise MismatchError(f"the timing has {len(timing.block_of)} ranks, the job {len(job.ranks)}")
    own = np.full(len(job.ranks), -1, np.int64)
    for rank in job.values:
        own[job.index(rank)] = rank
    keys = np.stack([job.trace_of.astype(np.int64), timing.block_of.astype(np.int64), own], 1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(inverse.reshape(-1), kind="stable")
    bounds = np.searchsorted(inverse.reshape(-1)[order], np.arange(len(unique) + 1))
    for number, (t, block, rank) in enumerate(unique.tolist()):
        trace = job.traces[t] if rank < 0 else job.trace(rank)
        start, end = timing.start_ns[block], timing.end_ns[block]
        if len(start) != len(trace):
            raise MismatchError(f"times of {len(start)} nodes for a trace of {len(trace)}")
        yield Run(order[bounds[number] : bounds[number + 1]], trace, start, end)
        let_go()


_COMM: Final = re.compile(r"^nccl|^rccl|^hccl|ncclKernel|ncclDevKernel|rcclKernel|^gloo:")
_MEMORY: Final = re.compile(r"^(hip)?Mem(cpy|set)|^dma|^__amd_rocclr_(copy|fill)|^CopyDevice|^FillBuffer")
_FILL: Final = re.compile(r"^(hip)?Memset|^__amd_rocclr_fill|^FillBuffer")
_WAIT: Final = re.compile(r"^(Stream Wait Event|Event Sync|Stream Sync|Context Sync|Device Sync)|^event_(wait|record)$")
_COMPUTES: Final = re.compile(
    r"^(?!autograd::|torch::autograd::|c10d::|_c10d|torch\.distributed)[\w.]+::|CompiledFxGraph"
)
"""Operators on the host that compute: of a library (`aten::mm`), or what the compiler fused; not those of the engine
that calls them, of communication, or a name that somebody gave to a part of the program."""
_BY_KIND = np.zeros(256, np.uint8)
_BY_KIND[Kind.COMP] = Use.COMPUTE
_BY_KIND[[Kind.SEND, Kind.RECV, Kind.COLL]] = Use.COMMUNICATION
_BY_KIND[[Kind.MEM_LOAD, Kind.MEM_STORE]] = Use.MEMORY


def uses(trace: Trace, counting: Counting = OURS) -> U8:
    """Use of each node. Where nothing runs on a device, the host is the device, with what its operators compute.

    A kernel's kind says what it is; kernels that a profiler recorded without one are known by their names, as NCCL's
    and the driver's copies are.
    """
    use = _uses(trace)
    if counting.fills_compute:
        rows = np.flatnonzero(use == Use.MEMORY)
        codes, words = trace.coded("name", rows)
        use[rows[np.array([bool(_FILL.search(word)) for word in words] + [False])[codes]]] = Use.COMPUTE
    return use


def _uses(trace: Trace) -> U8:
    use = _BY_KIND[trace.kind]
    host = trace.cpu == 1
    device = (use != Use.NONE) & ~host
    # Messages that do not say where they run make no device: gloo's are the host's.
    if (device & ((use != Use.COMMUNICATION) | (trace.cpu == 0))).any():
        _by_name(trace, use, device & (use == Use.COMPUTE))
        talks = device & (use == Use.COMMUNICATION)
        beside = host & (use != Use.NONE) & ((use != Use.COMMUNICATION) | talks.any())
        use[beside] = Use.HOST
    else:
        _on_the_host(trace, use)
    use[frames(trace)] = Use.NONE
    return use


def pattern_of(text: str) -> re.Pattern[str]:
    """A pattern that a user gave."""
    try:
        return re.compile(text)
    except re.error as problem:
        raise UsageError(f"`{text}` is no regular expression: {problem}") from None


def segments(trace: Trace) -> Bool:
    """Nodes that are host time between operators: of the operator around them, or of nobody."""
    codes, words = trace.coded("name")
    return (codes == words.index(SEGMENT)) & (trace.cpu == 1) if SEGMENT in words else np.zeros(len(trace), bool)


def _on_the_host(trace: Trace, use: U8) -> None:
    """Where the host is the device: what a profiler recorded between operators computes if an operator that computes
    was at it, and else is the host's own, which the device has nothing of. Other traces have no such time in them."""
    between = segments(trace)
    if not between.any():
        return
    codes, words = trace.coded("name")
    computes = np.array([bool(_COMPUTES.search(word)) for word in words] + [False])[codes]
    inside = np.where(between & (trace.parent >= 0), computes[trace.parent], computes & ~between)
    use[(use == Use.COMPUTE) & ~inside] = Use.HOST


def _by_name(trace: Trace, use: U8, unsure: Bool) -> None:
    rows = np.flatnonzero(unsure)
    codes, words = trace.coded("name", rows)
    of_word = np.full(len(words) + 1, Use.COMPUTE, np.uint8)  # the last is that of no name
    for number, word in enumerate(words):
        if _COMM.search(word):
            of_word[number] = Use.COMMUNICATION
        elif _MEMORY.search(word):
            of_word[number] = Use.MEMORY
        elif _WAIT.search(word):
            of_word[number] = Use.NONE
    use[rows] = of_word[codes]


def on_device(run: Run, use: U8, counting: Counting = OURS) -> Bool:
    """Nodes with known times that occupy the device, each kernel once; without those left over from before the
    recording."""
    found = run.timed & (use != Use.NONE) & (use != Use.HOST) & ~carried_along(run)
    if not counting.host_messages and (found & (run.trace.cpu != 1)).any():
        found &= run.trace.cpu != 1
    return found & ~left_over(run, counting.earlier)


def carried_along(run: Run) -> Bool:
    """Messages that a kernel carried beside its first. Several tensors or messages that were put together go in one
    kernel; each is a node with the kernel's times, and only the first has its stream."""
    trace = run.trace
    found = np.zeros(len(trace), bool)
    own = run.timed & (trace.cpu == 0) & (trace.correlation != UNKNOWN)
    more = np.flatnonzero(own & (trace.stream == UNKNOWN))
    if not len(more):
        return found
    first = np.flatnonzero(own & (trace.stream != UNKNOWN) & np.isin(trace.correlation, trace.correlation[more]))
    seen = {_kernel(run, i) for i in first.tolist()}
    found[[i for i in more.tolist() if _kernel(run, i) in seen]] = True
    return found


def _kernel(run: Run, node: int) -> tuple[int, int, int]:
    return int(run.trace.correlation[node]), int(run.start_ns[node]), int(run.end_ns[node])


def left_over(run: Run, rule: str = OURS.earlier) -> Bool:
    """Device work of an earlier step, launched before the recording began: nothing in the trace launched it, and on its
    stream it starts before everything that something did.

    It does not count where several steps were recorded, since it belongs to none of them, nor where the device was at
    work before the host's first event, since then the recording cuts through it. Other tools have other rules, as
    `Counting.earlier` says, and go by the missing launch alone.
    """
    trace = run.trace
    nothing = np.zeros(len(trace), bool)
    device = run.timed & (trace.cpu == 0)
    host = trace.cpu == 1
    caused = trace.parent >= 0
    if rule == "never" or not host.any() or not (device & ~caused).any():
        return nothing
    edges = np.flatnonzero(trace.data_why == Why.LAUNCH)
    caused[np.searchsorted(trace.data_start, edges, "right") - 1] = True
    stated = np.flatnonzero(device & caused)
    if not len(stated) or len(stated) == np.count_nonzero(device):
        return nothing
    several = len(np.unique(trace.step[trace.step != UNKNOWN])) > 1
    if rule == "always" or (rule == "steps" and several):
        return device & ~caused
    begins = np.full(len(trace.lane_kind) + 1, run.start_ns[stated].min(), np.int64)
    begins[np.unique(trace.lane[stated])] = np.iinfo(np.int64).max
    np.minimum.at(begins, trace.lane[stated], run.start_ns[stated])
    found = device & ~caused & (run.start_ns < begins[trace.lane])
    cut = found.any() and run.start_ns[found].min() < run.start_ns[host & run.timed].min(initial=2**62)
    return found if rule == "cut" and (several or cut) else nothing


def by_rank(job: Job, rows: list[tuple[I64, dict[str, Any]]], names: dict[str, Any]) -> pa.Table:
    """A table with a row a rank: `rows` pairs positions of ranks with the values that they share."""
    found: list[dict[str, Any]] = [{} for _ in range(len(job.ranks))]
    for at, values in rows:
        for i in at.tolist():
            found[i] = values
    columns = {"rank": pa.array(job.ranks, pa.int32())}
    for name, kind in names.items():
        columns[name] = pa.array([row.get(name) for row in found], kind)
    return pa.table(columns)
