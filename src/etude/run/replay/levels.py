"""Which operators of a recording are called again: the outermost ones, unless something made inside is used outside.

`aten::layer_norm` calls `aten::native_layer_norm`, whose mean is used by the backward pass but is not a result of
`aten::layer_norm`: so the inner one is called. `aten::linear` calls views and a product, and everything used later is
its result or a view of an earlier tensor: so `aten::linear` itself is called, as in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.shapes import names_in
from etude.kernels.arrays import I64
from etude.run.replay.arguments import Arguments, RecordedTensor

ALLOCATIONS: Final = names_in("""
    aten::empty aten::empty_strided aten::empty_like aten::resize_ aten::new_empty aten::new_empty_strided
""")
"""Operators that allocate memory without writing to it."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOp:
    """An operator of the recording."""

    node: int
    name: str
    schema: str
    given: Arguments
    gave: Arguments
    start_ns: int
    end_ns: int
    calls: list[int]
    """Operators that it called: positions in the list of operators, ordered by time."""
    outer: int
    """Position of the operator that called it; -1 if none did."""

    @property
    def tensors(self) -> Iterator[RecordedTensor]:
        yield from self.given.tensors
        yield from self.gave.tensors

    @property
    def namespace(self) -> str:
        return self.name.partition("::")[0]


class StorageUses:
    """The uses of each storage over time: a tensor is read there, or another one is made there."""

    def __init__(self, ops: list[RecordedOp]) -> None:
        rows: dict[int, list[tuple[int, tuple[Any, ...] | None]]] = {}
        for op in ops:
            for tensor in op.given.tensors:
                rows.setdefault(tensor.storage, []).append((op.start_ns, tensor.look))
            read = {t.storage for t in op.given.tensors}
            for storage in {t.storage for t in op.gave.tensors} - read:
                rows.setdefault(storage, []).append((op.end_ns, None))
        self._when: dict[int, tuple[I64, list[tuple[Any, ...] | None]]] = {}
        for storage, found in rows.items():
            found.sort(key=lambda use: use[0])
            self._when[storage] = np.array([at for at, _ in found], np.int64), [look for _, look in found]

    def read_after(self, tensor: RecordedTensor, moment_ns: int) -> bool:
        """Whether the next use of the storage after this moment reads this same tensor."""
        when, looks = self._when[tensor.storage]
        at = int(np.searchsorted(when, moment_ns, "right"))
        return at < len(when) and looks[at] == tensor.look


def wrapped_storages(ops: list[RecordedOp]) -> set[int]:
    """Storages without memory: those of wrappers around other tensors (DTensor). An operator on wrappers calls itself
    on the wrapped tensors."""
    found: set[int] = set()
    for op in ops:
        own = {t.storage for t in op.tensors if t.numel}
        if not own or op.name == "aten::copy_":
            continue
        for inner in _below(op, ops):
            if inner.name == op.name:
                others = {t.storage for t in inner.tensors if t.numel}
                if others and not others & own:
                    found |= own
                break
    return found


def _below(op: RecordedOp, ops: list[RecordedOp]) -> Iterator[RecordedOp]:
    for at in op.calls:
        yield ops[at]
        yield from _below(ops[at], ops)


def chosen(
    ops: list[RecordedOp],
    skipped: Callable[[RecordedOp], bool],
    is_comm: Callable[[RecordedOp], bool],
    launches: Container[int] = (),
) -> list[RecordedOp]:
    """The operators to call, ordered by time. Operators that cannot be called and call no others are included.
    `launches`: nodes that launch kernels themselves, so that the operators inside cannot replace them."""
    uses, wrapped = StorageUses(ops), wrapped_storages(ops)
    found: list[RecordedOp] = []

    def choose(op: RecordedOp) -> None:
        if skipped(op) or op.namespace == "profiler":
            return
        hollow = any(t.storage in wrapped and t.numel for t in op.tensors)
        inner_comm = any(is_comm(inner) for inner in _below(op, ops)) if op.calls else False
        if is_comm(op) and not inner_comm:
            found.append(op)
        elif op.calls and (
            hollow or inner_comm or not op.given.whole or (op.node not in launches and _opens(op, ops, uses))
        ):
            for at in op.calls:
                choose(ops[at])
        elif not hollow:
            found.append(op)

    for op in ops:
        if op.outer < 0:
            choose(op)
    found.sort(key=lambda op: (op.start_ns, op.node))
    return found


def _opens(op: RecordedOp, ops: list[RecordedOp], uses: StorageUses) -> bool:
    """Whether the operators inside must be called instead of this one, and can replace it."""
    inside = list(_below(op, ops))
    worked = {t.storage for inner in inside if inner.name not in ALLOCATIONS for t in inner.tensors}
    given = {t.storage for t in op.given.tensors}
    gave = {t.storage for t in op.gave.tensors}
    if not gave <= worked | given:
        return False
    if op.namespace not in ("aten", "prims"):
        return bool(worked)
    made = {t for inner in inside for t in inner.gave.tensors if t.numel and t.storage not in given | gave}
    return any(uses.read_after(tensor, op.end_ns) for tensor in made)
