"""Anonymise: the same job, node by node, without its words.

What a simulation looks at stays: kinds, dependencies, call tree, durations, bytes, FLOPs, who is in which group, peers,
tags, priorities, micro-batches; sizes and times as they are, or rounded. Steps are counted from 0. Names, phases,
modules and group names become numbered tokens, one for each distinct word. Everything else that was recorded (values,
shapes, types, strides, attributes that no column holds, metadata, profiler ids, fields newer than the schema) is left
out. Nothing of the original heap is copied but, if wanted, shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.model import text
from etude.model.as_recorded import TIMES_TOLD, has_both_times, without_recorded
from etude.model.job import DEFAULT_METADATA, VALUE_COLUMNS, Groups, Job
from etude.model.rounding import on_grid
from etude.model.schema import NODE, UNKNOWN, Collective, Kind, ValueKind
from etude.model.timing import Timing
from etude.model.trace import Attr, Layout, Trace, complete_layouts, constant, lanes

RENAMED: Final = {"name": "op", "phase": "phase", "module": "module"}
"""Text columns whose words become tokens, and the names of the tokens."""
SHAPES: Final = ("in_shapes", "in_types", "in_strides", "out_shapes", "out_types", "out_strides")
DROPPED: Final = ("in_values", "out_values", "rf_id", "external_id", "correlation")
KEPT_ATTRIBUTES: Final = (("involved_dim", ValueKind.BOOL_LIST),)
"""Attributes outside of columns that a simulator reads: which network dimensions a collective uses."""

assert {c.name for c in NODE if c.is_text} <= {*RENAMED, *SHAPES, *DROPPED}, "a text column without a rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymiseOptions:
    """What to keep beyond what a simulation needs."""

    keep_shapes: bool = False
    """Shapes, types and strides stay, as text of numbers and type names."""
    keep_times: bool = True
    """Recorded start times stay, counted from the first one."""
    per_octave: int = 0
    """Times, bytes and FLOPs are rounded to this many values per octave, none of them a power of two; recorded start
    times are dropped, since they would reveal the exact values. 0: they stay exact."""
    work: bool = False
    """FLOPs and bytes that follow from names and shapes are filled in before these are dropped."""
    name: str = "anonymous"

    @property
    def times_stay(self) -> bool:
        return self.keep_times and not self.per_octave

    def __post_init__(self) -> None:
        if not 0 <= self.per_octave <= 1024:
            raise UsageError(f"{self.per_octave} values per octave", hint="1 (coarse) to 1024; 0: no rounding")


@dataclass(slots=True)
class Hidden:
    """What was hidden, and the words behind the tokens: keep it, or delete it."""

    tokens: dict[str, dict[str, str]] = field(default_factory=dict)
    """Column -> token -> original. This is the key to the copy."""
    counts: Counter[str] = field(default_factory=Counter)
    _known: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def __repr__(self) -> str:  # counts only: output and logs must not reveal the words
        words = sum(map(len, self.tokens.values()))
        return f"Hidden({words:,} words, {sum(self.counts.values()):,} other values)"

    def token(self, column: str, original: bytes) -> str:
        """The token of a word, always the same."""
        words = self.tokens.setdefault(column, {})
        found = self._known.get((column, original))
        if found is None:
            found = self._known[column, original] = f"{RENAMED[column]}{len(words)}"
            words[found] = original.decode(errors="backslashreplace")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The report: what was hidden, how, and how many values."""
        found = [
            {"what": f"{column} (distinct words)", "became": "numbered tokens", "count": len(words)}
            for column, words in self.tokens.items()
        ]
        return found + [{"what": what, "became": _BECAME[what], "count": n} for what, n in self.counts.items() if n]


_BECAME: Final = {
    "shapes, types, strides": "left out",
    "values, profiler ids": "left out",
    "attributes": "left out",
    "fields newer than the schema": "left out",
    "threads": "numbered",
    "kinds newer than the schema": "INVALID",
    "metadata": "replaced",
    "notes and provenance": "left out",
    "start times": "counted from the first",
    "start times left out": "left out",
    "FLOPs and bytes": "filled in from shapes",
    "sizes and times": "rounded",
    "steps": "counted from 0",
}


def kept(options: AnonymiseOptions) -> list[dict[str, Any]]:
    """What the copy keeps of the original: the rest of the report."""
    found = {
        "kinds, dependencies, call tree, lanes": "kept",
        "times, bytes, FLOPs": f"kept, {options.per_octave} values per octave"
        if options.per_octave
        else "kept exactly",
        "collectives, members of groups, peers, ranks": "kept",
        "tags, priorities, micro-batches, source ids": "kept",
    }
    if options.keep_shapes:
        found["shapes, types, strides"] = "kept"
    return [{"what": what, "became": became, "count": None} for what, became in found.items()]


def anonymise(job: Job, options: AnonymiseOptions | None = None) -> tuple[Job, Hidden]:
    """(the copy, what was hidden). Ranks that shared a trace share its copy.

    copy, hidden = etude.anonymise(job)
    """
    options = options or AnonymiseOptions()
    hidden = Hidden()
    threads = _numbered([trace.thread[trace.thread != UNKNOWN] for trace in job.traces])
    hidden.counts["threads"] = len(threads)
    first_step = _first_step(job)
    hidden.counts["steps"] = first_step
    traces = tuple(_hide(trace, options, threads, first_step, hidden) for trace in _other_times(job, options))
    # Each group gets a number of its own; "0" means all ranks to those who read a file without a group table.
    numbers = tuple(str(number + 1) for number in range(len(job.groups)))
    groups = Groups(numbers, job.groups.start, job.groups.members, job.groups.known)
    hidden.tokens["group"] = dict(zip(numbers, job.groups.names, strict=True))
    hidden.counts["metadata"] = len(job.metadata)
    hidden.counts["notes and provenance"] = len(job.notes) + len(job.provenance)
    return (
        job.replace(
            name=options.name,
            traces=traces,
            groups=groups,
            metadata=(DEFAULT_METADATA,),
            metadata_of=np.zeros(len(job), np.int32),
            values={rank: dict(own) | _rounded(own, options, hidden) for rank, own in job.values.items()},
            timing=_times(job, options, hidden),
            provenance={"tool": "etude anonymise"} | {k: v for k, v in job.provenance.items() if k in TIMES_TOLD},
            notes=(),
        ),
        hidden,
    )


def _numbered(columns: Sequence[NDArray[np.int64]]) -> dict[int, int]:
    """Ids -> 1, 2, ... in order of first use; 0 is for nodes without a thread, and stays."""
    seen: dict[int, int] = {}
    for column in columns:
        values, first = np.unique(column, return_index=True)
        for value in values[np.argsort(first)].tolist():
            if value:
                seen.setdefault(value, len(seen) + 1)
    return seen


def _first_step(job: Job) -> int:
    """The smallest number of a step: the age of a run is private."""
    known = [int(t.step[t.step != UNKNOWN].min()) for t in job.traces if (t.step != UNKNOWN).any()]
    return max(min(known, default=0), 0)


def _hide(trace: Trace, options: AnonymiseOptions, threads: dict[int, int], first_step: int, hidden: Hidden) -> Trace:
    n = len(trace)
    writer = text.HeapWriter()
    changed: dict[str, Any] = _work(trace, hidden) if options.work else {}
    changed |= _rounded({c: changed.get(c, getattr(trace, c)) for c in VALUE_COLUMNS}, options, hidden)
    if first_step:
        changed["step"] = np.where(trace.step == UNKNOWN, UNKNOWN, trace.step - first_step)
    for column in RENAMED:
        changed[column] = _tokens(trace, column, writer, hidden)
    for column in SHAPES:
        if options.keep_shapes:
            changed[column] = _copied(trace.heap, getattr(trace, column), writer)
        else:
            hidden.counts["shapes, types, strides"] += int((getattr(trace, column) >= 0).sum())
            changed[column] = constant(column, n)
    for column in DROPPED:
        hidden.counts["values, profiler ids"] += int((getattr(trace, column) != constant(column, n)).sum())
        changed[column] = constant(column, n)
    has = [np.any([changed[f"{side}_{c}"] >= 0 for c in ("shapes", "types")], axis=0) for side in ("in", "out")]
    changed["io"] = (has[0] | has[1].astype(np.uint8) << 1).astype(np.uint8)
    changed["thread"] = _mapped(trace.thread, threads)
    newer = trace.kind == Kind.OTHER
    hidden.counts["kinds newer than the schema"] += int(newer.sum())
    changed["kind"] = np.where(newer, np.uint8(Kind.INVALID), trace.kind)
    changed["collective"] = np.where(trace.collective == Collective.OTHER, np.uint8(0), trace.collective)
    changed |= _attributes(trace, options, writer, hidden)
    hidden.counts["fields newer than the schema"] += len(trace.extra_row)
    lane, lane_kind, lane_id = lanes(changed["kind"], trace.cpu, changed["thread"], trace.stream)
    copy = trace.replace(
        **changed,
        heap=writer.heap(),
        extra_row=np.zeros(0, np.int32),
        extra=np.zeros(0, np.int64),
        lane=lane,
        lane_kind=lane_kind,
        lane_id=lane_id,
        group_slots=tuple(f"g{slot}" for slot in range(len(trace.group_slots))),
    )
    layouts, layout = complete_layouts(copy)
    return copy.replace(layouts=layouts, layout=layout)


def _rounded(values: Mapping[str, NDArray[Any]], options: AnonymiseOptions, hidden: Hidden) -> dict[str, NDArray[Any]]:
    """Columns rounded to the grid. The output of a communication keeps its ratio to the input."""
    if not options.per_octave:
        return {}
    found = {}
    for column, exact in values.items():
        known = exact > 0
        found[column] = np.where(known, on_grid(np.where(known, exact, 1), options.per_octave), exact).astype(
            exact.dtype
        )
        hidden.counts["sizes and times"] += int((found[column] != exact).sum())
    if {"in_bytes", "out_bytes"} <= set(found):
        both = (values["in_bytes"] > 0) & (values["out_bytes"] > 0)
        times = values["out_bytes"] / np.where(both, values["in_bytes"], 1)
        found["out_bytes"] = np.where(both, np.rint(found["in_bytes"] * times), found["out_bytes"]).astype(np.int64)
    return found


def _tokens(trace: Trace, column: str, writer: text.HeapWriter, hidden: Hidden) -> NDArray[np.int64]:
    codes, unique = text.intern(trace.heap, getattr(trace, column))
    words = [text.slice_bytes(trace.heap, int(offset)) for offset in unique]
    # An empty word needs no token.
    tokens = [writer.put(hidden.token(column, word)) if word else -1 for word in words]
    return np.append(np.array(tokens, np.int64), -1)[codes]


def _copied(heap: NDArray[np.uint8], offsets: NDArray[np.int64], writer: text.HeapWriter) -> NDArray[np.int64]:
    codes, unique = text.intern(heap, offsets)
    placed = [writer.put(text.slice_bytes(heap, int(offset))) for offset in unique]
    return np.append(np.array(placed, np.int64), -1)[codes]


def _mapped(column: NDArray[np.int64], numbers: dict[int, int]) -> NDArray[np.int64]:
    values, inverse = np.unique(column, return_inverse=True)
    return np.array([numbers.get(v, v) for v in values.tolist()], np.int64)[inverse.ravel()]


def _attributes(trace: Trace, options: AnonymiseOptions, writer: text.HeapWriter, hidden: Hidden) -> dict[str, Any]:
    """Layouts of what columns hold, and of the few attributes that simulators read."""
    gone = {*DROPPED, *(() if options.keep_shapes else SHAPES), *(() if options.times_stay else ("start_ns",))}
    used = np.bincount(trace.layout, minlength=len(trace.layouts)) if len(trace) else np.zeros(len(trace.layouts), int)
    layouts: list[Layout] = []
    for number, layout in enumerate(trace.layouts):
        kept = tuple(
            Attr(a.name, a.kind, column=a.column)
            for a in layout
            if (a.column and a.column not in gone) or (a.in_cell and (a.name, a.kind) in KEPT_ATTRIBUTES)
        )
        hidden.counts["attributes"] += int(used[number]) * sum(1 for a in layout if not a.column)
        layouts.append(kept)
    cells = np.zeros(0, np.int64)
    for key in KEPT_ATTRIBUTES:
        found = trace.attr_cells(heap_only=True).get(key)
        if found:
            hidden.counts["attributes"] -= len(found[0])
            cells = _copied(trace.heap, found[1], writer)
    return {"layouts": tuple(layouts), "cells": cells}


def _times(job: Job, options: AnonymiseOptions, hidden: Hidden) -> Timing | None:
    timing = job.timing
    if timing is None:
        return None
    known = [int(start[start != UNKNOWN].min()) for start in timing.start_ns if (start != UNKNOWN).any()]
    hidden.counts["start times" if options.times_stay else "start times left out"] = sum(
        int((start != UNKNOWN).sum()) for start in timing.start_ns
    )
    if not options.times_stay or not known:
        return None
    first = min(known)

    def shifted(blocks: tuple[NDArray[np.int64], ...]) -> tuple[NDArray[np.int64], ...]:
        return tuple(np.where(block == UNKNOWN, UNKNOWN, block - first) for block in blocks)

    return Timing(
        origin=timing.origin,
        start_ns=shifted(timing.start_ns),
        end_ns=shifted(timing.end_ns),
        block_of=timing.block_of,
        clock_offset_ns=timing.clock_offset_ns,
        aligned=timing.aligned,
        partial=timing.partial,
    )


def _other_times(job: Job, options: AnonymiseOptions) -> list[Trace]:
    """The traces with their times under the profiler counted from the first, where start times stay; else without."""
    if not has_both_times(job) or not options.times_stay:
        return [without_recorded(trace) for trace in job.traces]
    first = min(int(trace.recorded_start_ns.min()) for trace in job.traces)
    return [
        trace.replace(recorded_start_ns=trace.recorded_start_ns - first, recorded_end_ns=trace.recorded_end_ns - first)
        for trace in job.traces
    ]


def _work(trace: Trace, hidden: Hidden) -> dict[str, Any]:
    """FLOPs and bytes of compute nodes, if names and shapes determine them and the trace has none."""
    from etude.cost.traces import ops_of

    ops = ops_of(trace)
    compute = trace.kind == Kind.COMP
    flops = np.where(compute & (trace.flops == UNKNOWN), ops.flops, trace.flops)
    size = np.where(compute & (trace.tensor_bytes == UNKNOWN), ops.size_bytes, trace.tensor_bytes)
    hidden.counts["FLOPs and bytes"] += int((flops != trace.flops).sum() + (size != trace.tensor_bytes).sum())
    return {"flops": flops, "tensor_bytes": size}
