"""Host traces: the JSON of PyTorch's ExecutionTraceObserver, schema 1.0.1 (flat) to 1.1.1-chakra.0.0.4, as columns.

Values, shapes, types and strides stay in the file's text: a column holds the position of the JSON, which
`HostTrace.json` decodes on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.capture.link.scan import ATTRIBUTES, ENTER, INT, TEXT, WORD, Json, JsonField, Rows, Scanner
from etude.kernels.arrays import I32, I64, U8, distinct_values
from etude.model.schema import UNKNOWN

PROCESS_ROOTS: Final = ("[pytorch|profiler|execution_trace|process]", "[pytorch|profiler|execution_graph|process]")
THREAD_ROOTS: Final = ("[pytorch|profiler|execution_trace|thread]", "[pytorch|profiler|execution_graph|thread]")

_IN, _OUT, _ATTR = 1, 2, 3
_NUMBERS = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
_IO = ("values", "shapes", "types", "strides")
_KERNEL = ("kernel_backend", "kernel_file", "tensor_range")
_COMM_TEXT = ("collective_name", "dtype", "in_split_size", "out_split_size", "pg_name", "pg_desc")
_COMM_INT = ("in_msg_nelems", "out_msg_nelems", "global_rank_start", "global_rank_stride", "pg_size")
_LINKED: Final = {"exclusive_dur": TEXT, "inter_thread_dep": INT, "cat": TEXT, "stream": INT, "pg_name": TEXT}
"""Fields that the official linker adds to nodes."""
_CHAKRA = Scanner(
    (
        JsonField("id", INT),
        JsonField("name", WORD),
        JsonField("ctrl_deps", INT, "caller"),
        JsonField("inputs", ENTER, into=_IN),
        JsonField("outputs", ENTER, into=_OUT),
        JsonField("attrs", ATTRIBUTES, into=_ATTR),
        *(JsonField(key, TEXT if key == "values" else WORD, f"in_{key}", _IN) for key in _IO),
        *(JsonField(key, TEXT if key == "values" else WORD, f"out_{key}", _OUT) for key in _IO),
        *(JsonField(key, INT, context=_ATTR) for key in _NUMBERS),
        JsonField("op_schema", WORD, context=_ATTR),
        *(JsonField(key, TEXT, context=_ATTR, rare=True) for key in _KERNEL),
        *(JsonField(key, TEXT, context=_ATTR, rare=True) for key in _COMM_TEXT),
        *(JsonField(key, INT, context=_ATTR, rare=True) for key in _COMM_INT),
        *(JsonField(key, kind, f"linked_{key}", rare=True) for key, kind in _LINKED.items()),
    ),
    attribute_context=_ATTR,
)
_FLAT = Scanner(
    (
        JsonField("id", INT),
        JsonField("name", WORD),
        JsonField("parent", INT, "caller"),
        JsonField("inputs", TEXT, "in_values"),
        JsonField("input_shapes", WORD, "in_shapes"),
        JsonField("input_types", WORD, "in_types"),
        JsonField("outputs", TEXT, "out_values"),
        JsonField("output_shapes", WORD, "out_shapes"),
        JsonField("output_types", WORD, "out_types"),
        *(JsonField(key, INT) for key in _NUMBERS),
        JsonField("op_schema", WORD),
    )
)


class ProcessGroup(msgspec.Struct, frozen=True):
    """A group that this rank is in, as `## process_group:init ##` records it. No ranks means all of them."""

    pg_name: str
    pg_desc: str = ""
    backend_config: str = ""
    ranks: list[int] = []
    group_size: int = 0
    group_count: int = 0
    backend_id: int = 0
    """Name of the group in records before 1.0.3."""


@dataclass(frozen=True, slots=True, eq=False)
class Comms:
    """The collectives described by `record_param_comms` nodes; one entry per node, rows ascending. Text is in words."""

    row: I64
    number: dict[str, I64]
    """in_msg_nelems, out_msg_nelems, global_rank_start, global_rank_stride, pg_size; UNKNOWN: not recorded."""
    text: dict[str, tuple[I32, tuple[str, ...]]]
    """collective_name, dtype, in_split_size, out_split_size, pg_name, pg_desc: codes (-1: none) and words."""


@dataclass(frozen=True, slots=True, eq=False)
class HostTrace:
    """One rank's operators; row i is the i-th node of the file, which is written in the order of their ends."""

    json: Json
    schema: str
    members: dict[str, Any]
    """The rest of the file's top: pid, time, start_ts, finish_ts."""
    id: I64
    caller: I64
    """Id of the calling node; a root calls itself. UNKNOWN: not recorded."""
    name: I32
    names: tuple[str, ...]
    rf_id: I64
    fw_parent: I64
    seq_id: I64
    scope: I64
    tid: I64
    fw_tid: I64
    op_schema: I32
    op_schemas: tuple[str, ...]
    places: dict[str, I64]
    """in_values, in_shapes, in_types, in_strides, out_...: position of the JSON text; UNKNOWN: none."""
    kernel: dict[str, tuple[I64, I64]]
    """kernel_backend, kernel_file, tensor_range: (rows, positions), only if not empty."""
    comms: Comms
    groups: tuple[ProcessGroup, ...]
    linked: dict[str, tuple[I64, I64]]
    """exclusive_dur, inter_thread_dep, cat, stream, pg_name, if the official linker wrote the file: (rows ascending,
    numbers or positions of text)."""

    def __len__(self) -> int:
        return len(self.id)

    @property
    def is_process_root(self) -> NDArray[np.bool_]:
        return self._named(PROCESS_ROOTS)

    @property
    def is_thread_root(self) -> NDArray[np.bool_]:
        return self._named(THREAD_ROOTS)

    def _named(self, wanted: tuple[str, ...]) -> NDArray[np.bool_]:
        return np.array([name in wanted for name in self.names] + [False])[self.name]

    def value(self, column: str, row: int) -> Any:
        """A recorded value, e.g. ("in_shapes", 7), decoded."""
        place = int(self.places[column][row]) if column in self.places else UNKNOWN
        return None if place < 0 else self.json.value(place)


def read_host(heap: U8, size: int, path: str = "") -> HostTrace:
    """A host trace from its text: `heap` holds `size` bytes followed by zeros (etude.store.compressed.load)."""
    json = Json(heap, size, path)
    schema = _schema(json)
    members, rows = json.top("nodes", _CHAKRA if "-chakra" in schema else _FLAT)
    column = rows.dense
    for needed, there in (("id", column["id"] != UNKNOWN), ("name", rows.words["name"][0] >= 0)):
        if (bad := np.flatnonzero(~there)).size:
            raise FormatError(f"node {bad[0]} of the list has no `{needed}`", path=path, hint="is it a host trace?")
    (name, names), (op_schema, op_schemas) = (
        (codes, json.texts(first)) for codes, first in (rows.words[key] for key in ("name", "op_schema"))
    )
    places = [f"{side}_{part}" for side in ("in", "out") for part in _IO]
    return HostTrace(
        json=json,
        schema=schema,
        members={key: value for key, value in members.items() if key != "schema"},
        id=column["id"],
        caller=column["caller"],
        name=name,
        names=names,
        **{key: column[key] for key in _NUMBERS},
        op_schema=op_schema,
        op_schemas=op_schemas,
        places={key: column[key] for key in places if key in column}
        | {key: rows.places(key) for key in places if key in rows.words},
        kernel={key: _not_empty(json, *rows.rare[key]) for key in _KERNEL if key in rows.rare},
        comms=_comms(json, rows),
        groups=_groups(json, name, names, column["in_values"]),
        linked={key: rows.rare[f"linked_{key}"] for key in _LINKED if f"linked_{key}" in rows.rare},
    )


def _schema(json: Json) -> str:
    """The schema version, which comes before the nodes in every file and determines their form."""
    head = json.heap[: min(json.size, 4096)].tobytes()
    at = head.find(b'"schema"')
    colon = head.find(b":", at)
    quote = head.find(b'"', colon)
    if at < 0 or colon < 0 or quote < 0:
        raise FormatError(
            "no `schema` at its start: not a host trace", path=json.path, hint="host: ExecutionTraceObserver's JSON"
        )
    return json.text(quote)


def _not_empty(json: Json, rows: I64, places: I64) -> tuple[I64, I64]:
    keep = (json.heap[places] != ord('"')) | (json.heap[places + 1] != ord('"'))
    return rows[keep], places[keep]


def _comms(json: Json, rows: Rows) -> Comms:
    found = [rows.rare[key][0] for key in _COMM_TEXT + _COMM_INT if key in rows.rare]
    row = distinct_values(np.concatenate(found)) if found else np.empty(0, np.int64)

    def spread(key: str) -> I64:
        out = np.full(len(row), UNKNOWN, np.int64)
        if key in rows.rare:
            at, values = rows.rare[key]
            out[np.searchsorted(row, at)] = values
        return out

    text = {key: json.coded(spread(key)) for key in _COMM_TEXT}
    return Comms(row, {key: spread(key) for key in _COMM_INT}, text)


def _groups(json: Json, name: I32, names: tuple[str, ...], values: I64) -> tuple[ProcessGroup, ...]:
    """Groups of all `## process_group:init ##` nodes, without duplicates: each start of the observer writes one."""
    wanted = np.array(["process_group:init" in n for n in names] + [False])
    found: dict[str, ProcessGroup] = {}
    for row in np.flatnonzero(wanted[name]).tolist():
        recorded = json.value(int(values[row])) if values[row] >= 0 else None
        for text in recorded if isinstance(recorded, list) else ():
            if isinstance(text, str):
                try:
                    groups = msgspec.json.decode(text, type=list[ProcessGroup])
                except msgspec.MsgspecError as problem:
                    raise json.error(int(values[row]), f"process groups: {problem}") from None
                found.update({group.pg_name: group for group in groups})
    return tuple(found.values())
