"""recompute: selected forward work is repeated right before the backward pass that needs its results."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.shapes import names_in
from etude.kernels.arrays import I64
from etude.make.transform.edits.definition import Definition, Here
from etude.make.transform.rewrite.rewriting import BEFORE
from etude.model.schema import UNKNOWN, Why
from etude.model.trace import Trace

_TOLD: Final = names_in("""
    kind name duration_ns tensor_bytes flops cpu stream thread module io in_values in_shapes in_types out_values
    out_shapes out_types in_strides out_strides
""")


def rewrite(here: Here) -> None:
    """Copies of a module's forward nodes, one after another, before the first backward node of the module and the
    micro-batch: they take its dependencies, and it waits for them."""
    made = here.made
    rows, target = backward_of(here.trace, here.rows)
    if not len(rows):
        here.note("no forward work was found that a backward pass of the same module follows")
        return
    order = np.lexsort((rows, target))
    rows, target = rows[order], target[order]
    again = made.copy(target, BEFORE, **_columns(here, rows))
    fresh = np.flatnonzero(np.diff(target, prepend=-1))
    inner = np.setdiff1d(np.arange(len(rows)), fresh)
    made.wait(again[inner], again[inner - 1], Why.PROGRAM)
    made.enter(target[fresh], again[fresh], order=True)
    here.note("recompute: the memory of a job is not known; `etude predict --edit` counts what is saved")
    last = np.append(fresh[1:], len(rows)) - 1
    made.wait(target[fresh], again[last])


def backward_of(trace: Trace, rows: I64) -> tuple[I64, I64]:
    """The forward rows among these, and for each the first backward node of its module and micro-batch."""
    phases, words = trace.coded("phase")
    is_forward = np.array([*(word.startswith("forward") for word in words), False])[phases]
    is_backward = np.array([*(word.startswith("backward") for word in words), False])[phases]
    modules, _ = trace.coded("module")
    part = _numbered(np.stack([trace.step, trace.micro_batch, modules], 1))
    placed = (trace.micro_batch != UNKNOWN) & (modules >= 0)
    backward = np.flatnonzero(is_backward & placed & (trace.lane >= 0))
    first = np.full(int(part.max(initial=-1)) + 1, len(trace), np.int64)
    np.minimum.at(first, part[backward], backward)
    rows = rows[is_forward[rows] & placed[rows]]
    rows = rows[first[part[rows]] < len(trace)]
    return rows, first[part[rows]]


def _columns(here: Here, rows: I64) -> dict[str, NDArray[np.generic]]:
    """The copies have the work of the forward nodes and the position of the backward node."""
    return {name: getattr(here.trace, name)[rows] for name in _TOLD}


def _numbered(table: NDArray[np.int64]) -> I64:
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


EDIT = Definition(
    doc="selected forward work (`module=*.ffn*`) is repeated before the backward pass of its module and micro-batch",
    cannot="the memory that it saves, except in `etude predict` if some `--recompute` repeats the same work",
    selects="compute",
    rewrite=rewrite,
)
