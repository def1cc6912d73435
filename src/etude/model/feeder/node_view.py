"""One node by name, for a simulator that has it in flight. Everything else uses columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.model import reasons, text
from etude.model.attrs import decode_value
from etude.model.job import Groups
from etude.model.schema import COLLECTIVE_TO_WIRE, UNKNOWN, Collective, Kind, LaneKind, ValueKind
from etude.model.trace import Attr, Trace


@dataclass(slots=True, eq=False, kw_only=True)
class Bound:
    """A trace, or a range of one, as one rank runs it: slots bound to groups and ranks, bases of ids and tags."""

    trace: Trace
    groups: Groups
    group_of: I32
    """Group of each group slot."""
    peer_of: I64
    """Rank behind each peer slot; below 0 if unknown."""
    id_base: int = 0
    tag_base: int = 0
    start_ns: I64 | None = None
    """Recorded starts, if there are any."""
    _cell_start: I64 | None = field(default=None, init=False)

    def cell_start(self) -> I64:
        if self._cell_start is None:
            self._cell_start = self.trace.cell_start()
        return self._cell_start

    def values(self, column: str, rows: I32) -> NDArray[Any]:
        """A column of numbers at these rows, with ids and tags as in the rank's file."""
        found: NDArray[Any] = getattr(self.trace, column)[rows]
        if column == "source_id":
            return found + np.uint64(self.id_base)
        return np.where(found >= 0, found + self.tag_base, found) if column == "tag" else found

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the trace."""
        return 0 if self._cell_start is None else self._cell_start.nbytes


class NodeSource(Protocol):
    """Where views find their nodes."""

    def locate(self, rank: int, node: int) -> tuple[Bound, int]:
        """A range of the rank's trace that contains the node, and the node's row in it."""


class _Number:
    """A column of integers; None if not recorded."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.column = name

    @overload
    def __get__(self, view: None, owner: type) -> _Number: ...
    @overload
    def __get__(self, view: NodeView, owner: type) -> int | None: ...
    def __get__(self, view: NodeView | None, owner: type) -> _Number | int | None:
        if view is None:
            return self
        bound, row = view._locate()
        value = int(getattr(bound.trace, self.column)[row])
        return None if value == UNKNOWN else value


class _TextColumn:
    """A column of text; "" if not recorded."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.column = name

    @overload
    def __get__(self, view: None, owner: type) -> _TextColumn: ...
    @overload
    def __get__(self, view: NodeView, owner: type) -> str: ...
    def __get__(self, view: NodeView | None, owner: type) -> _TextColumn | str:
        if view is None:
            return self
        bound, row = view._locate()
        return text.string(bound.trace.heap, int(getattr(bound.trace, self.column)[row]))


class NodeView:
    """A node of one rank. Numbers that were not recorded are None, texts are "".

    A view holds no values, only where they are; it stays good for as long as its feeder does.
    """

    __slots__ = ("_source", "node", "rank")

    def __init__(self, source: NodeSource, rank: int, node: int) -> None:
        self._source = source
        self.rank = rank
        self.node = node
        """Row in the rank's trace."""

    def _locate(self) -> tuple[Bound, int]:
        return self._source.locate(self.rank, self.node)

    def __repr__(self) -> str:
        return f"NodeView(rank {self.rank}, node {self.node}, id {self.source_id}, {self.kind.name} `{self.name}`)"

    name = _TextColumn()
    duration_ns = _Number()
    in_bytes = _Number()
    out_bytes = _Number()
    tensor_bytes = _Number()
    flops = _Number()
    thread = _Number()
    stream = _Number()
    priority = _Number()
    step = _Number()
    micro_batch = _Number()
    rf_id = _Number()
    external_id = _Number()
    correlation = _Number()
    phase = _TextColumn()
    module = _TextColumn()
    in_values = _TextColumn()
    in_shapes = _TextColumn()
    in_types = _TextColumn()
    out_values = _TextColumn()
    out_shapes = _TextColumn()
    out_types = _TextColumn()

    @property
    def source_id(self) -> int:
        """The id in the rank's file."""
        bound, row = self._locate()
        return (int(bound.trace.source_id[row]) + bound.id_base) % 2**64

    @property
    def kind(self) -> Kind:
        bound, row = self._locate()
        return Kind(int(bound.trace.kind[row]))

    @property
    def cpu(self) -> bool | None:
        """True on the host, False on the device, None if unknown."""
        bound, row = self._locate()
        value = int(bound.trace.cpu[row])
        return None if value < 0 else bool(value)

    @property
    def lane(self) -> tuple[LaneKind, int] | None:
        """The lane that executes it in order: a thread, a stream, the device's compute or network; None if it has
        none."""
        bound, row = self._locate()
        lane = int(bound.trace.lane[row])
        return None if lane < 0 else (LaneKind(int(bound.trace.lane_kind[lane])), int(bound.trace.lane_id[lane]))

    @property
    def start_ns(self) -> int | None:
        """Recorded start."""
        bound, row = self._locate()
        value = UNKNOWN if bound.start_ns is None else int(bound.start_ns[row])
        return None if value == UNKNOWN else value

    @property
    def collective(self) -> Collective:
        bound, row = self._locate()
        return Collective(int(bound.trace.collective[row]))

    @property
    def group_name(self) -> str | None:
        """Name of the group in the source; None if the node names none, which means all ranks."""
        bound, row = self._locate()
        slot = int(bound.trace.group[row])
        return None if slot < 0 else bound.groups.names[int(bound.group_of[slot])]

    @property
    def group(self) -> tuple[int, ...] | None:
        """Ranks of the group, in order; None if the node names none or its members are unknown."""
        bound, row = self._locate()
        slot = int(bound.trace.group[row])
        members = None if slot < 0 else bound.groups.ranks(int(bound.group_of[slot]))
        return None if members is None else tuple(members.tolist())

    @property
    def src(self) -> int | None:
        """The sending rank."""
        bound, row = self._locate()
        return _peer(bound, int(bound.trace.src[row]))

    @property
    def dst(self) -> int | None:
        """The receiving rank."""
        bound, row = self._locate()
        return _peer(bound, int(bound.trace.dst[row]))

    @property
    def tag(self) -> int | None:
        """Message tag as in the rank's file; None if there is none."""
        bound, row = self._locate()
        value = int(bound.trace.tag[row])
        return None if value == -1 else value + bound.tag_base if value >= 0 else value

    @property
    def data_ids(self) -> list[int]:
        """Ids of the nodes whose data this one needs, as in the file."""
        return self._ids("data")

    @property
    def ctrl_ids(self) -> list[int]:
        """Ids of the nodes that must come before this one, as in the file."""
        return self._ids("ctrl")

    def _ids(self, edges: str) -> list[int]:
        bound, row = self._locate()
        trace = bound.trace
        start = trace.data_start if edges == "data" else trace.ctrl_start
        found = (trace.data if edges == "data" else trace.ctrl)[start[row] : start[row + 1]].tolist()
        ids = (int(trace.source_id[d]) if d >= 0 else int(trace.missing[~d]) for d in found)
        return [(i + bound.id_base) % 2**64 for i in ids]

    @property
    def dep_why(self) -> str:
        """Why the node waits for each of its data and control dependencies, one letter each (`Why.letter`); "" if no
        reason is known."""
        bound, row = self._locate()
        return reasons.spelled(bound.trace, row)

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute by its name in the file (the first, if there are several); `default` if the node
        has no such attribute. An attribute with a name and no value is None."""
        bound, row = self._locate()
        cell = 0
        for attr in bound.trace.layouts[bound.trace.layout[row]]:
            if attr.name == name:
                return self._value(bound, row, attr, cell)
            cell += attr.in_cell
        return default

    @property
    def attrs(self) -> dict[str, Any]:
        """All attributes by name; the first of repeated ones."""
        bound, row = self._locate()
        return {a.name: self.attr(a.name) for a in bound.trace.layouts[bound.trace.layout[row]]}

    def _value(self, bound: Bound, row: int, attr: Attr, cell: int) -> Any:
        if attr.kind == ValueKind.NONE:
            return None
        if not attr.column:
            return decode_value(bound.trace.heap, attr.kind, int(bound.trace.cells[bound.cell_start()[row] + cell]))
        if attr.column == "collective":
            return COLLECTIVE_TO_WIRE[self.collective]
        value = getattr(self, "group_name" if attr.column == "group" else attr.column)
        if attr.column == "tag" and value is None:
            return -1
        if attr.kind == ValueKind.UINT64 and value < 0:
            return value + 2**64
        return value if attr.kind in (ValueKind.BOOL, ValueKind.STRING) else int(value)


def _peer(bound: Bound, slot: int) -> int | None:
    rank = -1 if slot < 0 else int(bound.peer_of[slot])
    return None if rank < 0 else rank
