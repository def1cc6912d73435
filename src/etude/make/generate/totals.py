"""Bytes of a generated job by purpose of its groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from etude.make.generate.blocks.ops import Stream
from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.totals import communication, known, programs
from etude.model.trace import Trace


def by_group(job: Job) -> dict[str, dict[str, int]]:
    """Input bytes of all ranks by purpose of the group and by type. Groups are `tp`, `dp`, `ep`, ...; for messages
    `cp`, `pp`, `border`."""
    found: dict[str, dict[str, int]] = {}
    for trace, ranks in programs(job):
        sent = known(trace.in_bytes)
        for label, members in _groups(trace):
            for name, rows in communication(trace):
                size = ranks * int(sent[rows & members].sum())
                if size:
                    kinds = found.setdefault(label, {})
                    kinds[name] = kinds.get(name, 0) + size
    return found


def _groups(trace: Trace) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for slot, label in enumerate(trace.group_slots):
        yield label, (trace.group == slot) & (trace.kind == Kind.COLL)
    send = trace.kind == Kind.SEND
    yield "pp", send & (trace.stream == Stream.PIPELINE)
    yield "cp", send & (trace.stream == Stream.CONTEXT)
    yield "border", send & (trace.stream == Stream.BORDER)
