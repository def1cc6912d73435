"""relax: the order of a schedule as a hint. Edges that only keep the program's order between two actions are cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.model.schema import UNKNOWN, Kind, Why
from etude.transform.edits.definition import Definition, Here

I64 = NDArray[np.int64]


def rewrite(here: Here) -> None:
    """An action is a pass, forward or backward, of one micro-batch. Calls of a group keep their order: members that
    took them in another would wait for one another."""
    trace = here.trace
    owner = np.repeat(np.arange(len(trace)), np.diff(trace.ctrl_start))
    waited = np.maximum(trace.ctrl, 0)
    chosen = np.zeros(len(trace), bool)
    chosen[here.rows] = True
    codes, words = trace.coded("phase")
    is_backward = np.array([*(word.startswith("backward") for word in words), False])[codes]
    known = (trace.micro_batch != UNKNOWN) & (codes >= 0)
    other = (trace.micro_batch[owner] != trace.micro_batch[waited]) | (is_backward[owner] != is_backward[waited])
    calls = (trace.kind[owner] == Kind.COLL) & (trace.kind[waited] == Kind.COLL)
    order = (trace.ctrl >= 0) & (trace.ctrl_why == int(Why.PROGRAM))
    cut = order & other & known[owner] & known[waited] & chosen[owner] & ~calls
    if cut.any():
        here.made.cut("ctrl", cut)


EDIT = Definition(
    doc="order edges between passes of different micro-batches, or forward and backward, go; data edges stay",
    cannot="what agreeing on another order costs; ranks of a tensor group that choose differently never complete",
    selects="node",
    rewrite=rewrite,
)
