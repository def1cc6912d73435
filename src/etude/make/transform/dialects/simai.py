"""A job as the text workload of SimAI (the one that AICB writes): one program for all ranks, one line a collective.

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 8 ...
    3
    name  -1  ns ALLGATHER bytes  1 NONE 0  1 NONE 0  1          a collective of a tensor-parallel group
    name  -1  ns NONE 0           1 NONE 0  1 ALLREDUCE bytes 1  a collective of a data-parallel group

Tensor-parallel groups are neighbours, data-parallel ones as far apart as these are wide: the text has no others.
Compute before a collective is its forward time. The text has no dependencies: collectives run one after the other,
those of data-parallel groups in the backward pass, behind all compute. 1 ns is written where nothing computes. An
all-reduce of all ranks next to groups is one among neighbours and one across them.
"""

from __future__ import annotations

import re
from typing import Final

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.model.fold import fold
from etude.model.graph import topological_order
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

_WORDS: Final = {
    Collective.ALL_REDUCE: "ALLREDUCE",
    Collective.ALL_GATHER: "ALLGATHER",
    Collective.REDUCE_SCATTER: "REDUCESCATTER",
    Collective.ALL_TO_ALL: "ALLTOALL",
}
_NONE: Final = "NONE\t0"
_NOTHING: Final = f"1\t{_NONE}"


def simai_text(job: Job, took_ns: I64 | None = None) -> str:
    """The text. `took_ns`: time of each node of the program, if the job has none."""
    job = fold(job)
    trace = _program(job)
    took = trace.duration_ns if took_ns is None else took_ns
    width, kinds = _groups(job)
    lines, compute_ns = [], 0
    for row in topological_order(trace).tolist():
        if trace.kind[row] == Kind.COMP and trace.cpu[row] != 1:
            if took[row] < 0:
                hint = "--system dgx-h100 gives times to nodes without one"
                raise UsageError(f"node `{trace.text('name', row)}` has no time, which the text needs", hint=hint)
            compute_ns += int(took[row])
        elif trace.kind[row] == Kind.COLL:
            lines.append(_line(job, trace, row, compute_ns, kinds[int(trace.group[row])], width))
            compute_ns = 0
    if compute_ns or not lines:
        lines.append(f"rest\t-1\t{max(compute_ns, 1)}\tNONE\t0\t{_NOTHING}\t{_NOTHING}\t1")
    head = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {width} ep: 1 pp: 1 vpp: 1 ga: 1 "
        f"all_gpus: {job.world_size} checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    return "\n".join([head, str(len(lines)), *lines]) + "\n"


def _program(job: Job) -> Trace:
    """The one program of all ranks, checked for what the text can express."""
    if len(job) < job.world_size:
        raise UsageError(f"{len(job):,} of {job.world_size:,} ranks are present")
    if len(job.traces) > 1 or job.values:
        hint = "use no pipeline stages, and the same sizes on every rank"
        raise UsageError("ranks do not run the same program, but SimAI reads one text for all", hint=hint)
    trace = job.traces[0]
    known = {int(Kind.COMP), int(Kind.COLL), int(Kind.METADATA)}
    if other := sorted(set(trace.kind.tolist()) - known):
        raise UsageError(f"{Kind(other[0]).name.lower()} nodes cannot be written in SimAI's text")
    calls = trace.collective[trace.kind == Kind.COLL]
    if other := sorted(set(calls.tolist()) - {int(c) for c in _WORDS}):
        raise UsageError(f"{Collective(other[0]).name.lower()} cannot be written in SimAI's text")
    return trace


def _groups(job: Job) -> tuple[int, dict[int, str]]:
    """(Width of tensor-parallel groups, slot -> `tp`, `dp` or `both`); -1 is the slot of all ranks."""
    world, trace = job.world_size, job.traces[0]
    used = sorted({int(slot) for slot in trace.group[trace.kind == Kind.COLL].tolist()})
    members = {slot: [_members(job, rank, slot) for rank in range(world)] for slot in used}
    widths = set()
    for slot in used:
        first = members[slot][0]
        if 1 < len(first) < world:
            widths.add(len(first) if first[1] == 1 else first[1])
    width = min(widths, default=world)
    kinds = {}
    for slot in used:
        blocks = [list(range(r // width * width, r // width * width + width)) for r in range(world)]
        across = [list(range(r % width, world, width)) for r in range(world)]
        if world % width == 0 and members[slot] in (blocks, across):
            kinds[slot] = "tp" if members[slot] == blocks else "dp"
            continue
        if all(len(found) == world for found in members[slot]) and _only_reduces(trace, slot):
            kinds[slot] = "both"
            continue
        raise UsageError(
            f"a group of {len(members[slot][0])} ranks ({members[slot][0][:4]}...) is neither neighbours nor across "
            f"groups of {width}, and SimAI's text has no others"
        )
    return width, kinds


def _only_reduces(trace: Trace, slot: int) -> bool:
    calls = trace.collective[(trace.kind == Kind.COLL) & (trace.group == slot)]
    return bool((calls == Collective.ALL_REDUCE).all())


def _members(job: Job, rank: int, slot: int) -> list[int]:
    found = None if slot < 0 else job.groups.ranks(int(job.group_slots(rank)[slot]))
    if slot >= 0 and found is None:
        raise UsageError("the members of a group are not known")
    return list(range(job.world_size)) if found is None else sorted(found.tolist())


def _line(job: Job, trace: Trace, row: int, compute_ns: int, kind: str, width: int) -> str:
    what, size = Collective(int(trace.collective[row])), int(trace.in_bytes[row])
    if size < 0:
        raise UsageError(f"collective `{trace.text('name', row)}` has no size")
    if what == Collective.ALL_GATHER:  # there the size is that of the result
        size *= width if kind == "tp" else job.world_size // width
    sent = f"{_WORDS[what]}\t{size}"
    name = re.sub(r"\s+", "_", trace.text("name", row)) or "collective"
    in_forward, in_backward = (sent if kind in ("tp", "both") else _NONE), (sent if kind in ("dp", "both") else _NONE)
    return f"{name}\t-1\t{max(compute_ns, 1)}\t{in_forward}\t{_NOTHING}\t1\t{in_backward}\t1"
