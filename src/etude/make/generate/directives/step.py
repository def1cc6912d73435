"""Step: the graph of one pipeline rank's step, and the operations with which a rewrite may change it.

Nodes have ids: those of the original graph are its rows, new ones continue from there. A new node is placed before or
after another one; its dependencies must come before it, so a rewrite cannot create a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I32
from etude.make.generate.blocks.ops import Op
from etude.make.generate.blocks.shard import Block
from etude.make.generate.nodes import StepNodes, Units
from etude.make.generate.plan import Plan
from etude.model.schema import Collective, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """Which nodes a rewrite applies to; fields that are not given match all."""

    module: str = "*"
    """Glob of the module path: `layers.3.*`."""
    phase: str = ""
    kind: str = ""
    """compute, collective, send, receive, load or store."""
    collective: str = ""
    group: str = ""
    """Axis of a collective: tp, cp, ep, dp, ..."""
    tensor: str = ""
    """What a collective of a directive carries: weights or gradients."""
    micro_batch: int = -1


KINDS = {
    "compute": Kind.COMP,
    "collective": Kind.COLL,
    "send": Kind.SEND,
    "receive": Kind.RECV,
    "load": Kind.MEM_LOAD,
    "store": Kind.MEM_STORE,
}


@dataclass(slots=True)
class Step:
    """One pipeline rank's step while directives rewrite it."""

    plan: Plan
    stages: tuple[tuple[Block, ...], ...]
    """Blocks of every stage of the model."""
    held: tuple[int, ...]
    """Stages that this rank has."""
    nodes: StepNodes
    _new: list[tuple[int, ...]] = field(default_factory=list)
    """Sort key, op, module, micro-batch and step of each new node."""
    _data: list[tuple[int, int]] = field(default_factory=list)
    _ctrl: list[tuple[int, int]] = field(default_factory=list)
    _dropped: set[int] = field(default_factory=set)

    @property
    def units(self) -> Units:
        """The pieces of the step: a block's forward or backward pass of a micro-batch."""
        return self.nodes.units

    def __len__(self) -> int:
        return len(self.nodes.op) + len(self._new)

    def op(self, node: int) -> Op:
        """What a node does."""
        rows = len(self.nodes.op)
        return self.nodes.book.ops[int(self.nodes.op[node]) if node < rows else self._new[node - rows][1]]

    def place_of(self, node: int) -> int:
        """Sort key of a node."""
        rows = len(self.nodes.op)
        return 2 * node + 1 if node < rows else self._new[node - rows][0]

    def micro_batch(self, node: int) -> int:
        """-1 where a node belongs to none."""
        rows = len(self.nodes.op)
        return int(self.nodes.micro[node]) if node < rows else self._new[node - rows][3]

    def insert(
        self,
        op: Op,
        module: str,
        *,
        before: int | None = None,
        after: int | None = None,
        micro_batch: int = -1,
        data: Sequence[int] = (),
        ctrl: Sequence[int] = (),
    ) -> int:
        """A new node before or after a node, behind those inserted there earlier."""
        around = before if before is not None else after
        if around is None or (before is not None and after is not None):
            raise UsageError("a new node must be either before or after another one")
        rows = len(self.nodes.op)
        if around >= rows and before is not None:
            raise UsageError("a new node must be before a node of the step, not before another new one")
        key = self.place_of(around) if around >= rows else 2 * around + 2 * (before is None)
        book, path = self.nodes.book, f"{module}.{op.part}" if op.part else module
        self._new.append((key, book.op(op), book.module(path), micro_batch, self._step_of(around)))
        node = len(self) - 1
        self.join(node, data=data, ctrl=ctrl)
        return node

    def _step_of(self, node: int) -> int:
        rows = len(self.nodes.op)
        return int(self.nodes.step[node]) if node < rows else self._new[node - rows][4]

    def change(self, node: int, op: Op) -> None:
        """Replaces the op of a node."""
        number, rows = self.nodes.book.op(op), len(self.nodes.op)
        if node < rows:
            self.nodes.op[node] = number
        else:
            key, _, *rest = self._new[node - rows]
            self._new[node - rows] = key, number, *rest

    def join(self, node: int, *, data: Sequence[int] = (), ctrl: Sequence[int] = ()) -> None:
        """Makes a node wait for others."""
        self._data += [(node, w) for w in data]
        self._ctrl += [(node, w) for w in ctrl]

    def drop(self, node: int) -> None:
        """Removes a node that a rewrite inserted."""
        if node < len(self.nodes.op):
            raise UsageError("only nodes that a directive inserted can be removed")
        self._dropped.add(node)
        self._data = [(a, b) for a, b in self._data if node not in (a, b)]
        self._ctrl = [(a, b) for a, b in self._ctrl if node not in (a, b)]

    def unjoin(self, node: int) -> None:
        """Removes all dependencies of a node that a rewrite inserted."""
        self._data = [(a, b) for a, b in self._data if a != node]
        self._ctrl = [(a, b) for a, b in self._ctrl if a != node]

    def select(self, what: Select) -> list[int]:
        """Nodes in their order."""
        nodes, book = self.nodes, self.nodes.book
        op = np.concatenate([nodes.op, np.array([n[1] for n in self._new], np.int32)])
        module = np.concatenate([nodes.module, np.array([n[2] for n in self._new], np.int32)])
        micro = np.concatenate([nodes.micro, np.array([n[3] for n in self._new], np.int64)])
        fits = np.array([_fits(o, what) for o in book.ops], bool)[op]
        fits &= np.array([fnmatchcase(path, what.module) for path in book.modules], bool)[module]
        if what.micro_batch >= 0:
            fits &= micro == what.micro_batch
        found = [int(i) for i in np.flatnonzero(fits) if int(i) not in self._dropped]
        return sorted(found, key=lambda node: (self.place_of(node), node))

    def done(self) -> StepNodes:
        """The graph with all changes."""
        nodes, rows = self.nodes, len(self.nodes.op)
        key = np.concatenate([2 * np.arange(rows) + 1, np.array([n[0] for n in self._new], np.int64)])
        keep = np.array([i not in self._dropped for i in range(len(key))], bool)
        order = np.lexsort((np.arange(len(key)), key))
        order = order[keep[order]]
        row = np.full(len(key), -1, np.int64)
        row[order] = np.arange(len(order))

        def column(name: str, at: int, missing: int = 0) -> Any:
            old = getattr(nodes, name)
            new = [n[at] if at else missing for n in self._new]
            return np.concatenate([old, np.array(new, old.dtype)])[order]

        def edges(old: I32, new: list[tuple[int, int]]) -> I32:
            pairs = np.concatenate([old.astype(np.int64), np.array(new, np.int64).reshape(-1, 2).T], axis=1)
            return row[pairs].astype(np.int32)

        return replace(
            nodes,
            op=column("op", 1),
            module=column("module", 2),
            micro=column("micro", 3),
            tag=column("tag", 0, -1),
            step=column("step", 4),
            data=edges(nodes.data, self._data),
            ctrl=edges(nodes.ctrl, self._ctrl),
        )


def _fits(op: Op, what: Select) -> bool:
    if what.kind and op.kind != KINDS[what.kind]:
        return False
    if what.collective and (op.kind != Kind.COLL or op.collective != Collective.parse(what.collective)):
        return False
    if what.group and op.group != what.group:
        return False
    if what.tensor and not (op.kind == Kind.COLL and op.part == what.tensor):
        return False
    return not what.phase or op.phase.label == what.phase
