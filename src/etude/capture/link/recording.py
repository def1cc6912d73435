"""A `Recording`: what any profiler wrote about one rank, in neutral columns, before the causal graph is built from it.

    recording = Recording(path="run.sqlite", category=..., name=..., names=..., start_ns=..., duration_ns=..., ...)
    trace = device_trace(recording)      # like the reader of Kineto's files

A reader of a new format is one file that fills these columns. Categories are those of `CATEGORIES`; communications are
described once per distinct operation (`Talk`), never once per event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from etude.base.shapes import names_in
from etude.capture.link.device import RARE_INT, RARE_TEXT, DeviceTrace
from etude.capture.link.scan import Json
from etude.kernels.arrays import I32, I64, U8, distinct_values
from etude.model.schema import UNKNOWN
from etude.model.text import PAD

CATEGORIES: Final = names_in("""
    cpu_op user_annotation python_function cuda_runtime xla_runtime cuda_sync kernel gpu_memcpy gpu_memset
""")
CPU_OP, ANNOTATION, PYTHON, CUDA_CALL, XLA_CALL, SYNC, KERNEL, COPY, FILL = range(len(CATEGORIES))
TOLD: Final = "told"
"""The member of a trace that holds its reader's notes."""
PERMUTE: Final = "collective_permute"
_PLACES: Final = ("input_dims", "input_strides", "input_types", "concrete_inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One communication as a program requests it. Bytes are UNKNOWN and members empty if not recorded."""

    collective: str
    """In PyTorch's spelling (`all_reduce`, `reduce_scatter`, `send`), or PERMUTE."""
    dtype: str = ""
    """In PyTorch's spelling: `Float`, `BFloat16`."""
    in_bytes: int = UNKNOWN
    out_bytes: int = UNKNOWN
    members: tuple[int, ...] = ()
    to: int = -1
    """Rank that a permutation sends to; -1: none."""
    source: int = -1
    """Rank that a permutation receives from."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceRecording:
    """One rank. Row i is an event; UNKNOWN if a number was not recorded, -1 if a code was not."""

    path: str
    rank: int | None = None
    """None: not in the file."""
    category: U8
    """Position in CATEGORIES."""
    name: I32
    names: tuple[str, ...]
    start_ns: I64
    duration_ns: I64
    thread: I64
    """Thread of host events. A step without a thread belongs to the device."""
    stream: I64
    device: I64
    correlation: I64
    """Connects a call to what it launched; UNKNOWN or 0: nothing."""
    talk: I32
    """Position in `talks`; -1: no communication, or an unknown one."""
    talks: Sequence[Talk] = ()
    copied_bytes: I64
    wait_on_event: I64 | None = None
    """Number of the event that a SYNC row waits for."""
    device_name: str = ""
    world_size: int = 0
    base_ns: int = 0
    """Origin of the times, in Unix time; 0 if they are absolute or it is unknown."""
    told: Sequence[str] = field(default=())
    """What a reader left out or could not know, for the notes of the rank."""

    def __len__(self) -> int:
        return len(self.start_ns)


def coded(values: Sequence[str]) -> tuple[I32, tuple[str, ...]]:
    """(code of each text, the distinct texts in order of their first use)."""
    codes: dict[str, int] = {}
    found = np.fromiter((codes.setdefault(v, len(codes)) for v in values), np.int32, len(values))
    return found, tuple(codes)


def step_name(number: int | str) -> str:
    """The name of steps in all recordings."""
    return f"ProfilerStep#{number}"


def device_trace(of: DeviceRecording) -> DeviceTrace:
    """A recording as the columns from which the causal graph is built."""
    texts = _Texts()
    numbers = {column: _nothing() for column in RARE_INT.values()}
    numbers |= {"in_bytes": _nothing(), "out_bytes": _nothing()}
    words = {column: _nothing() for column in RARE_TEXT.values()}
    rows = np.flatnonzero(of.talk >= 0)
    if len(rows):
        said, spoken = _talks(of, rows, texts)
        numbers |= said
        words |= spoken
    numbers["copied_bytes"] = _known(of.copied_bytes)
    if of.wait_on_event is not None:
        numbers["wait_on_event"] = _known(of.wait_on_event)
    n = len(of)
    unknown = np.full(n, UNKNOWN, np.int64)
    used = distinct_values(of.category)
    return DeviceTrace(
        json=texts.json(of.path),
        members=_members(of),
        base_ns=of.base_ns,
        phase=np.zeros(n, np.int32),
        phases=("X",),
        category=np.searchsorted(used, of.category).astype(np.int32),
        categories=tuple(CATEGORIES[c] for c in used.tolist()),
        name=of.name,
        names=of.names,
        start_ns=of.start_ns,
        duration_ns=of.duration_ns,
        pid=unknown,
        tid=of.thread,
        flow=unknown,
        external_id=unknown,
        rf_id=unknown,
        correlation=of.correlation,
        stream=of.stream,
        device=of.device,
        sequence_number=unknown,
        places={column: np.full(n, -1, np.int32) for column in _PLACES},
        rare={**numbers, **words},
    )


def _nothing() -> tuple[I64, I64]:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _known(column: I64) -> tuple[I64, I64]:
    rows = np.flatnonzero(column != UNKNOWN)
    return rows, column[rows]


def _members(of: DeviceRecording) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if of.told:
        found[TOLD] = list(of.told)
    if of.device_name:
        found["deviceProperties"] = [{"name": of.device_name}]
    if of.rank is not None or of.world_size:
        found["distributedInfo"] = {"rank": of.rank or 0, "world_size": of.world_size}
    return found


Rare = dict[str, tuple[I64, I64]]


def _talks(of: DeviceRecording, rows: I64, texts: _Texts) -> tuple[Rare, Rare]:
    """(Numbers, positions of texts) of the events that communicate, from one description per operation."""
    which = of.talk[rows]
    numbers, words = {}, {}
    for column, values in (
        ("in_bytes", [t.in_bytes for t in of.talks]),
        ("out_bytes", [t.out_bytes for t in of.talks]),
        ("dst_rank", [t.to if t.to >= 0 else UNKNOWN for t in of.talks]),
        ("src_rank", [t.source if t.source >= 0 else UNKNOWN for t in of.talks]),
        ("group_size", [len(t.members) or UNKNOWN for t in of.talks]),
    ):
        spread = np.array(values, np.int64)[which]
        numbers[column] = rows[spread != UNKNOWN], spread[spread != UNKNOWN]
    for column, said in (
        ("collective_name", [t.collective for t in of.talks]),
        ("dtype", [t.dtype for t in of.talks]),
        ("group_name", [group_name(t.members) for t in of.talks]),
        ("group_ranks", [str(list(t.members)) if t.members else "" for t in of.talks]),
    ):
        places = np.array([texts.put(text) if text else -1 for text in said], np.int64)[which]
        words[column] = rows[places >= 0], places[places >= 0]
    return numbers, words


def group_name(members: tuple[int, ...]) -> str:
    """A name for a group without one: the same for the same list of members."""
    return "ranks " + ",".join(map(str, members)) if members else ""


def select(of: DeviceRecording, rows: I64, **changes: Any) -> DeviceRecording:
    """Some rows of a recording, in order."""
    columns = names_in("""
        category name start_ns duration_ns thread stream device correlation talk copied_bytes wait_on_event
    """)
    taken = {key: values[rows] for key in columns if (values := getattr(of, key)) is not None}
    return replace(of, **(taken | changes))


class _Texts:
    """JSON strings one after the other, equal ones once, to which columns of a trace point."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, text: str) -> int:
        if text not in self._place:
            self._place[text] = self._size
            self._parts.append(msgspec.json.encode(text) + b" ")
            self._size += len(self._parts[-1])
        return self._place[text]

    def json(self, path: str) -> Json:
        heap = np.zeros(self._size + PAD, np.uint8)
        heap[: self._size] = np.frombuffer(b"".join(self._parts), np.uint8)
        return Json(heap, self._size, path, whole=False)


def merged_told(counts: Mapping[str, int]) -> tuple[str, ...]:
    """`{count} {what}` for each thing that was left out."""
    return tuple(f"{count:,} {what}" for what, count in counts.items() if count)
