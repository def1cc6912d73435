"""CUPTI counters: which node each counted range belongs to.

Kineto counts either kernel by kernel or over one range. Counting serialises kernels, runs them several times and
usually records no activities; the times of ranges are equal parts of the recording and mean nothing. Only the order is
known: the k-th range is that of the k-th kernel, or of the k-th launch if no kernels were recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.capture.ingest.graph import ACTIVITY, CausalGraph
from etude.capture.link.device import DeviceTrace
from etude.capture.link.python_text import PythonTexts
from etude.kernels.arrays import I64
from etude.model.attrs import scalar_to_cell
from etude.model.schema import COUNTED_KERNEL, COUNTER, ValueKind
from etude.model.trace import Attr, Layout

_LAUNCH: Final = re.compile(r"(cuda|hip|cu)(Ext|Module)*Launch(Cooperative)?(Kernel|Ex)")
_UNNAMED: Final = ("", "__missing__")
"""Kineto's names for a kernel whose name is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedRanges:
    """Nodes with counters, and the counters."""

    node: I64
    name: tuple[str, ...]
    """The counted kernel, as far as recorded; for a range over many the name of the range."""
    values: tuple[dict[str, float], ...]
    notes: tuple[str, ...] = ()

    def cells(self, texts: PythonTexts) -> dict[int, tuple[Layout, list[int]]]:
        """Node -> attributes and their values: an attribute for each counter, and one for the name."""
        offset: dict[str, int] = {}
        found: dict[int, tuple[Layout, list[int]]] = {}
        for node, name, values in zip(self.node.tolist(), self.name, self.values, strict=True):
            kinds = [ValueKind.INT64 if _whole(value) else ValueKind.DOUBLE for value in values.values()]
            attrs = [Attr(COUNTED_KERNEL, ValueKind.STRING)]
            attrs += [Attr(COUNTER + key, kind) for key, kind in zip(values, kinds, strict=True)]
            at = offset[name] if name in offset else offset.setdefault(name, texts.put(name.encode()))
            cells = [scalar_to_cell(kind, value) for kind, value in zip(kinds, values.values(), strict=True)]
            found[node] = tuple(attrs), [at, *cells]
        return found


def _whole(value: float) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 63


def counted_ranges(device: DeviceTrace, found: CausalGraph) -> CountedRanges:
    """The nodes of a graph that ranges of counters belong to."""
    row = np.array([row for row, _ in device.counters], np.int64)
    order = np.argsort(device.start_ns[row], kind="stable")
    row, values = row[order], tuple(device.counters[k][1] for k in order.tolist())
    names = tuple(device.names[device.name[r]] if device.name[r] >= 0 else "" for r in row.tolist())
    if not len(row):
        return CountedRanges(row, (), ())
    kernels = _by_start(found, _kernels(device, found))
    launches = _by_start(found, _launches(device, found))
    for nodes in (kernels, launches):
        if len(nodes) == len(row) and (nodes is launches or _same_names(device, found, nodes, names)):
            return CountedRanges(nodes, names, values)
    if len(row) == 1:
        return CountedRanges(np.array([int(np.argmin(found.start_ns))]), names, values)
    what = (
        f"{len(row):,} ranges of counters, {len(kernels):,} kernels and {len(launches):,} launches: they cannot "
        "be matched, and the counters are left out"
    )
    return CountedRanges(row[:0], (), (), (what,))


def _by_start(found: CausalGraph, nodes: I64) -> I64:
    return nodes[np.argsort(found.start_ns[nodes], kind="stable")]


def _kernels(device: DeviceTrace, found: CausalGraph) -> I64:
    nodes = np.flatnonzero(found.what == ACTIVITY)
    return nodes[device.is_category("kernel")[found.device.row[found.index[nodes]]]]


def _launches(device: DeviceTrace, found: CausalGraph) -> I64:
    named = np.array([bool(_LAUNCH.match(name)) for name in device.names] + [False])[device.name]
    return found.row_of_event[np.flatnonzero(found.host.is_call & named[found.host.row])]


def _same_names(device: DeviceTrace, found: CausalGraph, nodes: I64, names: tuple[str, ...]) -> bool:
    own = device.name[found.device.row[found.index[nodes]]]
    return all(name in _UNNAMED or device.names[code] == name for code, name in zip(own.tolist(), names, strict=True))
