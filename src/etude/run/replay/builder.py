"""Builds a Program step by step, for the planners and for tests."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.run.replay.program import (
    NOTHING,
    Calls,
    CommColumns,
    CommKind,
    Fill,
    Layouts,
    Lists,
    Program,
    Slots,
    StandInKind,
    StandIns,
    StepKind,
    Steps,
    StorageOrigin,
    Storages,
    Views,
    checked,
)


class Words:
    """Distinct values, each with a row number, in order of first use."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def put(self, value: Hashable) -> int:
        return self.rows.setdefault(value, len(self.rows))

    def all(self) -> tuple[Any, ...]:
        return tuple(self.rows)


class ProgramBuilder:
    """Rows are appended; `build` returns the program."""

    def __init__(self, **about: Any) -> None:
        self.about = {"rank": 0, "world_size": 1, "steps": 1} | about
        self.ops, self.forms, self.dtypes, self.devices = Words(), Words(), Words(), Words()
        self.reduce_ops, self.labels, self.groups = Words(), Words(), Words()
        self.layouts = Words()
        self.steps: list[tuple[int, int, int, int, int, int]] = []
        self.host_ns: Sequence[int] = ()
        """Host time of each step, if known."""
        self.slots: list[tuple[int, int]] = []
        self.storages: list[list[int]] = []
        self.calls: list[tuple[int, int, list[int], list[int]]] = []
        self.views: list[tuple[int, int]] = []
        self.comms: list[dict[str, Any]] = []
        self.stand_ins: list[tuple[int, int, int, int, int, list[int], list[int]]] = []

    # -- memory --------------------------------------------------------------------------------------------------------

    def storage(self, size_bytes: int, device: str = "cpu", origin: StorageOrigin = StorageOrigin.MADE) -> int:
        fill = Fill.NORMAL if origin == StorageOrigin.OUTSIDE else Fill.NONE
        self.storages.append([size_bytes, self.devices.put(device), origin, fill, 0, 1])
        return len(self.storages) - 1

    def fill(self, storage: int, fill: Fill, low: int = 0, high: int = 1) -> None:
        self.storages[storage][3:] = [fill, low, high]

    def slot(self, storage: int, dtype: str, shape: Sequence[int], stride: Sequence[int] = (), offset: int = 0) -> int:
        layout = self.layouts.put((self.dtypes.put(dtype), offset, tuple(shape), tuple(stride)))
        self.slots.append((storage, layout))
        return len(self.slots) - 1

    def group(self, ranks: Sequence[int], name: str = "") -> int:
        return self.groups.put((name, tuple(ranks)))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, kind: StepKind, row: int, *, stream: int = NOTHING, start_ns: int = NOTHING, work_ns: int = 0,
             node: int = NOTHING) -> int:  # fmt: skip
        self.steps.append((kind, row, stream, start_ns, work_ns, node))
        return len(self.steps) - 1

    def call(
        self, op: str, form: Any, inputs: Sequence[int], outputs: Sequence[int], *, schema: str = "", **when: int
    ) -> int:
        """`form` is as in `Calls.form`: the arguments, with `{"t": k}` in place of the k-th input."""
        row = (self.ops.put((op, schema)), self.forms.put(json.dumps(form)), list(inputs), list(outputs))
        self.calls.append(row)
        return self.step(StepKind.CALL, len(self.calls) - 1, **when)

    def view(self, base: int, slot: int, **when: int) -> int:
        self.views.append((base, slot))
        return self.step(StepKind.VIEW, len(self.views) - 1, **when)

    def comm(
        self,
        kind: CommKind,
        *,
        in_bytes: int,
        out_bytes: int,
        dtype: str = "float32",
        group: int = NOTHING,
        peer: int = NOTHING,
        tag: int = 0,
        is_async: bool = False,
        reduce_op: str = "sum",
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        in_splits: Sequence[int] = (),
        out_splits: Sequence[int] = (),
        batch: int = NOTHING,
        label: str = "",
        **when: int,
    ) -> int:
        """Returns the row of `comms`, to be passed to `wait`."""
        self.comms.append({
            "kind": int(kind), "group": group, "peer": peer, "tag": tag, "is_async": int(is_async),
            "dtype": self.dtypes.put(dtype), "in_bytes": in_bytes, "out_bytes": out_bytes,
            "reduce_op": self.reduce_ops.put(reduce_op), "inputs": list(inputs), "outputs": list(outputs),
            "in_splits": list(in_splits), "out_splits": list(out_splits), "batch": batch,
            "label": self.labels.put(label),
        })  # fmt: skip
        self.step(StepKind.COMM, len(self.comms) - 1, **when)
        return len(self.comms) - 1

    def wait(self, comm: int, **when: int) -> int:
        return self.step(StepKind.WAIT, comm, **when)

    def stand_in(
        self,
        kind: StandInKind,
        label: str,
        *,
        flops: int = 0,
        size_bytes: int = 0,
        dtype: str = "float32",
        dims: Sequence[int] = (),
        outputs: Sequence[int] = (),
        **when: int,
    ) -> int:
        row = (int(kind), flops, size_bytes, self.dtypes.put(dtype), self.labels.put(label), list(dims), list(outputs))
        self.stand_ins.append(row)
        return self.step(StepKind.STAND_IN, len(self.stand_ins) - 1, **when)

    def mark(self, number: int, **when: int) -> int:
        return self.step(StepKind.MARK, number, **when)

    def _host_ns(self) -> NDArray[np.int64]:
        return np.array(self.host_ns if len(self.host_ns) else [0] * len(self.steps), np.int64)

    def build(self) -> Program:
        layouts = list(self.layouts.rows)
        comm: dict[str, Any] = {
            key: Lists.of([row[key] for row in self.comms])
            if kind == "lists"
            else np.array([row[key] for row in self.comms], kind)
            for key, kind in _COMM_TYPES.items()
        }
        return checked(
            Program(
                about=self.about,
                ops=tuple(op for op, _ in self.ops.rows),
                schemas=tuple(schema for _, schema in self.ops.rows),
                forms=self.forms.all(),
                dtypes=self.dtypes.all(),
                devices=self.devices.all(),
                reduce_ops=self.reduce_ops.all(),
                labels=self.labels.all(),
                groups=tuple(ranks for _, ranks in self.groups.rows),
                group_names=tuple(name for name, _ in self.groups.rows),
                steps=Steps(*[*_columns(self.steps, ("u1", "i8", "i4", "i8", "i8", "i4")), self._host_ns()]),
                slots=Slots(*_columns(self.slots, ("i4", "i4"))),
                layouts=Layouts(*_columns(layouts, ("i4", "i8"), lists=2)),
                storages=Storages(*_columns(self.storages, ("i8", "i4", "u1", "u1", "i8", "i8"))),
                calls=Calls(*_columns(self.calls, ("i4", "i4"), lists=2)),
                views=Views(*_columns(self.views, ("i4", "i4"))),
                comms=CommColumns(**comm),
                stand_ins=StandIns(*_columns(self.stand_ins, ("u1", "i8", "i8", "i4", "i4"), lists=2)),
            )
        )


_COMM_TYPES = {
    "kind": "u1", "group": "i4", "peer": "i4", "tag": "i8", "is_async": "u1", "dtype": "i4", "in_bytes": "i8",
    "out_bytes": "i8", "reduce_op": "i4", "inputs": "lists", "outputs": "lists", "in_splits": "lists",
    "out_splits": "lists", "batch": "i4", "label": "i4",
}  # fmt: skip


def _columns(rows: Sequence[Sequence[Any]], types: Sequence[str], lists: int = 0) -> list[Any]:
    """Converts rows to columns: columns of numbers first, then `lists` columns of lists."""
    width = len(types)
    table = np.array([row[:width] for row in rows], np.int64).reshape(len(rows), width)
    numbers = [table[:, at].astype(kind) for at, kind in enumerate(types)]
    return numbers + [Lists.of([list(row[width + k]) for row in rows]) for k in range(lists)]
