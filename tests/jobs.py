"""Small traces and jobs for tests, by hand or drawn by hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace


def graph(data: list[list[int]], ctrl: list[list[int]] | None = None, missing: int = 0) -> Trace:
    """Nodes with these dependencies; an entry < 0 is ~k into `missing` ids (900, 901, ...)."""
    b = TraceBuilder()
    for _ in data:
        b.add(Kind.COMP, duration_ns=10)
    return with_deps(b.build(), data, ctrl or [[] for _ in data], missing)


def with_deps(trace: Trace, data: list[list[int]], ctrl: list[list[int]], missing: int = 0) -> Trace:
    columns: dict[str, Any] = {"missing": np.arange(900, 900 + missing, dtype=np.uint64)}
    for name, deps in (("data", data), ("ctrl", ctrl)):
        flat = [d for ds in deps for d in ds]
        columns[f"{name}_start"] = np.cumsum([0, *map(len, deps)]).astype(np.int64)
        columns[name] = np.array(flat, np.int32)
        columns[f"{name}_why"] = np.zeros(len(flat), np.uint8)
    return trace.replace(**columns)


def job_with(*traces: Trace) -> Job:
    """Ranks 0, 1, ... of traces that use no slots."""
    b = [TraceBuilder() for _ in traces]
    return job_of("job", b).replace(traces=traces)


@st.composite
def graphs(draw: DrawFn, acyclic: bool = False) -> Trace:
    """Any graph: duplicates, loops, cycles, missing ids; or one without cycles, its rows in no order."""
    n = draw(st.integers(0, 12))
    missing = draw(st.integers(0, 2))
    place = draw(st.permutations(range(n)))
    deps: list[list[list[int]]] = []
    for _ in range(2):
        part = []
        for node in range(n):
            free = [d for d in range(n) if place[d] < place[node]] if acyclic else list(range(n))
            part.append(
                draw(st.lists(st.sampled_from([*free, *(~k for k in range(missing))]), max_size=3))
                if free or missing
                else []
            )
        deps.append(part)
    return graph(deps[0], deps[1], missing)


def ring_part(draw: DrawFn, b: TraceBuilder, program: list[tuple[str, int, int, int]], rank: int, ranks: int) -> None:
    """The program on one rank: peers are relative, groups are halves of the ranks."""
    base = draw(st.sampled_from([0, 0, 100 * rank]))
    for number, (what, where, tag, size) in enumerate(program):
        row: dict[str, Any] = {"source_id": base + number * 2}
        data = [number - 1] if number and size % 3 else []
        peer = (rank + where) % ranks
        size_bytes = UNKNOWN if size == 7 else size * 10
        if what == "comp":
            b.add(Kind.COMP, data=data, duration_ns=size * 10 - 10, **row)
        elif what == "coll":
            group = None if where == 0 else f"g{rank * 2 // ranks}" if where == 1 else "odd"
            kind = [Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.ALL_GATHER][tag % 3]
            b.add(Kind.COLL, data=data, collective=kind, in_bytes=size_bytes, group=group, **row)
        elif what == "send":
            b.add(Kind.SEND, data=data, dst=peer, tag=tag, in_bytes=size_bytes, **row)
        else:
            b.add(Kind.RECV, data=data, src=(rank - where) % ranks, tag=tag, in_bytes=size_bytes, **row)


@st.composite
def jobs(draw: DrawFn) -> Job:
    """Ranks that mostly run the same programs, now and then broken, with slots bound at random, some ranks absent."""
    ranks = draw(st.integers(1, 5))
    op = st.tuples(
        st.sampled_from(["comp", "coll", "send", "recv"]), st.integers(0, 2), st.integers(-1, 2), st.integers(0, 7)
    )
    programs = draw(st.lists(st.lists(op, max_size=8), min_size=1, max_size=2))
    builders = []
    for rank in range(ranks):
        b = TraceBuilder()
        ring_part(draw, b, draw(st.sampled_from(programs)), rank, ranks)
        builders.append(b)
    half = {f"g{h}": [r for r in range(ranks) if r * 2 // ranks == h] for h in (0, 1)}
    if draw(st.booleans()):
        half["odd"] = draw(st.lists(st.integers(0, ranks), max_size=3))
    job = job_of("drawn", builders, half)
    if len(job.peer_of) and draw(st.booleans()):
        peers = draw(st.lists(st.integers(-1, ranks + 1), min_size=len(job.peer_of), max_size=len(job.peer_of)))
        job = job.replace(peer_of=np.array(peers, np.int64))
    if len(job.group_of) and draw(st.booleans()):
        count = len(job.group_of)
        bound = draw(st.lists(st.integers(0, len(job.groups) - 1), min_size=count, max_size=count))
        job = job.replace(group_of=np.array(bound, np.int32))
    if draw(st.booleans()):
        job = job.replace(
            tag_base=np.array(draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks)), np.int64)
        )
    return job
