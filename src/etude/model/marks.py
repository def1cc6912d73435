"""Marks: attributes (int64) that identify nodes."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import Bool, distinct_values
from etude.model.schema import ValueKind
from etude.model.trace import Attr, Trace


def marks(trace: Trace, attribute: str) -> Bool:
    """Which nodes have the attribute."""
    wanted = Attr(attribute, ValueKind.INT64)
    has = [any((a.name, a.kind) == (wanted.name, wanted.kind) for a in one) for one in trace.layouts]
    return np.array(has)[trace.layout] if len(trace) else np.zeros(0, bool)


def marked(trace: Trace, nodes: Bool, attribute: str, value: int = 0) -> Trace:
    """The trace with one more attribute after those of these nodes."""
    rows = np.flatnonzero(nodes)
    if not len(rows):
        return trace
    layouts, layout = list(trace.layouts), trace.layout.copy()
    for old in distinct_values(layout[rows]).tolist():
        layouts.append((*layouts[old], Attr(attribute, ValueKind.INT64)))
        layout[rows[trace.layout[rows] == old]] = len(layouts) - 1
    cells = np.insert(trace.cells, trace.cell_start()[rows + 1], value)
    return trace.replace(layouts=tuple(layouts), layout=layout, cells=cells)
