"""Where a device's time goes: compute, communication, memory, idle; and how far groups of nodes overlap.

Of several things that run at once the first of compute, communication, memory counts, so that

    compute + exposed communication + exposed memory + idle = span

to the nanosecond. A span goes from the first start to the last end on the rank's device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.counting import OURS, Counting
from etude.analyse.runs import Run, Use, by_rank, on_device, pattern_of, runs, uses
from etude.errors import TraceError, UsageError
from etude.kernels.intervals import time_by_mask
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.timing import Timing

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

COMPUTE, COMMUNICATION, MEMORY = 1, 2, 4
"""Bits of a mask."""
_BIT = np.zeros(len(Use), np.uint8)
_BIT[[Use.COMPUTE, Use.COMMUNICATION, Use.MEMORY]] = COMPUTE, COMMUNICATION, MEMORY
_NS = ("span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "memory_ns", "exposed_memory_ns", "idle_ns")


def use_bits(use: U8) -> U8:
    """The bit of each use in a mask."""
    return _BIT[use]


def breakdown(job: Job, timing: Timing, counting: Counting = OURS) -> pa.Table:
    """A row a rank: span_ns, compute_ns, comm_ns, exposed_comm_ns, memory_ns, exposed_memory_ns, idle_ns, overlap_pct.

    `comm_ns` and `memory_ns` count whether something hides them or not; `overlap_pct` is the part of communication
    that compute hides, null where there is none.
    """
    rows = [(run.at, _spent(run, counting)) for run in runs(job, timing)]
    return by_rank(job, rows, {**dict.fromkeys(_NS, pa.int64()), "overlap_pct": pa.float64()})


def _spent(run: Run, counting: Counting) -> dict[str, Any]:
    total = _masks(run, counting)
    mask = np.arange(len(total))
    compute, comm, memory = ((mask & bit) > 0 for bit in (COMPUTE, COMMUNICATION, MEMORY))
    comm_ns = int(total[comm].sum())
    row: dict[str, Any] = {
        "span_ns": int(total.sum()),
        "compute_ns": int(total[compute].sum()),
        "comm_ns": comm_ns,
        "exposed_comm_ns": int(total[comm & ~compute].sum()),
        "memory_ns": int(total[memory].sum()),
        "exposed_memory_ns": int(total[mask == MEMORY].sum()),
        "idle_ns": int(total[0]),
        "overlap_pct": 100 * int(total[comm & compute].sum()) / comm_ns if comm_ns else None,
    }
    parts = row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_memory_ns"] + row["idle_ns"]
    if parts != row["span_ns"]:
        raise TraceError(f"the parts of the time sum to {parts} ns, the span is {row['span_ns']} ns")
    return row


def _masks(run: Run, counting: Counting) -> I64:
    use = uses(run.trace, counting)
    rows = np.flatnonzero(on_device(run, use, counting))
    return np.asarray(_time_by_mask(run, rows, use_bits(use[rows]), 3))


def _time_by_mask(run: Run, rows: I64, bits: U8, width: int) -> I64:
    start, end = run.start_ns[rows], run.end_ns[rows]
    wrong = np.flatnonzero(end < start)
    if len(wrong):
        node = int(rows[wrong[0]])
        raise TraceError(f"it ends before it starts, at {end[wrong[0]]} and {start[wrong[0]]} ns", where=f"node {node}")
    return np.asarray(time_by_mask(start, end, bits, width))


def kernel_types(job: Job, timing: Timing, counting: Counting = OURS) -> pa.Table:
    """Time in which exactly these classes run, a row for each rank and combination: rank, running, time_ns."""
    names = {COMPUTE: "compute", COMMUNICATION: "communication", MEMORY: "memory"}
    labels = [" + ".join(name for bit, name in names.items() if mask & bit) or "idle" for mask in range(8)]
    rows = [(int(job.ranks[i]), labels[m], int(t)) for run in runs(job, timing) for total in [_masks(run, counting)]
            for i in run.at.tolist() for m, t in enumerate(total.tolist()) if t]  # fmt: skip
    rows.sort(key=lambda row: (row[0], -row[2], row[1]))
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    kinds = {"rank": pa.int32(), "running": pa.string(), "time_ns": pa.int64()}
    return pa.table({name: pa.array(c, kinds[name]) for name, c in zip(kinds, columns, strict=True)})


# -- overlap of any two groups -----------------------------------------------------------------------------------------


def overlap(
    job: Job, timing: Timing, a: str = "compute", b: str = "communication", counting: Counting = OURS
) -> pa.Table:
    """A row a rank: span_ns, a_ns, b_ns, both_ns, and which part of each the other hides.

    A group is `compute`, `communication`, `memory`, a collective (`all_reduce`), `name:REGEX`, `module:REGEX`,
    `phase:REGEX` or `stream:7`; several with `|` between them are one group.
    """
    rows = []
    for run in runs(job, timing):
        use = uses(run.trace, counting)
        device = on_device(run, use, counting)
        bits = (group_mask(run, use, a) + 2 * group_mask(run, use, b)).astype(np.uint8)
        total = _time_by_mask(run, np.flatnonzero(device), bits[device], 2)
        a_ns, b_ns, both = int(total[1] + total[3]), int(total[2] + total[3]), int(total[3])
        row = {"span_ns": int(total.sum()), "a_ns": a_ns, "b_ns": b_ns, "both_ns": both}
        share = {"a_hidden_pct": a_ns, "b_hidden_pct": b_ns}
        rows.append((run.at, row | {name: 100 * both / ns if ns else None for name, ns in share.items()}))
    kinds = {name: pa.int64() for name in ("span_ns", "a_ns", "b_ns", "both_ns")}
    return by_rank(job, rows, kinds | {"a_hidden_pct": pa.float64(), "b_hidden_pct": pa.float64()})


def group_mask(run: Run, use: U8, group: str) -> Bool:
    """Nodes of the device that belong to a group as `overlap` names it."""
    found = np.zeros(len(run.trace), bool)
    for part in group.split("|"):
        found |= _part_mask(run, use, part.strip())
    return found & (use != Use.NONE) & (use != Use.HOST)


def _part_mask(run: Run, use: U8, part: str) -> Bool:
    trace = run.trace
    plain = {"compute": Use.COMPUTE, "communication": Use.COMMUNICATION, "memory": Use.MEMORY}
    if part in plain:
        return use == plain[part]
    key, colon, value = part.partition(":")
    if colon and key in ("name", "module", "phase"):
        codes, words = trace.coded(key)
        pattern = pattern_of(value)
        return np.array([bool(pattern.search(word)) for word in words] + [False])[codes]
    if colon and key == "stream" and value.isdecimal():
        return trace.stream == int(value)
    names = [c.name.lower() for c in Collective if c]
    if part.replace("-", "_").lower() in names:
        return (trace.kind == Kind.COLL) & (trace.collective == Collective.parse(part))
    raise UsageError(
        f"no such group of nodes: `{part}`",
        hint=f"known: {', '.join([*plain, 'name:REGEX', 'module:REGEX', 'phase:REGEX', 'stream:N', *names])}",
    )
