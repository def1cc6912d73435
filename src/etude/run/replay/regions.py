"""Code compiled by Inductor, as a recording shows it: regions of whole graphs, and launches of Triton kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from etude.kernels.arrays import I32, I64, Bool
from etude.model.schema import ValueKind
from etude.model.text import intern, strings
from etude.model.trace import Trace
from etude.run.replay.call_tree import owners
from etude.run.replay.levels import RecordedOp
from etude.run.replay.program import TRITON_SPACE

Sources = Mapping[str, Mapping[str, str]]

COMPILED: Final = "## Call CompiledFxGraph"
"""How the names of compiled regions begin. Their CPU kernels are not recorded."""


def attribute(trace: Trace, name: str) -> tuple[I64, list[str]]:
    """For each node, the index of its value of a string attribute (-1: none, or empty), and the values."""
    codes = np.full(len(trace), -1, np.int64)
    cells = trace.attr_cells(heap_only=True).get((name, ValueKind.STRING))
    if cells is None:
        return codes, []
    rows, places = cells
    numbers, unique = intern(trace.heap, places)
    words = strings(trace.heap, unique)
    empty = np.array([not word for word in words] + [True])
    codes[rows] = np.where(empty[numbers], -1, numbers)
    return codes, words


class Regions:
    """Compiled code in the steps of a recording. `all`: nodes of graphs that are played as a region: on a CPU all of
    them, since their kernels are not recorded; otherwise those of which the code is known. `whole`: those that are
    played by their code. `kernels`: nodes that launch a Triton kernel of which the file is known."""

    def __init__(self, trace: Trace, inside: Bool, names: list[str], codes: I32, sources: Sources) -> None:
        self._trace, self._names, self._codes = trace, names, codes
        wanted = np.array([name.startswith(COMPILED) for name in names] + [False])
        found = np.flatnonzero(wanted[codes] & inside).tolist()
        self.whole = [node for node in found if self.key(node) in sources]
        self.all = self.whole if (trace.cpu == 0).any() else found
        self.inside_whole = self.around(self.whole)
        """For each node, the position in `whole` of the region around it; -1 if there is none."""
        self._file, self._files = np.full(len(trace), -1, np.int64), list[str]()
        if sources:
            self._file, self._files = attribute(trace, "kernel_file")
        known = np.array([file in sources for file in self._files] + [False])
        self.kernels: Bool = known[self._file] & inside & (trace.cpu == 1) & (self.inside_whole < 0)

    def key(self, node: int) -> str:
        """The name of a compiled graph."""
        return self._names[int(self._codes[node])].removeprefix(COMPILED).strip(" #")

    def file(self, node: int) -> str:
        """The file of a Triton kernel."""
        return self._files[int(self._file[node])]

    def kernel_name(self, node: int) -> str:
        """The name of a Triton kernel in a program."""
        return f"{TRITON_SPACE}{self._names[int(self._codes[node])]}@{self.file(node)}"

    def around(self, regions: list[int]) -> I64:
        at = np.full(len(self._trace), -1, np.int64)
        at[regions] = np.arange(len(regions))
        return owners(self._trace.parent, at)


def own_ns(ops: list[RecordedOp], start_ns: int, end_ns: int) -> int:
    """Time of a region's own kernels: the gaps between its calls, each less the shortest gap, which is taken to be the
    host's time from one call to the next without a kernel in between."""
    inner = [op for op in ops if op.outer < 0 and start_ns <= op.start_ns < end_ns]
    begins = np.array([op.start_ns for op in inner] + [end_ns])
    ends = np.array([start_ns] + [op.end_ns for op in inner])
    gaps = np.maximum(begins - ends, 0)
    return int(np.maximum(gaps - gaps.min(), 0).sum()) if len(inner) > 1 else int(gaps.sum())
