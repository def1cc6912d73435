"""Jobs one after another on the same ranks, as one job.

    in_sequence("steps", [a, b], [0, 1, 0], [0, 0])     # a, then b, then a again

Each begins when the one before it has ended on its rank, and when the host has done its work for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from etude.kernels.arrays import I64
from etude.make.generate.ranks import Bindings, job_of
from etude.model.build import build_trace
from etude.model.job import Groups, Job
from etude.model.schema import COLUMN, NODE, Kind
from etude.model.trace import Trace

DERIVED: Final = ("source_id", "lane", "layout", "io", "parent")
SLOTS: Final = ("group", "src", "dst")


def in_sequence(name: str, jobs: Sequence[Job], order: Sequence[int], host_ns: Sequence[float]) -> Job:
    """`host_ns`: work of the host beside each job; 0: none. All ranks of a job run one program."""
    groups, peers = ([0, *np.cumsum([_slots(job)[k] for job in jobs]).tolist()] for k in (0, 1))
    first = {"group": groups, "src": peers, "dst": peers}
    columns: dict[str, list[Any]] = {c.name: [] for c in NODE if c.name not in DERIVED}
    words: dict[str, list[str]] = {c.name: [] for c in NODE if c.is_text}
    edges, ends, rows = list[tuple[I64, I64]](), np.zeros(0, np.int64), 0
    for turn, which in enumerate(order):
        trace, host = jobs[which].traces[0], host_ns[which]
        for column in columns:
            base = first[column][which] if column in SLOTS else 0
            columns[column].append(_column(trace, column, base, words.get(column, [])))
        columns["step"][-1] = np.full(len(trace), turn, np.int32)
        inner, roots, lasts = _edges(trace)
        edges.append((inner[0] + rows, inner[1] + rows))
        beginners = roots + rows
        if host:
            for column in columns:
                columns[column].append(_host(column, host, turn, words.get(column, [])))
            beginners = np.append(beginners, rows + len(trace))
        edges.append((np.repeat(beginners, len(ends)), np.tile(ends, len(beginners))))
        ends = np.append(lasts + rows, [rows + len(trace)] if host else [])
        rows += len(trace) + bool(host)
    given: dict[str, Any] = {column: np.concatenate(parts) for column, parts in columns.items()}
    texts = {column: (given.pop(column), words[column]) for column in words}
    slots = [f"{slot}.{k}" for k, job in enumerate(jobs) for slot in job.traces[0].group_slots]
    made = build_trace(given | texts, data=_csr(edges, rows), group_slots=slots, peer_slots=peers[-1])
    return job_of(name, [made], np.zeros(len(jobs[0]), np.int64), _bound(jobs), {})


def _slots(job: Job) -> tuple[int, int]:
    return len(job.traces[0].group_slots), job.traces[0].peer_slots


def _column(trace: Trace, name: str, base: int, words: list[str]) -> Any:
    """A column of a trace, its slots counted from `base`, its text as codes of `words`."""
    if not COLUMN[name].is_text:
        values = getattr(trace, name)
        return np.where(values >= 0, values + base, values) if name in SLOTS else values
    codes, more = trace.coded(name)
    words += more
    return np.where(codes >= 0, codes.astype(np.int64) + len(words) - len(more), -1)


def _host(name: str, host_ns: float, turn: int, words: list[str]) -> Any:
    """A column of the node of the host's work."""
    if name == "name":
        words.append("host")
        return np.array([len(words) - 1])
    own = {"kind": int(Kind.COMP), "cpu": 1, "duration_ns": round(host_ns), "step": turn}
    return np.array([own.get(name, -1 if COLUMN[name].is_text else COLUMN[name].default)])


def _edges(trace: Trace) -> tuple[tuple[I64, I64], I64, I64]:
    """Dependencies (row, row that it waits for), rows that wait for none, and rows for which none waits."""
    node = np.concatenate(
        [np.repeat(np.arange(len(trace)), np.diff(start)) for start in (trace.data_start, trace.ctrl_start)]
    )
    waited = np.concatenate([trace.data, trace.ctrl]).astype(np.int64)
    rows = np.arange(len(trace))
    return (node, waited), rows[~np.isin(rows, node)], rows[~np.isin(rows, waited)]


def _csr(edges: Sequence[tuple[I64, I64]], rows: int) -> tuple[I64, I64]:
    node, waited = (np.concatenate([part[k] for part in edges]).astype(np.int64) for k in (0, 1))
    pairs = np.unique(np.stack([node, waited], 1), axis=0)
    return np.searchsorted(pairs[:, 0], np.arange(rows + 1)), pairs[:, 1]


def _bound(jobs: Sequence[Job]) -> Bindings:
    """Groups and peers of every rank: those of each job in turn."""
    entries = [
        (f"{job.groups.names[g]}.{k}", job.groups.ranks(g))
        for k, job in enumerate(jobs)
        for g in range(len(job.groups))
    ]
    before = np.cumsum([0] + [len(job.groups) for job in jobs])
    group_of, peer_of = list[I64](), list[I64]()
    ranks = range(len(jobs[0]))
    for rank in ranks:
        for k, job in enumerate(jobs):
            group_of.append(job.group_of[job.group_start[rank] : job.group_start[rank + 1]] + before[k])
            peer_of.append(job.peer_of[job.peer_start[rank] : job.peer_start[rank + 1]])
    slots = [sum(_slots(job)[k] for job in jobs) for k in (0, 1)]
    return Bindings(
        Groups.of([(name, None if members is None else members.tolist()) for name, members in entries]),
        np.arange(len(ranks) + 1) * slots[0],
        np.concatenate(group_of).astype(np.int32),
        np.arange(len(ranks) + 1) * slots[1],
        np.concatenate(peer_of).astype(np.int64),
    )
