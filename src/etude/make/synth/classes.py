"""Classes of nodes: what a node does, where it runs, its name, its size; and the sizes of each class.

A class must have a few nodes, or its nodes fall into a wider one: first without names, then by coarser sizes.
`at_least` requires every number of the model to represent this many nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.make.synth.learned import COLUMNS, QUANTILES, STEPS, NodeClass, Sketch
from etude.make.synth.programs import LearnedProgram
from etude.model.rounding import on_grid
from etude.model.schema import UNKNOWN, Kind

PER_OCTAVE: Final = np.array([0.5, 4, 4, 4, 4])
"""Size bins per octave of each column: work and bytes are exact, times vary from run to run."""
COARSE: Final = np.array([0.25, 0.5, 0.5, 0.5, 0.5])
NONE, ZERO = -2, -1
"""Bins of a missing value, and of zero."""
CALLED: Final = 4
"""Fewest nodes of a class by name."""
STALL: Final = 8
"""Multiple of the usual time of its name above which a node counts as different."""
MATTERS: Final = 1000
"""And this fraction of the time of its program."""


def classes_of(programs: Sequence[LearnedProgram], at_least: int = 1) -> tuple[list[I64], I64]:
    """(class of each place of each program, nodes of each class). Classes are numbered by first use."""
    counts = np.concatenate([np.full(len(p), len(p.values)) for p in programs])
    levels = [np.concatenate(rows) for rows in zip(*(_levels(p) for p in programs), strict=True)]
    stalled, talks = _stalls(levels[0], programs), np.concatenate([p.talks for p in programs])
    final, here = levels[0], np.ones(len(counts), bool)
    for level, least in enumerate((max(CALLED, at_least), at_least, at_least)):
        _, number = np.unique(final[here], axis=0, return_inverse=True)
        number = number.reshape(-1)
        rare = np.bincount(number, counts[here])[number] < least
        if level == 0:
            few = np.bincount(number, counts)[number] < at_least
            rare = np.where(talks, few, rare | stalled | (final[:, -1] < 0))  # names do not describe what is sent
        here = here.copy()
        here[here] = rare
        final[here] = levels[level + 1][here]
    _, first, number = np.unique(final, axis=0, return_index=True, return_inverse=True)
    by_use = np.empty(len(first), np.int64)
    by_use[np.argsort(first)] = np.arange(len(first))
    number = by_use[number.reshape(-1)]
    nodes = np.bincount(number, counts).astype(np.int64)
    return np.split(number, np.cumsum([len(p) for p in programs])[:-1]), nodes


def _levels(program: LearnedProgram) -> list[I64]:
    """Keys of each place, from the narrowest class to the widest: (level, what, sizes, name)."""
    values = program.values[0]
    fine, coarse, bare = _scales(values, PER_OCTAVE), _scales(values, COARSE), np.where(values == UNKNOWN, NONE, 0)
    # Times vary from run to run; if its work is known, that determines a node's size.
    work = (values[:, 1] != UNKNOWN) | (values[:, 2] != UNKNOWN)
    called, plain = fine.copy(), fine
    called[values[:, 0] != UNKNOWN, 0] = 0
    plain[work & (values[:, 0] > 0), 0] = 0
    coarse[work & (values[:, 0] > 0), 0] = 0
    sent = [COLUMNS.index("in_bytes"), COLUMNS.index("out_bytes")]
    called[:, sent] = _scales(values, np.full(len(COLUMNS), STEPS))[:, sent]  # so that all participants agree
    nothing = np.full(len(program), -1)
    word = np.where(program.talks, -1, program.word)
    keys = ((called, word), (plain, nothing), (coarse, nothing), (bare, nothing))
    return [
        np.column_stack([np.full(len(program), level), program.what, scale, word])
        for level, (scale, word) in enumerate(keys)
    ]


def _scales(values: I64, per_octave: NDArray[np.float64]) -> I64:
    scale = np.floor(per_octave * np.log2(np.maximum(values, 1))).astype(np.int64)
    scale[values == 0], scale[values == UNKNOWN] = ZERO, NONE
    return scale


def sizes(program: LearnedProgram) -> I64:
    """Bytes that each place sends, within a quarter of an octave."""
    return _scales(program.values[0], PER_OCTAVE)[:, [COLUMNS.index("in_bytes"), COLUMNS.index("out_bytes")]]


def _stalls(keys: I64, programs: Sequence[LearnedProgram]) -> NDArray[np.bool_]:
    """Nodes that took far longer than others of their name, and long enough to matter: a descheduled thread, or a name
    with many meanings. They have classes of their own."""
    time = np.concatenate([p.time_ns for p in programs])
    total = np.repeat([int(p.time_ns.sum()) for p in programs], [len(p) for p in programs])
    _, number = np.unique(keys, axis=0, return_inverse=True)
    order = np.lexsort((time, number.reshape(-1)))
    nodes = np.bincount(number.reshape(-1))
    middle = np.cumsum(nodes) - nodes + nodes // 2
    usual = time[order][middle][number.reshape(-1)]
    return (time > STALL * usual) & (time * MATTERS > total)


def described(
    programs: Sequence[LearnedProgram], classes: Sequence[I64], own: F64, nodes: I64, at_least: int
) -> tuple[NodeClass, ...]:
    """The description and sizes of each class. The programs' times are those of a typical rank and step."""
    numbers = np.concatenate([c for p, c in zip(programs, classes, strict=True) for _ in p.values])
    values = np.concatenate([v for p in programs for v in p.values])
    what = np.concatenate([p.what for p in programs])
    _, first = np.unique(np.concatenate(list(classes)), return_index=True)
    order = np.argsort(numbers, kind="stable")
    parts = np.split(values[order], np.cumsum(np.bincount(numbers, minlength=len(nodes)))[:-1])
    found = []
    for number, some in enumerate(parts):
        steps = STEPS if nodes[number] >= at_least else 2
        kind, cpu, lane, collective, group, src, dst, priority, optimizer = what[first[number]].tolist()
        sketches = {c: sketch(v, steps) for c, v in zip(COLUMNS, some.T, strict=True) if (v != UNKNOWN).any()}
        known = None if priority == UNKNOWN else priority
        share = round(float(own[number]), 2) if kind == Kind.COMP else 0.0
        found.append(NodeClass(kind, cpu, lane, collective, group, src, dst, known, bool(optimizer), sketches, share))
    return tuple(found)


def sketch(values: I64, steps: int = STEPS) -> Sketch:
    values = values[values != UNKNOWN]
    quantiles = on_grid(np.quantile(values, QUANTILES), steps)
    # For few, coarsely rounded values, the mean would add only rounding error.
    mean = values.mean() if steps == STEPS else np.interp(np.linspace(0, 1, 1001), QUANTILES, quantiles).mean()
    if (on_grid(values, steps) == quantiles[0]).all():
        return Sketch(float(quantiles[0]))
    return Sketch(float(f"{mean:.3g}"), tuple(quantiles.tolist()))
