"""Device traces: Kineto's Chrome JSON (CUDA, ROCm, MTIA, CPU) as columns; times are whole ns, parsed digit by digit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.capture.link.scan import ENTER, IDENTITY, INT, TEXT, TIME, WORD, Json, JsonField, Rows, Scanner
from etude.kernels.arrays import I32, I64, U8
from etude.model.schema import UNKNOWN

Ints = NDArray[np.signedinteger[Any]]

_ARGS = 1
_TEXTS_END = UNKNOWN + (1 << 48)
"""Identities below this are texts: UNKNOWN + 1 + the position of the text."""

RARE_INT: Final = {
    "Ev Idx": "event_index",
    "Fwd thread id": "forward_thread",
    "In msg nelems": "in_msg_nelems",
    "Out msg nelems": "out_msg_nelems",
    "Group size": "group_size",
    "Rank": "rank",
    "Global rank start": "global_rank_start",
    "Global rank stride": "global_rank_stride",
    "Src Rank": "src_rank",
    "Dst Rank": "dst_rank",
    "Seq": "sequence",
    "Is asynchronized op": "is_async",
    "P2P": "is_p2p",
    "wait_on_stream": "wait_on_stream",
    "wait_on_cuda_event_id": "wait_on_event",
    "wait_on_cuda_event_record_corr_id": "wait_on_record_correlation",
    "Addr": "address",
    "Bytes": "memory_bytes",
    "bytes": "copied_bytes",
    "Total Allocated": "allocated_bytes",
    "Total Reserved": "reserved_bytes",
    "Device Type": "memory_device_type",
    "Device Id": "memory_device",
    "Python id": "python_id",
    "Python parent id": "python_parent",
    "Python module id": "python_module",
    "graph id": "graph",
    "graph node id": "graph_node",
    "sort_index": "sort_index",
}
RARE_TEXT: Final = {
    "Collective name": "collective_name",
    "dtype": "dtype",
    "In split size": "in_split_size",
    "Out split size": "out_split_size",
    "Process Group Name": "group_name",
    "Process Group Description": "group_description",
    "Process Group Ranks": "group_ranks",
    "Comms Id": "comms_id",
    "cuda_sync_kind": "sync_kind",
    "kernel_backend": "kernel_backend",
    "kernel_file": "kernel_file",
    "kind": "copy_kind",
    "memory bandwidth (GB/s)": "copy_rate",
    "grid": "grid",
    "block": "block",
    "name": "label",
    "labels": "labels",
}
_PLACES: Final = {
    "Input Dims": "input_dims",
    "Input Strides": "input_strides",
    "Input type": "input_types",
    "Concrete Inputs": "concrete_inputs",
}
_IDENTITIES: Final = ("pid", "tid", "id", "stream")
_SCANNER = Scanner(
    (
        JsonField("ph", WORD),
        JsonField("cat", WORD),
        JsonField("name", WORD),
        JsonField("pid", IDENTITY),
        JsonField("tid", IDENTITY),
        JsonField("ts", TIME),
        JsonField("dur", TIME),
        JsonField("id", IDENTITY),
        JsonField("args", ENTER, into=_ARGS),
        *(JsonField(key, INT, "external_id", _ARGS) for key in ("External id", "external id", "External Id")),
        JsonField("Record function id", INT, "rf_id", _ARGS),
        JsonField("correlation", INT, "correlation", _ARGS),
        JsonField("stream", IDENTITY, "stream", _ARGS),
        JsonField("device", INT, "device", _ARGS),
        JsonField("Sequence number", INT, "sequence_number", _ARGS),
        *(JsonField(key, WORD, column, _ARGS) for key, column in _PLACES.items()),
        *(JsonField(key, INT, column, _ARGS, rare=True) for key, column in RARE_INT.items()),
        *(JsonField(key, TEXT, column, _ARGS, rare=True) for key, column in RARE_TEXT.items()),
    )
)


RANGE: Final = "cuda_profiler_range"
"""Category of ranges in which CUPTI counted; their arguments are the counters, under names of the user's choice."""
_RANGES = Scanner((JsonField("cat", WORD), JsonField("args", TEXT)))


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTimes:
    """Times under the profiler, of events that now have those of the program."""

    start_ns: I64
    duration_ns: I64
    base_ns: int
    light: NDArray[np.bool_]
    """Events that the light window has as well."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTrace:
    """One rank's events; row i is the i-th event of the file. UNKNOWN: not recorded."""

    json: Json
    """Not the file, but those of its values that columns refer to."""
    members: dict[str, Any]
    """The rest of the file's top: deviceProperties, distributedInfo, ..."""
    base_ns: int
    """Origin of the times; 0 if they are absolute."""
    phase: I32
    phases: tuple[str, ...]
    category: I32
    categories: tuple[str, ...]
    name: I32
    names: tuple[str, ...]
    start_ns: I64
    duration_ns: I64
    pid: I64
    """A number, or the handle of a text: see `identity`."""
    tid: I64
    flow: I64
    """Id of a flow event: ac2g, fwdbwd."""
    external_id: I64
    rf_id: I64
    correlation: I64
    stream: I64
    device: I64
    sequence_number: I64
    places: dict[str, Ints]
    """input_dims, input_strides, input_types, concrete_inputs: position of the text in `json`; -1: none."""
    rare: dict[str, tuple[I64, Ints]]
    """Other arguments, as listed in RARE_INT and RARE_TEXT: (rows ascending, numbers or positions of text)."""
    counters: tuple[tuple[int, dict[str, float]], ...] = ()
    """(row, counter -> value) of each range in which CUPTI counted, rows ascending."""
    recorded: RecordedTimes | None = None
    """What the times were, if they are now those of the program."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def in_the_midst(self) -> bool:
        """Its times are those of steps that others came before, without waiting for the device in between."""
        return self.recorded is not None and bool(self.recorded.light.any())

    @property
    def as_recorded(self) -> DeviceTrace:
        """The same rows with the times of the file: what else was written down with a time (calls of
        `torch.distributed`, the Flight Recorder) is found by them."""
        told = self.recorded
        if told is None:
            return self
        return replace(self, start_ns=told.start_ns, duration_ns=told.duration_ns, base_ns=told.base_ns, recorded=None)

    @property
    def distributed(self) -> dict[str, Any]:
        """rank, world_size, pg_config, ...; empty if not recorded."""
        found = self.members.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    def is_category(self, *wanted: str) -> NDArray[np.bool_]:
        """Rows of these categories."""
        return np.array([c in wanted for c in self.categories] + [False])[self.category]

    def is_phase(self, wanted: str) -> NDArray[np.bool_]:
        return np.array([p == wanted for p in self.phases] + [False])[self.phase]

    def name_has(self, part: str) -> NDArray[np.bool_]:
        """Rows whose name contains a text."""
        return np.array([part in n for n in self.names] + [False])[self.name]

    def identity(self, value: int) -> int | str:
        """A process, thread, stream or flow as in the file."""
        return self.json.text(value - UNKNOWN - 1) if UNKNOWN < value < _TEXTS_END else value

    def spread(self, column: str) -> I64:
        """A rare argument as a full column."""
        out = np.full(len(self), UNKNOWN, np.int64)
        rows, values = self.rare[column]
        out[rows] = values
        return out

    def texts(self, column: str) -> tuple[I64, I32, tuple[str, ...]]:
        """A rare text: rows, codes, words."""
        rows, places = self.rare[column]
        return rows, *self.json.coded(places)


def read_device(heap: U8, size: int, path: str = "") -> DeviceTrace:
    """A device trace from its text: `heap` holds `size` bytes followed by zeros (etude.store.compressed.load)."""
    whole = Json(heap, size, path)
    members, rows = whole.top("traceEvents", _SCANNER)
    base = members.get("baseTimeNanoseconds")
    (phase, phases), (category, categories), (name, names) = (
        (codes, whole.texts(first)) for codes, first in (rows.words[key] for key in ("ph", "cat", "name"))
    )
    counters = _counters(whole) if RANGE in categories else ()
    json, places = _kept_texts(whole, rows)
    column = rows.dense
    return DeviceTrace(
        json=json,
        members=members,
        base_ns=base if isinstance(base, int) else 0,
        phase=phase,
        phases=phases,
        category=category,
        categories=categories,
        name=name,
        names=names,
        start_ns=column["ts"],
        duration_ns=column["dur"],
        pid=column["pid"],
        tid=column["tid"],
        flow=column["id"],
        stream=column["stream"],
        external_id=column["external_id"],
        rf_id=column["rf_id"],
        correlation=column["correlation"],
        device=column["device"],
        sequence_number=column["sequence_number"],
        places={key: places[key] for key in _PLACES.values()},
        rare={key: rows.rare[key] for key in RARE_INT.values()}
        | {key: (rows.rare[key][0], places[key]) for key in RARE_TEXT.values()},
        counters=counters,
        recorded=None,
    )


def _counters(json: Json) -> tuple[tuple[int, dict[str, float]], ...]:
    """Numbers among the arguments of ranges. Their names are not known in advance, so the file is read again."""
    _, rows = json.top("traceEvents", _RANGES)
    code, first = rows.words["cat"]
    wanted = [number for number, word in enumerate(json.texts(first)) if word == RANGE]
    found = []
    for row in np.flatnonzero(np.isin(code, wanted)).tolist():
        place = int(rows.dense["args"][row])
        args = json.value(place) if place >= 0 else None
        numbers = {key: value for key, value in args.items() if _is_number(value)} if isinstance(args, dict) else {}
        found.append((row, numbers))
    return tuple(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)


def _kept_texts(json: Json, rows: Rows) -> tuple[Json, dict[str, Ints]]:
    """The texts that may be needed later, equal ones of a column once, in the order of the file; and their positions
    for every column. They are a small part of the file, which can then be released. Identities that are texts become
    handles into it."""
    named = {key: np.flatnonzero((rows.dense[key] > UNKNOWN) & (rows.dense[key] < _TEXTS_END)) for key in _IDENTITIES}
    coded = {key: rows.words[key] for key in _PLACES.values()}
    coded |= {key: json.intern(rows.rare[key][1]) for key in RARE_TEXT.values()}
    coded |= {key: json.intern(rows.dense[key][at] - (UNKNOWN + 1)) for key, at in named.items()}
    first = np.concatenate([first for _, first in coded.values()])
    order = np.argsort(first)
    kept, places = json.only(first[order])
    place = np.empty(len(order), np.int32 if kept.size < 1 << 31 else np.int64)
    place[order] = places
    found, used = {}, 0
    for key, (codes, first) in coded.items():
        found[key] = np.append(place[used : used + len(first)], place.dtype.type(-1))[codes]
        used += len(first)
    for key, at in named.items():
        rows.dense[key][at] = found[key].astype(np.int64) + (UNKNOWN + 1)
    return kept, found
