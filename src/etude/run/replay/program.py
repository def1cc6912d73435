"""Program: what one rank does, step by step, ready to be played. The interface between the plan and the player.

A plan makes it from a job, with all of Etude available; a player runs it. This file and the player import only the
standard library, NumPy and PyTorch, so that a program file can be played on a machine with nothing else installed.

A *storage* is memory with a lifetime; a *slot* is a tensor, that is a view of a storage with a *layout* (data type,
shape, stride, offset). Steps refer to slots. A slot is made by a call, by a view of another slot or by communication,
or it exists before the first step (storages of origin OUTSIDE: weights, inputs, states); it is freed after its last
use.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field, fields
from enum import IntEnum
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, TraceError
from etude.kernels.arrays import I32, I64, U8

VERSION: Final = 3
ENDING: Final = ".program"
NOTHING: Final = -1
"""No slot, group, peer or root."""
COMPILED_SPACE: Final = "compiled::"
"""Prefix of the name of a compiled graph: a call of its code, which is in `about["compiled"]`."""
TRITON_SPACE: Final = "triton::"
"""Prefix of `kernel@file`, a kernel and its file: the code of the file is in `about["compiled"]` too."""


class StepKind(IntEnum):
    """What a step does; the `row` of a step is a row of the table of its kind."""

    NONE = 0
    CALL = 1
    """Calls an operator: table `calls`."""
    VIEW = 2
    """Makes a slot as a view of the storage of an existing slot: table `views`."""
    COMM = 3
    """Issues a collective or a message: table `comms`. One that is not async is waited for at once."""
    WAIT = 4
    """The host waits until a communication is complete: `row` is the row of `comms`."""
    STAND_IN = 5
    """Synthetic work in place of what cannot be called: table `stand_ins`."""
    MARK = 6
    """A training step of the program begins here; `row` is its number from 0."""
    HOST = 7
    """Host time between communications, in programs that play nothing else: `row` is its recorded ns."""
    EVENT = 8
    """Records an event in the step's stream; `row` is its number."""
    AWAIT = 9
    """The step's stream waits for an event: `row` is its number. The host continues."""
    END = 10
    """The host has finished a training step of the program; `row` is its number."""


class StorageOrigin(IntEnum):
    """Where the memory of a storage comes from."""

    NONE = 0
    OUTSIDE = 1
    """Exists before the first step, and until the end."""
    MADE = 2
    """Made by a step, again in every iteration."""


class Fill(IntEnum):
    """Contents of a storage of origin OUTSIDE."""

    NONE = 0
    """Zeros; the contents do not matter."""
    NORMAL = 1
    """Small numbers around 0."""
    POSITIVE = 2
    """Small numbers above 0: second moments, variances."""
    INTEGERS = 3
    """Integers from `low` (included) to `high` (excluded): ids, targets, indices."""
    ONES = 4
    UNIT = 5
    """Numbers around 0 with standard deviation 1: embedding tables, as PyTorch initialises them."""
    AVERAGES = 6
    """First moments of an optimizer: small numbers around 0."""
    SQUARES = 7
    """Second moments of an optimizer: small numbers above 0."""


class CommKind(IntEnum):
    """The kind of a communication. Numbers up to BARRIER are those of `etude.model.schema.Collective`."""

    NONE = 0
    ALL_REDUCE = 1
    REDUCE = 2
    ALL_GATHER = 3
    GATHER = 4
    SCATTER = 5
    BROADCAST = 6
    ALL_TO_ALL = 7
    REDUCE_SCATTER = 8
    REDUCE_SCATTER_BLOCK = 9
    BARRIER = 10
    SEND = 20
    RECV = 21


class StandInKind(IntEnum):
    """The kind of synthetic work."""

    NONE = 0
    GEMM = 1
    ATTENTION = 2
    ELEMENTWISE = 3
    COPY = 4
    HOST = 5
    """Host work of which only the time is known. It is played as a busy wait, and never counts as covered."""


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of numbers, one for each row: row i is `values[start[i]:start[i + 1]]`."""

    start: I64
    values: I64

    @classmethod
    def of(cls, rows: list[list[int]]) -> Lists:
        start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=start[1:])
        return cls(start, np.array([value for row in rows for value in row], np.int64))

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, row: int) -> list[int]:
        found: list[int] = self.values[self.start[row] : self.start[row + 1]].tolist()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of the program, in order."""

    kind: U8
    row: I64
    stream: I32
    """Device stream as recorded; NOTHING: the main stream."""
    start_ns: I64
    """Recorded start of the step, in ns from the start of the program; NOTHING if no time was recorded."""
    work_ns: I64
    """Recorded time of the step's work: of its kernels on a device, otherwise of the host."""
    node: I32
    """Row of the step's node in the trace; NOTHING if there is none."""
    host_ns: I64
    """Host time since the previous step, without the profiler and without waits for the device."""


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Tensors: each has a storage and a layout."""

    storage: I32
    layout: I32
    """Row of `layouts`."""


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """Distinct layouts of tensors."""

    dtype: I32
    """Row of `Program.dtypes`."""
    offset: I64
    """Elements from the start of the storage."""
    shape: Lists
    stride: Lists
    """Empty if it was not recorded: contiguous."""


@dataclass(frozen=True, slots=True, eq=False)
class Storages:
    """Pieces of memory."""

    size_bytes: I64
    device: I32
    """Row of `Program.devices`."""
    origin: U8
    fill: U8
    low: I64
    high: I64


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Calls of operators."""

    op: I32
    """Row of `Program.ops`."""
    form: I32
    """Row of `Program.forms`: the arguments in the order of the schema, as JSON; `{"t": k}` is the k-th of `inputs`."""
    inputs: Lists
    """Slots."""
    outputs: Lists
    """Slots that the results become, in order; NOTHING for a result that no step uses or that is not a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """A slot that is a view of the storage of `base`."""

    base: I32
    slot: I32


@dataclass(frozen=True, slots=True, eq=False)
class CommColumns:
    """Collectives and messages."""

    kind: U8
    group: I32
    """Row of `Program.groups`; NOTHING: the world."""
    peer: I32
    """Global rank of the root, the sender or the receiver; NOTHING if there is none."""
    tag: I64
    is_async: U8
    """1: the host continues, and a WAIT step waits for it; 0: the host waits at once."""
    dtype: I32
    """Row of `Program.dtypes`."""
    in_bytes: I64
    """Bytes that this rank sends and receives, as counted by the job."""
    out_bytes: I64
    reduce_op: I32
    """Row of `Program.reduce_ops`."""
    inputs: Lists
    """Slots; empty if the job has only sizes (generated jobs): the player then uses its own buffers."""
    outputs: Lists
    """Slots; for in-place collectives the same as `inputs`."""
    in_splits: Lists
    """Rows of the first dimension for each rank of the group; empty: equal shares."""
    out_splits: Lists
    batch: I32
    """Communications with the same number are issued as one (coalesced, batched p2p); NOTHING: not in a batch."""
    label: I32
    """Row of `Program.labels`: the name of the recorded operator."""


@dataclass(frozen=True, slots=True, eq=False)
class StandIns:
    """Synthetic work."""

    kind: U8
    flops: I64
    size_bytes: I64
    """Bytes read and written."""
    dtype: I32
    label: I32
    dims: Lists
    """m, n, k and batch of a GEMM or an attention, if known; otherwise empty."""
    outputs: Lists
    """Slots that it makes, with arbitrary contents."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The program of one rank."""

    about: dict[str, Any]
    """rank, world_size, job, steps (number of training steps), recorded_step_ns, unprofiled_step_ns, threads (of an
    operator on the CPU), host (`events` of the profiler, `calls` of the driver, and their `recorded_ns`) ..."""
    ops: tuple[str, ...]
    """Operators: `aten::mm`, `aten::add.Tensor`."""
    schemas: tuple[str, ...]
    """The schema of each operator, as recorded."""
    forms: tuple[str, ...]
    dtypes: tuple[str, ...]
    """PyTorch's names: `float32`, `bfloat16`."""
    devices: tuple[str, ...]
    reduce_ops: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    """Members of each process group, as global ranks, ordered by group rank."""
    group_names: tuple[str, ...]
    steps: Steps
    slots: Slots
    layouts: Layouts
    storages: Storages
    calls: Calls
    views: Views
    comms: CommColumns
    stand_ins: StandIns
    path: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.steps.kind)

    def save(self, path: str | PathLike[str]) -> None:
        """See `save`."""
        save(self, path)


_TABLES: Final = {
    "steps": Steps,
    "slots": Slots,
    "layouts": Layouts,
    "storages": Storages,
    "calls": Calls,
    "views": Views,
    "comms": CommColumns,
    "stand_ins": StandIns,
}
_WORDS: Final = ("ops", "schemas", "forms", "dtypes", "devices", "reduce_ops", "labels", "group_names")


def save(program: Program, path: str | PathLike[str]) -> None:
    """Writes a program as one file, a zip of NumPy arrays and a JSON head. `path` is used unchanged; end it in
    `.program`."""
    head = {"format": "etude program", "version": VERSION, "about": program.about, "groups": program.groups}
    head |= {words: getattr(program, words) for words in _WORDS}
    arrays: dict[str, NDArray[Any]] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
    for name, kind in _TABLES.items():
        table = getattr(program, name)
        for column in fields(kind):
            value = getattr(table, column.name)
            if isinstance(value, Lists):
                arrays[f"{name}.{column.name}.start"] = value.start
                arrays[f"{name}.{column.name}.values"] = value.values
            else:
                arrays[f"{name}.{column.name}"] = value
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load(path: str | PathLike[str]) -> Program:
    """Reads a program that `save` wrote; nothing in the file is executed or unpickled. Raises FormatError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = json.loads(arrays["head"].tobytes())
        if head["format"] != "etude program" or head["version"] != VERSION:
            raise FormatError(f"version {head['version']} of a program", path=path, hint="plan it again")
        tables: dict[str, Any] = {name: _table(kind, name, arrays) for name, kind in _TABLES.items()}
        words: dict[str, Any] = {name: tuple(head[name]) for name in _WORDS}
        groups = tuple(tuple(group) for group in head["groups"])
        return checked(Program(about=head["about"], groups=groups, **words, **tables, path=str(path)))
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise FormatError(f"is not a program: {problem}", path=path, hint="`etude replay JOB --plan DIR`") from None


def _table(kind: type, name: str, arrays: dict[str, NDArray[Any]]) -> Any:
    found = {}
    for column in fields(kind):
        key = f"{name}.{column.name}"
        found[column.name] = (
            Lists(arrays[f"{key}.start"], arrays[f"{key}.values"]) if key not in arrays else arrays[key]
        )
    return kind(**found)


def checked(program: Program) -> Program:
    """Returns the program if all its row numbers are in range; otherwise raises TraceError."""
    rows = {
        StepKind.CALL: len(program.calls.op),
        StepKind.VIEW: len(program.views.slot),
        StepKind.COMM: len(program.comms.kind),
        StepKind.WAIT: len(program.comms.kind),
        StepKind.STAND_IN: len(program.stand_ins.kind),
    }
    steps, slots = program.steps, len(program.slots.storage)
    for kind, count in rows.items():
        _inside(f"steps of kind {kind.name.lower()}", steps.row[steps.kind == kind], 0, count)
    _inside("kinds of steps", steps.kind, StepKind.CALL, len(StepKind))
    _inside("slots: storage", program.slots.storage, 0, len(program.storages.size_bytes))
    _inside("slots: layout", program.slots.layout, 0, len(program.layouts.dtype))
    _inside("layouts: dtype", program.layouts.dtype, 0, len(program.dtypes))
    _inside("storages: device", program.storages.device, 0, len(program.devices))
    _inside("calls: op", program.calls.op, 0, len(program.ops))
    _inside("calls: form", program.calls.form, 0, len(program.forms))
    _inside("views: base", program.views.base, 0, slots)
    _inside("views: slot", program.views.slot, 0, slots)
    _inside("comms: group", program.comms.group, NOTHING, len(program.groups))
    for name, lists in (
        ("calls: inputs", program.calls.inputs),
        ("calls: outputs", program.calls.outputs),
        ("comms: inputs", program.comms.inputs),
        ("comms: outputs", program.comms.outputs),
        ("stand-ins: outputs", program.stand_ins.outputs),
    ):
        _inside(name, lists.values, NOTHING, slots)
    return program


def _inside(what: str, numbers: NDArray[Any], low: int, high: int) -> None:
    bad = np.flatnonzero((numbers < low) | (numbers >= high))
    if bad.size:
        raise TraceError(f"{what}: {int(numbers[bad[0]])} is not from {low} to {high - 1}", where=f"row {bad[0]}")
