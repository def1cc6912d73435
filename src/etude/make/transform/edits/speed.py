"""speed: selected work takes less time, or more."""

from __future__ import annotations

from etude.base.errors import UsageError
from etude.make.transform.edits.definition import Definition, Here, Parameter, number, rounded
from etude.model.schema import UNKNOWN


def rewrite(here: Here, by: float) -> None:
    trace, rows = here.trace, here.rows
    if by == 1:
        return
    unknown = trace.duration_ns[rows] == UNKNOWN
    if unknown.any():
        node = trace.source_id[rows[unknown][0]]
        problem = f"{int(unknown.sum()):,} selected nodes have no time to change (node {node})"
        hint = "--times-on dgx-h100 gives compute the times of a system first"
        raise UsageError(problem, where="edit `speed`", hint=hint)
    here.made.set("duration_ns", rows, rounded(trace.duration_ns[rows] / by))


EDIT = Definition(
    doc="selected work is `by` times as fast: its time is divided by it; FLOPs and bytes are unchanged",
    cannot="why it is faster; times of communication follow bytes and the network, not this",
    parameters={"by": Parameter(read=number(0, above=True), doc="factor on the speed: 1.3")},
    selects="compute",
    rewrite=rewrite,
)
