"""Where a device's time goes, rank by rank; and how far groups of nodes overlap. `measures` has the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.counting import OURS, Counting
from etude.analyse.device_work import left_over, on_device, uses_as
from etude.analyse.grouping import by_rank, pattern_of
from etude.analyse.measures import CLASSES, COLUMNS, measures, time_by_bits, time_by_class
from etude.base.errors import UsageError
from etude.kernels.arrays import U8, Bool
from etude.model.run import Run, RunPart
from etude.model.schema import Collective, Kind
from etude.model.use import Use

__all__ = ["breakdown", "kernel_types", "not_counted", "overlap"]


def breakdown(run: Run, counting: Counting = OURS) -> pa.Table:
    """One row per rank with all measures: span_ns, compute_ns, comm_ns, exposed_comm_ns, memory_ns, exposed_memory_ns,
    idle_ns, overlap_pct.

    etude.breakdown(run)
    """
    return by_rank(run.job, [(part.at, part_measures(part, counting)) for part in run.parts()], COLUMNS)


def part_measures(part: RunPart, counting: Counting = OURS) -> dict[str, Any]:
    """All measures of the ranks of a part."""
    use = uses_as(part.trace, counting)
    return measures(part, np.flatnonzero(on_device(part, use, counting)), use)


def not_counted(run: Run) -> pa.Table:
    """Device work of an earlier step that was launched before the recording began, by rank that has any: rank, count,
    time_ns (as long as it takes, added up), span_ns (from its first start to its last end)."""
    rows = []
    for part in run.parts():
        left = np.flatnonzero(left_over(part))
        if len(left):
            start, end = part.start_ns[left], part.end_ns[left]
            figures = len(left), int((end - start).sum()), int(end.max() - start.min())
            rows += [(rank, *figures) for rank in run.job.ranks[part.at].tolist()]
    columns = zip(*sorted(rows), strict=True) if rows else ([], [], [], [])
    names = ("rank", "count", "time_ns", "span_ns")
    return pa.table({name: pa.array(list(one), pa.int64()) for name, one in zip(names, columns, strict=True)})


def kernel_types(run: Run, counting: Counting = OURS) -> pa.Table:
    """Time in which exactly these classes run, a row for each rank and combination: rank, running, time_ns."""
    names = [use.label for use in CLASSES]
    rows = []
    for part in run.parts():
        use = uses_as(part.trace, counting)
        total = time_by_class(part, np.flatnonzero(on_device(part, use, counting)), use)
        for mask in np.flatnonzero(total).tolist():
            label = " + ".join(name for bit, name in enumerate(names) if mask >> bit & 1) or "idle"
            rows += [(rank, label, int(total[mask])) for rank in run.job.ranks[part.at].tolist()]
    rows.sort(key=lambda row: (row[0], -row[2], row[1]))
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    kinds = {"rank": pa.int32(), "running": pa.string(), "time_ns": pa.int64()}
    return pa.table({name: pa.array(c, kinds[name]) for name, c in zip(kinds, columns, strict=True)})


# -- overlap of any two groups -----------------------------------------------------------------------------------------


def overlap(run: Run, a: str = "compute", b: str = "communication", counting: Counting = OURS) -> pa.Table:
    """One row per rank: span_ns, a_ns, b_ns, both_ns, and the fraction of each that the other hides.

    A group is `compute`, `communication`, `memory`, a collective (`all_reduce`), `name:REGEX`, `module:REGEX`,
    `phase:REGEX` or `stream:7`; several with `|` between them are one group.
    """
    rows = []
    for part in run.parts():
        use = uses_as(part.trace, counting)
        device = on_device(part, use, counting)
        bits = (group_mask(part, use, a) + 2 * group_mask(part, use, b)).astype(np.uint8)
        total = time_by_bits(part, np.flatnonzero(device), bits[device], 2)
        a_ns, b_ns, both = int(total[1] + total[3]), int(total[2] + total[3]), int(total[3])
        row = {"span_ns": int(total.sum()), "a_ns": a_ns, "b_ns": b_ns, "both_ns": both}
        share = {"a_hidden_pct": a_ns, "b_hidden_pct": b_ns}
        rows.append((part.at, row | {name: 100 * both / ns if ns else None for name, ns in share.items()}))
    kinds = {name: pa.int64() for name in ("span_ns", "a_ns", "b_ns", "both_ns")}
    return by_rank(run.job, rows, kinds | {"a_hidden_pct": pa.float64(), "b_hidden_pct": pa.float64()})


def group_mask(part: RunPart, use: U8, group: str) -> Bool:
    """Nodes of the device that belong to a group as `overlap` names it."""
    found = np.zeros(len(part.trace), bool)
    for one in group.split("|"):
        found |= _named_mask(part, use, one.strip())
    return found & (use != Use.NONE) & (use != Use.HOST)


def _named_mask(part: RunPart, use: U8, name: str) -> Bool:
    trace = part.trace
    plain = {one.label: one for one in CLASSES}
    if name in plain:
        return use == plain[name]
    key, colon, value = name.partition(":")
    if colon and key in ("name", "module", "phase"):
        codes, words = trace.coded(key)
        pattern = pattern_of(value)
        return np.array([bool(pattern.search(word)) for word in words] + [False])[codes]
    if colon and key == "stream" and value.isdecimal():
        return trace.stream == int(value)
    names = [c.name.lower() for c in Collective if c]
    if name.replace("-", "_").lower() in names:
        return (trace.kind == Kind.COLL) & (trace.collective == Collective.parse(name))
    hint = f"known: {', '.join([*plain, 'name:REGEX', 'module:REGEX', 'phase:REGEX', 'stream:N', *names])}"
    raise UsageError(f"unknown group of nodes: `{name}`", hint=hint)
