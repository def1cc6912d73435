"""FLOPs and bytes of operators from their shapes, and which node of an operator holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.capture.link import tree_kernels as k
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.cost.aten import aten_work, needs_values
from etude.cost.aten_families import FAMILIES, MADE_OF_OTHERS
from etude.kernels.arrays import I64, Bool, sort_order
from etude.model.distinct import distinct
from etude.model.schema import UNKNOWN

_DEVICE: Final = {"in_shapes": "input_dims", "in_types": "input_types", "in_values": "concrete_inputs"}


@dataclass(frozen=True, slots=True, eq=False)
class OperatorWork:
    """Work of operators; one row per row of their trace. UNKNOWN if shapes and name do not determine it."""

    flops: I64
    size_bytes: I64
    """Read and written at least once."""
    made_of_others: Bool
    """Usually the operators that it calls do the work."""
    name: I64
    """Number of its name; -1: none."""

    def take(self, rows: I64) -> OperatorWork:
        """The work of these rows; unknown for row -1."""
        there = rows >= 0
        flops, size_bytes = (np.where(there, v[rows], UNKNOWN) for v in (self.flops, self.size_bytes))
        return OperatorWork(flops, size_bytes, there & self.made_of_others[rows], np.where(there, self.name[rows], -1))


def operator_work(trace: HostTrace | DeviceTrace) -> OperatorWork:
    """The work of each operator of a trace, each distinct (name, shapes, types) computed once."""
    named = np.array([name in FAMILIES for name in trace.names] + [False])[trace.name]
    rows = np.flatnonzero(named)
    flops, size_bytes = np.full(len(trace.name), UNKNOWN, np.int64), np.full(len(trace.name), UNKNOWN, np.int64)
    if len(rows):
        texts = [_text_column(trace, column, rows) for column in ("in_shapes", "in_types", "in_values")]
        columns, which = distinct([trace.name[rows], *(codes for codes, _ in texts)])
        works = [
            aten_work(
                trace.names[name], *(words[c] if c >= 0 else "" for c, (_, words) in zip(rest, texts, strict=True))
            )
            for name, *rest in columns.tolist()
        ]
        flops[rows] = np.array([work.flops for work in works], np.int64)[which]
        size_bytes[rows] = np.array([work.size_bytes for work in works], np.int64)[which]
    made_of_others = np.array([name in MADE_OF_OTHERS for name in trace.names] + [False])[trace.name]
    return OperatorWork(flops, size_bytes, made_of_others, trace.name.astype(np.int64))


def _text_column(trace: HostTrace | DeviceTrace, column: str, rows: I64) -> tuple[NDArray[np.int32], list[str]]:
    """Codes and words of a column at these rows. Values are mostly distinct and few operators need them."""
    places = trace.places.get(column if isinstance(trace, HostTrace) else _DEVICE[column])
    wanted = np.full(len(rows), -1, np.int64) if places is None else places[rows]
    if column == "in_values":
        needs = np.array([needs_values(name) for name in trace.names] + [False])[trace.name[rows]]
        wanted = np.where(needs, wanted, -1)
    codes, unique = trace.json.intern(wanted)
    return codes, [trace.json.slice(int(place)).decode("utf-8", "replace") for place in unique]


def node_work(work: OperatorWork, parent: I64, operator: I64, length_ns: I64) -> tuple[I64, I64]:
    """(FLOPs, bytes) of nodes: each operator's work goes to the longest of its nodes, so that nothing counts twice.

    `work` and `parent` are of operators, an operator behind the one that called it; `operator` and `length_ns` are of
    nodes: the operator that a kernel or a piece of host time belongs to (-1: none, or not to be considered).
    """
    known = (work.flops != UNKNOWN) | (work.size_bytes != UNKNOWN)
    claim = np.empty(len(parent), np.int64)
    others = work.made_of_others | _calls_itself(work.name, parent, known)
    k.claims(np.arange(len(parent)), parent, known, others, claim)
    owner = np.append(claim, -1)[operator]
    order = np.flatnonzero(owner >= 0)
    order = order[sort_order(owner[order], -length_ns[order])]
    first = order[np.flatnonzero(np.diff(owner[order], prepend=-1) != 0)]
    flops, size_bytes = np.full(len(operator), UNKNOWN, np.int64), np.full(len(operator), UNKNOWN, np.int64)
    flops[first], size_bytes[first] = work.flops[owner[first]], work.size_bytes[owner[first]]
    return flops, size_bytes


def _calls_itself(name: I64, parent: I64, known: Bool) -> Bool:
    """Operators that another of their name runs inside: those of a tensor subclass. A DTensor's has the shapes of the
    whole tensor, the one that it calls those of the rank's part."""
    found = np.zeros(len(parent), np.bool_)
    rows = np.flatnonzero(known & (parent >= 0))
    above = parent[rows]
    while len(rows):
        found[above[name[above] == name[rows]]] = True
        above = parent[above]
        rows, above = rows[above >= 0], above[above >= 0]
    return found
