"""rounds: work that needs k requests and responses, as secure computation between parties does."""

from __future__ import annotations

import numpy as np

from etude.errors import UsageError
from etude.model.schema import UNKNOWN, Collective, Kind, Why
from etude.transform.edits.definition import Definition, Here, Parameter, number, size, whole
from etude.transform.rewrite.rewriting import AFTER


def rewrite(here: Here, k: int, message: int, factor: float, over: str) -> None:
    """Behind each node k requests and k responses of half the bytes each, one after another, over a group."""
    trace, rows, made = here.trace, here.rows, here.made
    if factor != 1:
        if (trace.duration_ns[rows] == UNKNOWN).any():
            raise UsageError("selected nodes have no time that a factor could change",
                             hint="--times-on dgx-h100 gives compute the times of a system first")  # fmt: skip
        made.set("duration_ns", rows, np.rint(trace.duration_ns[rows] * factor).astype(np.int64))
    slot = _slot(here, over)
    last = rows
    for turn in range(2 * k):
        one = made.add(
            rows, AFTER + turn, "response" if turn % 2 else "request", kind=int(Kind.COLL),
            collective=int(Collective.ALL_GATHER), in_bytes=message // 2, group=slot,
        )  # fmt: skip
        made.wait(one, last, Why.COLLECTIVE)
        last = one
    if k:
        made.leave(rows, last, order=True)


def _slot(here: Here, over: str) -> int:
    """Slot of a group; -1 is all ranks."""
    if over == "world":
        return -1
    found = [i for i, names in enumerate(here.groups) if over in names]
    if not found:
        known = ", ".join(sorted({name for names in here.groups for name in names}))
        raise UsageError(f"over: no group `{over}`", hint=f"known: world{f', {known}' if known else ''}")
    return found[0]


EDIT = Definition(
    doc="`k` requests and responses of `message` bytes both ways behind each node, whose own time is times `factor`",
    cannot="what is computed between the rounds, and that it stays private",
    parameters={
        "k": Parameter(read=whole(0), doc="rounds: 2"),
        "message": Parameter(read=size, default="0", doc="bytes of a request and its response together"),
        "factor": Parameter(read=number(), default="1", doc="on the node's own time: 1000 for homomorphic encryption"),
        "over": Parameter(read=str, default="world", doc="group of the parties"),
    },
    selects="compute",
    rewrite=rewrite,
)
