"""Which operator of a recording issued each communication, and when it was waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I64
from etude.model.schema import Kind
from etude.run.replay.comm_ops import COMM_OPS
from etude.run.replay.levels import RecordedOp
from etude.run.replay.program import CommKind
from etude.run.replay.recording import ReplayRecording


@dataclass(frozen=True, slots=True)
class RecordedComms:
    """The communication of a recording."""

    of: ReplayRecording

    def nodes(self) -> dict[int, int]:
        """Node of a communication operator -> node of the communication that it issued."""
        trace, found = self.of.trace, {}
        is_comm = np.isin(trace.kind, (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV))) & self.of.inside
        rows = np.flatnonzero(is_comm)
        for node in rows[np.argsort(self.of.start[rows], kind="stable")].tolist():
            near = [node, *trace.data[trace.data_start[node] : trace.data_start[node + 1]][::-1].tolist()]
            near += trace.ctrl[trace.ctrl_start[node] : trace.ctrl_start[node + 1]][::-1].tolist()
            for other in near:
                op = self._above(int(other))
                if op is not None and op.node not in found:
                    found[op.node] = node
                    break
        self._pair_rest(found, rows)
        return found

    def _pair_rest(self, found: dict[int, int], rows: I64) -> None:
        """Pairs what no edge connects: each operator with the first communication left of its kind that starts after
        it."""
        taken = set(found.values())
        left = [n for n in rows[np.argsort(self.of.start[rows], kind="stable")].tolist() if n not in taken]
        for op in self.of.ops:
            about = COMM_OPS.get(op.name)
            if about is None or op.node in found:
                continue
            for node in left:
                if self._is(node, about.kind) and self.of.start[node] >= op.start_ns:
                    found[op.node] = node
                    left.remove(node)
                    break

    def _is(self, node: int, kind: CommKind) -> bool:
        if self.of.trace.kind[node] == int(Kind.COLL):
            return int(self.of.trace.collective[node]) == int(kind)
        return kind == (CommKind.SEND if self.of.trace.kind[node] == int(Kind.SEND) else CommKind.RECV)

    def _above(self, node: int) -> RecordedOp | None:
        at = int(self.of.owner[node]) if node >= 0 else -1
        while at >= 0:
            if self.of.ops[at].name in COMM_OPS:
                return self.of.ops[at]
            at = self.of.ops[at].outer
        return None

    def waited_at(self, node: int) -> int | None:
        """When the first node that waits for a communication starts: for a kernel, the start of the operator that
        launched it. None if nothing waits."""
        trace = self.of.trace
        moments = []
        for start, edges in ((trace.data_start, trace.data), (trace.ctrl_start, trace.ctrl)):
            at = np.flatnonzero(edges == node)
            for row in (np.searchsorted(start, at, "right") - 1).tolist():
                if trace.kind[row] in (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV)) or not self.of.inside[row]:
                    continue
                above = int(self.of.owner[row])
                moments.append(
                    self.of.ops[above].start_ns if trace.cpu[row] == 0 and above >= 0 else int(self.of.start[row])
                )
        return min(moments, default=None)
