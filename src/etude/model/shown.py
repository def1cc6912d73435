"""How a job, its times and a run are shown in a notebook. They are read through their fields only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from etude.base.notebook import card, note, shares
from etude.base.units import format_time
from etude.model.frames import frames
from etude.model.schema import UNKNOWN, Kind

if TYPE_CHECKING:
    from etude.model.job import Job
    from etude.model.run import Run
    from etude.model.timing import Timing

WORDS = {"COMP": "compute", "COMM_COLL": "collectives", "COMM_SEND": "sends", "COMM_RECV": "receives"}

AT_ONCE = 1 << 20
"""Nodes that are counted at a time: counting takes eight bytes for each."""


def job_html(job: Job) -> str:
    counts = np.zeros(len(Kind), np.int64)
    ranks = np.bincount(job.trace_of, minlength=len(job.traces))
    for trace, many in zip(job.traces, ranks.tolist(), strict=True):
        for first in range(0, len(trace), AT_ONCE):
            counts += many * np.bincount(trace.kind[first : first + AT_ONCE], minlength=len(Kind))[: len(Kind)]
    rows = [(_name(k), float(counts[k]) / max(job.nodes, 1), f"{counts[k]:,}") for k in Kind if counts[k]]
    return card("job", job.name, _facts(job, job.timing), shares(rows), _notes(job))


def timing_html(timing: Timing) -> str:
    sizes = np.array([len(block) for block in timing.start_ns] or [0], np.int64)
    known = [int(((s != UNKNOWN) & (e != UNKNOWN)).sum()) for s, e in zip(timing.start_ns, timing.end_ns, strict=True)]
    told = np.array(known or [0], np.int64)
    facts = [
        ("origin", timing.origin.name.lower()),
        ("ranks", len(timing.block_of)),
        ("sets of times", len(timing.start_ns)),
        ("nodes with times", f"{told[timing.block_of].sum():,} of {sizes[timing.block_of].sum():,}"),
        ("span", _span(timing)),
        ("one clock", timing.aligned),
        ("cut off", timing.partial),
    ]
    return card("timing", "Times of nodes", facts)


def run_html(run: Run) -> str:
    """The facts of the job and, by kind of node, the total time of its nodes; operators that only call others have
    none."""
    count, time_ns = np.zeros(len(Kind), np.int64), np.zeros(len(Kind))
    for part in run.parts():
        own = part.timed & ~frames(part.trace)
        kind, long = part.trace.kind[own], (part.end_ns - part.start_ns)[own]
        count += len(part.at) * np.bincount(kind, minlength=len(Kind))[: len(Kind)]
        time_ns += len(part.at) * np.bincount(kind, long, minlength=len(Kind))[: len(Kind)]
    rows = [
        (_name(k), time_ns[k] / (time_ns.sum() or 1.0), f"{format_time(round(time_ns[k]))} in {count[k]:,} nodes")
        for k in Kind
        if count[k]
    ]
    where = [("system", run.system.name)] if run.system is not None else []
    told = [("times", run.timing.origin.name.lower()), *where]
    return card("run", run.job.name, [*_facts(run.job, run.timing), *told], shares(rows), _notes(run.job))


def _facts(job: Job, timing: Timing | None) -> list[tuple[str, Any]]:
    whole = "" if len(job.ranks) == job.world_size else f" of {job.world_size:,}"
    return [
        ("ranks", f"{len(job.ranks):,}{whole}"),
        ("distinct programs", len(job.traces)),
        ("nodes", job.nodes),
        ("groups", len(job.groups)),
        ("span", "no times recorded" if timing is None else _span(timing)),
    ]


def _span(timing: Timing) -> str:
    span = timing.span()
    return "not known" if span is None else format_time(span[1] - span[0])


def _name(kind: Kind) -> str:
    plain = kind.wire_name.removesuffix("_NODE")
    return WORDS.get(plain) or plain.replace("_", " ").lower()


def _notes(job: Job) -> str:
    more = f"; {len(job.notes) - 3:,} more notes" if len(job.notes) > 3 else ""
    told = "; ".join(f"rank {one.rank}: {one.what}" for one in job.notes[:3])
    return note(told + more) if told else ""
