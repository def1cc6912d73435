"""Summary: the contents of a job, in numbers. Sums are over all ranks, shared traces counted once for each rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.units import format_bytes, format_count, format_time
from etude.kernels.arrays import distinct_values
from etude.model.as_recorded import is_twice_timed
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind, TimeSource
from etude.model.trace import Trace


@dataclass(slots=True)
class Sums:
    """Sums over the ranks of a job; ranks are added one by one, or all of a trace at once."""

    nodes: int = 0
    kinds: list[int] = field(default_factory=lambda: [0] * len(Kind))
    edges: dict[str, int] = field(default_factory=lambda: {"data": 0, "ctrl": 0})
    calls: list[int] = field(default_factory=lambda: [0] * len(Collective))
    call_bytes: list[int] = field(default_factory=lambda: [0] * len(Collective))
    bytes_sent: int = 0
    flops: int | None = None
    duration_ns: int | None = None
    sources: list[int] = field(default_factory=lambda: [0] * len(TimeSource))

    def add(self, trace: Trace, ranks: int = 1) -> None:
        """Adds a trace that this many ranks run."""
        self.nodes += ranks * len(trace)
        for kind, count in enumerate(_counts(trace.kind, len(Kind))):
            self.kinds[kind] += ranks * count
        for name in self.edges:
            self.edges[name] += ranks * len(getattr(trace, name))
        rows = trace.kind == Kind.COLL
        which, in_bytes = trace.collective[rows], trace.in_bytes[rows]
        for c, count in enumerate(_counts(which, len(Collective))):
            if count:
                self.calls[c] += ranks * count
                self.call_bytes[c] += ranks * (_known_sum(in_bytes[which == c]) or 0)
        self.bytes_sent += ranks * (_known_sum(trace.in_bytes[trace.kind == Kind.SEND]) or 0)
        self.flops = _plus(self.flops, ranks, _known_sum(trace.flops[trace.kind == Kind.COMP]))
        self.duration_ns = _plus(self.duration_ns, ranks, _known_sum(trace.duration_ns))
        for source, count in enumerate(_counts(trace.time_source, len(TimeSource)) if is_twice_timed(trace) else ()):
            self.sources[source] += ranks * count

    def told(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "nodes_by_kind": {k.wire_name: self.kinds[k] for k in Kind if self.kinds[k]},
            "data_dependencies": self.edges["data"],
            "ctrl_dependencies": self.edges["ctrl"],
            "collectives": [
                {"type": c.name, "count": self.calls[c], "bytes": self.call_bytes[c]}
                for c in Collective
                if self.calls[c]
            ],
            "p2p": {"sends": self.kinds[Kind.SEND], "recvs": self.kinds[Kind.RECV], "bytes_sent": self.bytes_sent},
            "flops": self.flops,
            "duration_ns": self.duration_ns,
            **({"nodes_by_time_source": sources} if (sources := self._sources()) else {}),
        }

    def _sources(self) -> dict[str, int]:
        """Where the times of nodes come from; nothing of a job that does not say so."""
        return {s.name.lower(): self.sources[s] for s in TimeSource if s and self.sources[s]}


def summary(job: Job) -> dict[str, Any]:
    """ranks, world_size, nodes, nodes_by_kind, collectives, span_ns and more; plain Python values.

    etude.extend.summary(job)["ranks"]
    """
    own = set(job.values)
    plain = np.array([rank not in own for rank in job.ranks.tolist()], bool)
    sums = Sums()
    for trace, ranks in zip(job.traces, np.bincount(job.trace_of[plain], minlength=len(job.traces)), strict=True):
        sums.add(trace, int(ranks))
    for rank in own:
        sums.add(job.trace(rank))
    span = job.timing.span() if job.timing is not None else None
    return described(job, sums, span)


def described(job: Job, sums: Sums, span: tuple[int, int] | None) -> dict[str, Any]:
    """The summary of a job from its sums and its first and last time."""
    return {
        "name": job.name,
        "ranks": len(job.ranks),
        "world_size": job.world_size,
        "distinct_traces": len(job.traces),
        **sums.told(),
        "span_ns": None if span is None else span[1] - span[0],
        "groups": len(job.groups),
        "group_sizes": _group_sizes(job),
    }


def _counts(values: NDArray[np.uint8], size: int) -> list[int]:
    return np.bincount(values, minlength=size)[:size].tolist()


def _known_sum(values: NDArray[np.int64]) -> int | None:
    """Exact sum: Python's integers do not overflow. None if nothing is known."""
    known = values[values != UNKNOWN]
    high, low = known >> 31, known & 0x7FFFFFFF
    return (int(high.sum()) << 31) + int(low.sum()) if len(known) else None


def _plus(sum_: int | None, ranks: int, more: int | None) -> int | None:
    return sum_ if more is None or not ranks else (sum_ or 0) + ranks * more


def _group_sizes(job: Job) -> dict[str, int]:
    """Size in ranks -> number of groups of that size; `unknown` if the source did not name the members."""
    sizes = np.diff(job.groups.start)
    found = {
        str(s): int(((sizes == s) & job.groups.known).sum()) for s in distinct_values(sizes[job.groups.known]).tolist()
    }
    unknown = int((~job.groups.known).sum())
    return found | ({"unknown": unknown} if unknown else {})


def for_people(found: Mapping[str, Any]) -> dict[str, str]:
    """A summary with units, under the names that a reader sees."""
    shown = {
        "job": found["name"],
        "ranks": f"{found['ranks']:,} of {found['world_size']:,}",
        "distinct traces": f"{found['distinct_traces']:,}",
        "nodes": f"{found['nodes']:,}",
    }
    shown |= {f"  {kind}": f"{count:,}" for kind, count in found["nodes_by_kind"].items()}
    if sources := found.get("nodes_by_time_source"):
        shown["times of nodes"] = ", ".join(f"{count:,} {source}" for source, count in sources.items())
    shown["dependencies"] = f"{found['data_dependencies']:,} data, {found['ctrl_dependencies']:,} control"
    for row in found["collectives"]:
        shown[f"  {row['type']}"] = f"{row['count']:,} calls, {format_bytes(row['bytes'])} in"
    if found["p2p"]["sends"] or found["p2p"]["recvs"]:
        p2p = found["p2p"]
        sent = format_bytes(p2p["bytes_sent"])
        shown["point to point"] = f"{p2p['sends']:,} sends, {p2p['recvs']:,} receives, {sent} sent"
    sizes = ", ".join(f"{count:,} of {size}" for size, count in found["group_sizes"].items())
    shown["groups"] = f"{found['groups']:,}" + (f" ({sizes} ranks)" if sizes else "")
    if found["flops"] is not None:
        shown["operations"] = format_count(found["flops"])
    if found["duration_ns"] is not None:
        shown["node time"] = format_time(found["duration_ns"])
    shown["span"] = "no times recorded" if found["span_ns"] is None else format_time(found["span_ns"])
    writer = dict(found["written_by"])
    if writer.pop("dry", ""):
        shown["dry run"] = _dry_run(writer.pop("memory", ""))
    shown["written by"] = ", ".join(f"{k} {v}" for k, v in writer.items()) or "unknown"
    return shown


def _dry_run(memory: str) -> str:
    """What is said of a program that never ran: its memory, as its job has it, is an object in JSON."""
    try:
        peaks = json.loads(memory)
        allocated, reserved = (int(peaks[f"peak_{kind}_bytes"]) for kind in ("allocated", "reserved"))
    except (ValueError, KeyError, TypeError):
        return "yes"
    return f"yes; peak memory {format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved"
