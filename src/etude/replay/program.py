"""Program: what one rank does, step by step, ready to be played. The noun between the plan and the player.

A plan makes it from a job, with the whole house at hand; a player runs it. This file and the player import the standard
library, NumPy and PyTorch alone, so that a program file plays on a machine where nothing else is installed.

A *storage* is memory with a lifetime; a *slot* is a tensor, that is a way to look at a storage (its *layout*: data
type, shape, stride, offset). Steps name slots. A slot is made by a call, by a view of another slot, by communication,
or it is there before the first step (storages of origin OUTSIDE: weights, inputs, states); it is let go after its last
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

from etude.errors import FormatError, TraceError

I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

VERSION: Final = 3
ENDING: Final = ".program"
NOTHING: Final = -1
"""A slot, group, peer or root that is not there."""
COMPILED_SPACE: Final = "compiled::"
"""Before the name of a compiled graph: a call of its code, which `about["compiled"]` has."""
TRITON_SPACE: Final = "triton::"
"""Before the name of a kernel and its file, `kernel@file`: the code of the file is in `about["compiled"]` too."""


class StepKind(IntEnum):
    """What a step does; `row` of a step is the row in the table of its kind."""

    NONE = 0
    CALL = 1
    """Calls an operator: table `calls`."""
    VIEW = 2
    """Makes a slot as another look at the storage of a slot that is there: table `views`."""
    COMM = 3
    """Issues a collective or a message: table `comms`. One that is not async is waited for at once."""
    WAIT = 4
    """The host waits until a communication is complete: `row` is the row of `comms`."""
    STAND_IN = 5
    """Synthetic work in place of what cannot be called: table `stand_ins`."""
    MARK = 6
    """A step of the program (a training step) begins here; `row` is its number from 0."""
    HOST = 7
    """Time of the host between communications, where nothing else is played: `row` is its recorded ns."""
    EVENT = 8
    """An event is recorded in the step's stream; `row` is its number."""
    AWAIT = 9
    """The step's stream waits for an event: `row`. The host goes on."""
    END = 10
    """The host has done a step of the program; `row` is its number."""


class Origin(IntEnum):
    """Where the memory of a storage comes from."""

    NONE = 0
    OUTSIDE = 1
    """Present before the first step, and until the end."""
    MADE = 2
    """Made by a step, in every iteration anew."""


class Fill(IntEnum):
    """What a storage of origin OUTSIDE holds."""

    NONE = 0
    """Anything: zeros."""
    NORMAL = 1
    """Small numbers around 0."""
    POSITIVE = 2
    """Small numbers above 0: second moments, variances."""
    INTEGERS = 3
    """Whole numbers from `low` up to and without `high`: ids, targets, indices."""
    ONES = 4
    UNIT = 5
    """Numbers around 0 of size 1: tables of embeddings, as PyTorch makes them."""
    AVERAGES = 6
    """First moments of an optimizer: small numbers around 0."""
    SQUARES = 7
    """Second moments: small numbers above 0."""


class CommKind(IntEnum):
    """What a communication does. Numbers up to BARRIER are those of `etude.model.schema.Collective`."""

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
    """What synthetic work is like."""

    NONE = 0
    GEMM = 1
    ATTENTION = 2
    ELEMENTWISE = 3
    COPY = 4
    HOST = 5
    """Work of the host of which nothing but its time is known. It is played as waiting, and never counts as covered."""


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of numbers, one a row: row i is `values[start[i]:start[i + 1]]`."""

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
    """The program itself, in order."""

    kind: U8
    row: I64
    stream: I32
    """Device stream as recorded; NOTHING: the current one."""
    start_ns: I64
    """When the step began in the recording, from the program's begin; NOTHING where no time was recorded."""
    work_ns: I64
    """Recorded time of the work that the step stands for: of kernels on a device, else of the host."""
    node: I32
    """Row of the step's node in the trace; NOTHING where there is none."""
    host_ns: I64
    """Time of the host since the step before, without the profiler and without waits for the device."""


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Tensors: a storage each, and how it is looked at."""

    storage: I32
    layout: I32
    """Row of `layouts`."""


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """Distinct ways to look at memory."""

    dtype: I32
    """Row of `Program.dtypes`."""
    offset: I64
    """Elements from the begin of the storage."""
    shape: Lists
    stride: Lists
    """Empty where it was not recorded: contiguous."""


@dataclass(frozen=True, slots=True, eq=False)
class Storages:
    """Memory."""

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
    """Slots that the results become, in order; NOTHING: a result that no step uses, or that is no tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """A slot as another look at the storage of `base`."""

    base: I32
    slot: I32


@dataclass(frozen=True, slots=True, eq=False)
class Comms:
    """Collectives and messages."""

    kind: U8
    group: I32
    """Row of `Program.groups`; NOTHING: the world."""
    peer: I32
    """Global rank of the root, the sender or the receiver; NOTHING: none."""
    tag: I64
    is_async: U8
    """1: the host goes on, and a WAIT says where it waits; 0: it waits at once."""
    dtype: I32
    """Row of `Program.dtypes`."""
    in_bytes: I64
    """What this rank gives, and takes, as the job counts it."""
    out_bytes: I64
    reduce_op: I32
    """Row of `Program.reduce_ops`."""
    inputs: Lists
    """Slots; empty where the job knows sizes alone (generated jobs): the player has buffers of its own then."""
    outputs: Lists
    """Slots; of in-place collectives the same as `inputs`."""
    in_splits: Lists
    """Rows of the first dimension to each rank of the group; empty: even."""
    out_splits: Lists
    batch: I32
    """Communications with one number are issued as one (coalesced, batched p2p); NOTHING: by itself."""
    label: I32
    """Row of `Program.labels`: the operator as recorded."""


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
    """m, n, k, batch of a GEMM or an attention, where they are known; else empty."""
    outputs: Lists
    """Slots that it makes, with nothing in them that matters."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One rank's program."""

    about: dict[str, Any]
    """rank, world_size, job, steps (how many training steps), recorded_step_ns, unprofiled_step_ns, threads (of an
    operator on the CPU), host (`events` of the profiler, `calls` of the driver, and their `recorded_ns`) ..."""
    ops: tuple[str, ...]
    """Operators: `aten::mm`, `aten::add.Tensor`."""
    schemas: tuple[str, ...]
    """The schema of each, as recorded."""
    forms: tuple[str, ...]
    dtypes: tuple[str, ...]
    """As PyTorch names them: `float32`, `bfloat16`."""
    devices: tuple[str, ...]
    reduce_ops: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    """Members of each process group, as global ranks, in the order of their group ranks."""
    group_names: tuple[str, ...]
    steps: Steps
    slots: Slots
    layouts: Layouts
    storages: Storages
    calls: Calls
    views: Views
    comms: Comms
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
    "comms": Comms,
    "stand_ins": StandIns,
}
_WORDS: Final = ("ops", "schemas", "forms", "dtypes", "devices", "reduce_ops", "labels", "group_names")


def save(program: Program, path: str | PathLike[str]) -> None:
    """One file: a zip of NumPy arrays and a JSON head. `path` is written as it is, so name it with `.program`."""
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
    """A program that `save` wrote; nothing in the file is executed or unpickled."""
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
    """The program, if all its numbers name something that is there."""
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
