"""Hardware counters that a profiler recorded, summed by what they are counters of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.model.job import Job
from etude.model.schema import COUNTED_KERNEL, COUNTER, UNKNOWN, ValueKind
from etude.model.text import string
from etude.model.trace import Trace

__all__ = ["BY", "counters"]


BY: Final = ("kernel", "operator", "module", "phase", "step", "rank")
"""What counters can be summed by. `operator` is the outermost around a launch."""
NONE: Final = "(none)"


def counters(job: Job, by: Sequence[str] = ("kernel",)) -> pa.Table:
    """One row per value of `by`: count, and the sum of each counter under its own name; null where no node has it. In
    order of first use. A job without counters is refused."""
    if unknown := [name for name in by if name not in BY]:
        raise UsageError(f"counters cannot be summed by `{', '.join(unknown)}`", hint=f"known: {', '.join(BY)}")
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    names: dict[str, None] = {}
    whole = True
    for at in range(len(job)):
        trace = job.traces[job.trace_of[at]]
        nodes, values = _values(trace)
        labels = [_labels(trace, nodes, name, int(job.ranks[at])) for name in by]
        for i in range(len(nodes)):
            key = tuple(label[i] for label in labels)
            row = rows.setdefault(key, {"count": 0})
            row["count"] += 1
            for name, column in values.items():
                if not np.isnan(column[i]):
                    names[name] = None
                    row[name] = row.get(name, 0.0) + float(column[i])
        whole &= all(not name.startswith(COUNTER) or kind != ValueKind.DOUBLE for name, kind in trace.attr_cells())
    if not rows:
        hint = "torch.profiler with experimental_config=_ExperimentalConfig(profiler_metrics=[...])"
        raise UsageError("no hardware counters were recorded in this job", where=job.name, hint=hint)
    kinds = {name: pa.int64() if name in ("step", "rank") else pa.string() for name in by} | {"count": pa.int64()}
    found = [dict(zip(by, key, strict=True)) | row for key, row in rows.items()]
    if whole:
        found = [{key: int(v) if isinstance(v, float) else v for key, v in row.items()} for row in found]
    kinds |= dict.fromkeys(names, pa.int64() if whole else pa.float64())
    return pa.Table.from_pylist(found, schema=pa.schema(list(kinds.items())))


def _values(trace: Trace) -> tuple[I64, dict[str, F64]]:
    """(Nodes that have counters, counter -> value of each; NaN where a node lacks it.)"""
    cells = {key: found for key, found in trace.attr_cells().items() if key[0].startswith(COUNTER)}
    if not cells:
        return np.zeros(0, np.int64), {}
    nodes = np.unique(np.concatenate([rows for rows, _ in cells.values()])).astype(np.int64)
    values: dict[str, F64] = {}
    for (name, kind), (rows, raw) in cells.items():
        column = values.setdefault(name.removeprefix(COUNTER), np.full(len(nodes), np.nan))
        numbers = np.ascontiguousarray(raw).view(np.float64) if kind == ValueKind.DOUBLE else raw.astype(np.float64)
        column[np.searchsorted(nodes, rows)] = numbers
    return nodes, values


def _labels(trace: Trace, nodes: I64, by: str, rank: int) -> list[Any]:
    if by == "rank":
        return [rank] * len(nodes)
    if by == "step":
        return [None if step == UNKNOWN else step for step in trace.step[nodes].tolist()]
    if by in ("module", "phase"):
        codes, words = trace.coded(by)
        return [words[code] if code >= 0 else None for code in codes[nodes].tolist()]
    if by == "operator":
        return [trace.text("name", node) if node >= 0 else NONE for node in _outermost(trace, nodes).tolist()]
    rows, offsets = trace.attr_cells(heap_only=True).get((COUNTED_KERNEL, ValueKind.STRING), (nodes[:0], nodes[:0]))
    name_of = dict(zip(rows.tolist(), offsets.tolist(), strict=True))
    return [string(trace.heap, name_of[node]) if node in name_of else NONE for node in nodes.tolist()]


def _outermost(trace: Trace, nodes: I64) -> I64:
    """The outermost operator around each node; -1: none. Operators of PyTorch are called `library::name`, annotations
    of a program are not."""
    codes, words = trace.coded("name")
    named = np.array(["::" in word for word in words] + [False])[codes]
    found, at = np.full(len(nodes), -1, np.int64), nodes.copy()
    while (at >= 0).any():
        inside = at >= 0
        found = np.where(inside & named[at], at, found)
        at = np.where(inside, trace.parent[at], -1)
    return found
