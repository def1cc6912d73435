"""drop: selected nodes are removed; their dependents wait for their dependencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.make.transform.edits.definition import Definition, Here, Parameter, choice
from etude.model.graph import dependencies, successors
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace


def rewrite(here: Here, around: str) -> None:
    rows = here.rows
    if around != "nothing":
        rows = rows[_copies_beside(here.trace, Collective.parse(around))[rows]]
    if len(rows):
        here.made.remove(rows)


def _copies_beside(trace: Trace, collective: Collective) -> NDArray[np.bool_]:
    """Compute nodes that only move bytes, directly before or after such a collective."""
    calls = np.flatnonzero((trace.kind == Kind.COLL) & (trace.collective == int(collective)))
    near = np.zeros(len(trace), bool)
    for graph in (dependencies(trace, "data"), successors(trace, "data")):
        owner = np.repeat(np.arange(len(trace)), np.diff(graph.start))
        of_call = np.isin(owner, calls) & (graph.rows >= 0)
        near[graph.rows[of_call]] = True
    moves = (trace.flops == 0) | (ops_of(trace).op_class == int(OpClass.COPY))
    return near & moves & (trace.kind == Kind.COMP)


EDIT = Definition(
    doc="selected nodes are removed; their successors wait for what they waited for. `around`: only copies next to a "
    "collective",
    cannot="whether the program still computes the same result",
    parameters={
        "around": Parameter(
            read=choice("nothing", *(c.name.lower() for c in Collective if c)),
            default="nothing",
            doc="only copies directly before or after this collective: all_to_all",
        )
    },
    selects="compute",
    rewrite=rewrite,
)
