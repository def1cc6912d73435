"""The schema as data: enums, node columns, the attributes that Etude owns. The docs page is generated from this file.

Internal enums start at NONE = 0 and are never the wire number, so a column of zeros means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from etude.base.errors import TraceError

SCHEMA_VERSION: Final = 1
UNKNOWN: Final = int(np.iinfo(np.int64).min)
"""An integer that was not recorded: times, sizes, counts."""
NO_TEXT: Final = -1
"""Value of a text column if nothing was recorded."""


class Kind(IntEnum):
    """What a node does."""

    NONE = 0
    INVALID = 1
    METADATA = 2
    MEM_LOAD = 3
    MEM_STORE = 4
    COMP = 5
    SEND = 6
    RECV = 7
    COLL = 8
    OTHER = 9
    """A node type newer than this schema; its wire number is kept with the node."""

    @property
    def wire_name(self) -> str:
        """The name that Chakra's own schema and tools use."""
        return _KIND_NAME[self]


_KIND_NAME: Final = {
    Kind.NONE: "NONE",
    Kind.INVALID: "INVALID_NODE",
    Kind.METADATA: "METADATA_NODE",
    Kind.MEM_LOAD: "MEM_LOAD_NODE",
    Kind.MEM_STORE: "MEM_STORE_NODE",
    Kind.COMP: "COMP_NODE",
    Kind.SEND: "COMM_SEND_NODE",
    Kind.RECV: "COMM_RECV_NODE",
    Kind.COLL: "COMM_COLL_NODE",
    Kind.OTHER: "OTHER",
}
KIND_TO_WIRE: Final = {k: int(k) - 1 for k in Kind if Kind.NONE < k < Kind.OTHER}


class Collective(IntEnum):
    """What a collective does; NONE on every other node, OTHER if the number is newer than the schema."""

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
    OTHER = 11

    @classmethod
    def parse(cls, text: str) -> Collective:
        try:
            return cls[text.upper().replace("-", "_")]
        except KeyError:
            known = ", ".join(c.name.lower() for c in cls if c)
            raise TraceError(f"unknown collective `{text}`", hint=f"known: {known}") from None


COLLECTIVE_TO_WIRE: Final = {c: int(c) - 1 for c in Collective if Collective.NONE < c < Collective.OTHER}


class Why(IntEnum):
    """Why an edge exists."""

    UNKNOWN = 0
    LAUNCH = 1
    STREAM = 2
    EVENT = 3
    SYNC = 4
    TENSOR = 5
    AUTOGRAD = 6
    COLLECTIVE = 7
    PROGRAM = 8

    @property
    def letter(self) -> str:
        """Its letter in the attribute `dep_why`."""
        return "-lseytacp"[self]


class TimeSource(IntEnum):
    """Where the times of a node come from, in a job whose times are those of the program; NONE in any other."""

    NONE = 0
    LIGHT = 1
    """As in the light window: measured with next to nothing."""
    CORRECTED = 2
    """As recorded in full, less what recording took."""
    RECORDED = 3
    """As long as recorded in full."""


class LaneKind(IntEnum):
    """Units that execute in order."""

    NONE = 0
    THREAD = 1
    """A CPU thread; its id is the `tid` of the file."""
    STREAM = 2
    """A device stream; its id is the `stream` of the file."""
    COMPUTE = 3
    """The device's compute, if no stream was recorded."""
    NETWORK = 4
    """The device's communication and remote memory, if no stream was recorded."""


class ValueKind(IntEnum):
    """The type of an attribute's value. Field number on the wire = kind + 2."""

    NONE = 0
    DOUBLE = 1
    DOUBLE_LIST = 2
    FLOAT = 3
    FLOAT_LIST = 4
    INT32 = 5
    INT32_LIST = 6
    INT64 = 7
    INT64_LIST = 8
    UINT32 = 9
    UINT32_LIST = 10
    UINT64 = 11
    UINT64_LIST = 12
    SINT32 = 13
    SINT32_LIST = 14
    SINT64 = 15
    SINT64_LIST = 16
    FIXED32 = 17
    FIXED32_LIST = 18
    FIXED64 = 19
    FIXED64_LIST = 20
    SFIXED32 = 21
    SFIXED32_LIST = 22
    SFIXED64 = 23
    SFIXED64_LIST = 24
    BOOL = 25
    BOOL_LIST = 26
    STRING = 27
    STRING_LIST = 28
    BYTES = 29
    BYTES_LIST = 30

    @property
    def is_list(self) -> bool:
        return self > 0 and self % 2 == 0

    @property
    def is_integer(self) -> bool:
        return ValueKind.INT32 <= self <= ValueKind.BOOL and self % 2 == 1

    @property
    def is_heap(self) -> bool:
        """True if the value is in the trace's heap and the cell holds its offset."""
        return self.is_list or self in (ValueKind.STRING, ValueKind.BYTES)

    @property
    def wire_name(self) -> str:
        return self.name.lower() if self.is_list else f"{self.name.lower()}_val"


HEAP_KINDS: Final = frozenset(kind for kind in ValueKind if kind.is_heap)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the node table; row i is node i."""

    name: str
    dtype: str
    unit: str
    doc: str
    default: int
    attr: str = ""
    """The `.et` attribute that carries it, if any."""
    attr_kind: ValueKind = ValueKind.NONE
    """The value kind that Etude writes; any integer kind is read and remembered."""

    @property
    def is_text(self) -> bool:
        return self.unit == "text"


def _int(name: str, unit: str, doc: str, attr: str, kind: ValueKind = ValueKind.INT64) -> Column:
    return Column(name, "int64", unit, doc, UNKNOWN, attr, kind)


NODE: Final = (
    Column("source_id", "uint64", "id", "the node's id in the file, less the rank's id base", 0),
    Column("kind", "uint8", "Kind", "what the node does", 0),
    Column("name", "int64", "text", "name", NO_TEXT),
    Column("duration_ns", "int64", "ns", "own cost, without waiting", UNKNOWN, "duration_ns", ValueKind.INT64),
    Column("lane", "int32", "Lane", "row of the lane table: CPU thread, device stream; -1 if none", -1),
    Column("cpu", "int8", "bool", "1 on the host, 0 on the device, -1 unknown", -1, "is_cpu_op", ValueKind.BOOL),
    _int("thread", "id", "CPU thread as the file numbers it", "tid"),
    _int("stream", "id", "device stream as the file numbers it", "stream"),
    Column("collective", "uint8", "Collective", "what a collective does", 0, "comm_type", ValueKind.INT64),
    _int("in_bytes", "B", "input bytes per rank of a communication", "comm_size"),
    _int("out_bytes", "B", "output bytes per rank of a communication", "out_bytes"),
    _int("tensor_bytes", "B", "bytes moved by a memory or compute node", "tensor_size", ValueKind.UINT64),
    _int("flops", "op", "arithmetic operations of a compute node", "num_ops"),
    Column("group", "int32", "slot", "group slot of a collective; -1 is the world", -1, "pg_name", ValueKind.STRING),
    Column("src", "int32", "slot", "peer slot that sends; -1 unknown", -1, "comm_src", ValueKind.INT32),
    Column("dst", "int32", "slot", "peer slot that receives; -1 unknown", -1, "comm_dst", ValueKind.INT32),
    Column("tag", "int64", "", "message tag less the rank's tag base; -1 none", -1, "comm_tag", ValueKind.INT32),
    _int("priority", "", "communication priority", "comm_priority", ValueKind.INT32),
    _int("step", "", "training or serving step", "step"),
    _int("micro_batch", "", "micro-batch within the step", "micro_batch"),
    _int("rf_id", "id", "record-function id of the profiler", "rf_id"),
    _int("external_id", "id", "external id of the profiler", "external_id"),
    _int("correlation", "id", "correlation id of launch and kernel", "correlation"),
    Column("phase", "int64", "text", "forward, backward, optimizer, ...", NO_TEXT, "phase", ValueKind.STRING),
    Column("module", "int64", "text", "module path in the model", NO_TEXT, "module", ValueKind.STRING),
    Column("io", "uint8", "bits", "1: has inputs, 2: has outputs (even if empty)", 0),
    Column("in_values", "int64", "text", "input values as recorded", NO_TEXT),
    Column("in_shapes", "int64", "text", "input shapes as recorded", NO_TEXT),
    Column("in_types", "int64", "text", "input types as recorded", NO_TEXT),
    Column("out_values", "int64", "text", "output values as recorded", NO_TEXT),
    Column("out_shapes", "int64", "text", "output shapes as recorded", NO_TEXT),
    Column("out_types", "int64", "text", "output types as recorded", NO_TEXT),
    Column("in_strides", "int64", "text", "input strides as recorded", NO_TEXT, "in_strides", ValueKind.STRING),
    Column("out_strides", "int64", "text", "output strides as recorded", NO_TEXT, "out_strides", ValueKind.STRING),
    Column("parent", "int32", "row", "the operator that called this one; -1 none", -1, "parent", ValueKind.UINT64),
    Column("time_source", "uint8", "TimeSource", "where its times come from; only with times of the program", 0),
    Column("recorded_start_ns", "int64", "ns", "start under the profiler; only with times of the program", UNKNOWN),
    Column("recorded_end_ns", "int64", "ns", "end under the profiler; only with times of the program", UNKNOWN),
    Column("recorded_duration_ns", "int64", "ns", "own cost under the profiler, likewise", UNKNOWN),
    Column("layout", "int32", "Layout", "row of the layout list: which attributes the node has, in order", 0),
)
COLUMN: Final = {c.name: c for c in NODE}
TWICE_TIMED: Final = ("time_source", "recorded_start_ns", "recorded_end_ns", "recorded_duration_ns")
"""Columns of jobs with the times of the program: what the recording itself had. A job of any other times has none."""

START_NS: Final = _int("start_ns", "ns", "recorded start", "start_ns")
"""Not a column of a Trace (recorded times are in Timing), but an attribute that Etude owns."""

STACK: Final = "stack"
"""Attribute of operators called from Python: the frames, outermost first, separated by `;`."""
COUNTER: Final = "counter:"
"""Prefix of attributes of hardware counters; the counter's own name follows."""
COUNTED_KERNEL: Final = "counted_kernel"
"""Attribute of a node with counters: the kernel they belong to, if the profiler knew its name."""
PASS: Final = "pass_"
"""Prefix of attributes (int64) of an annotation around a pass of an inference engine: `pass_context_requests`,
`pass_context_tokens`, `pass_context_keys`, the same of `generation`, `pass_new_requests`."""
RECORDED_NS: Final = "recorded_ns"
"""An attribute (int64): time from the recorded start of a node to its recorded end. Only on nodes whose own time
(`duration_ns`) differs: those that waited, and those made of others."""
AGREE: Final = "agree"
"""An attribute (int64) of collectives: the member of the group, by its position, whose order of work the others follow.
Lanes that choose among ready nodes take what that member's lanes took, one after another."""
READS_FILE: Final = "reads_file"
WRITES_FILE: Final = "writes_file"
IS_BATCH: Final = "is_batch"
IS_CHECKPOINT: Final = "is_checkpoint"
"""Attributes (int64) of memory nodes that are storage: a read or a write of a file, a batch that a step takes, a
checkpoint. Newer Chakra has node types of its own for them (`--dialect storage`)."""

DEP_WHY: Final = Column("dep_why", "int64", "text", "why the node waits for each", NO_TEXT, "dep_why", ValueKind.STRING)
"""Not a column either (reasons are one byte per edge, `data_why` and `ctrl_why`), but an attribute that Etude owns: a
letter for each data dependency, then for each control dependency, on nodes with some known reason."""

OWNED: Final = (*(c for c in NODE if c.attr), START_NS, DEP_WHY)
"""Columns that travel as attributes; an attribute list refers to them by position in this tuple."""
OWNED_INDEX: Final = {c.name: i for i, c in enumerate(OWNED)}
