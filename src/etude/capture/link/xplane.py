"""`.xplane.pb`: profiles of JAX, XLA and TensorFlow (XSpace), read without TensorFlow or protobuf.

XSpace  planes 1, errors 2, warnings 3, hostnames 4
XPlane  id 1, name 2, lines 3, event_metadata 4 (map), stat_metadata 5 (map), stats 6
XLine   id 1, name 2, timestamp_ns 3, events 4, duration_ps 9, display_id 10, display_name 11
XEvent  metadata_id 1, offset_ps 2, duration_ps 3, stats 4, num_occurrences 5
XStat   metadata_id 1, double 2, uint64 3, int64 4, str 5, bytes 6, ref 7
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.capture.link import xplane_kernels as k
from etude.capture.link.hlo import Module, read_module
from etude.capture.link.xla import NUMBERS, WORDS, Events, Line, join
from etude.capture.link.xplane_kernels import BYTES, VARINT, Fields
from etude.kernels.arrays import I64, U8
from etude.model.schema import UNKNOWN

_WANTED: Final = (*NUMBERS, *WORDS)
METADATA_PLANE: Final = "/host:metadata"
TASK_PLANE: Final = "Task Environment"
_UNIX: Final = 10**17
"""ns since 1970 are above this, ns since the start of a profile below."""
_HINT: Final = "the file may have been cut short while it was written or copied"


class Message:
    """The fields of one protobuf message in a file, by number."""

    def __init__(self, heap: U8, start: int, end: int, path: str) -> None:
        self.heap, self.path = heap, path
        room = 64
        while True:
            fields = Fields(*(np.empty(room, np.int64) for _ in range(4)))
            count, bad = k.index_fields(heap, start, end, fields)
            if bad >= 0:
                raise FormatError("not an XSpace, or cut short", path=path, offset=int(bad), hint=_HINT)
            if count <= room:
                break
            room = count
        self.fields = Fields(*(column[:count] for column in fields))

    def rows(self, number: int, wire: int) -> I64:
        return np.flatnonzero((self.fields.number == number) & (self.fields.wire == wire))

    def inside(self, number: int) -> Iterator[tuple[int, int]]:
        """(start, end) of each message or text of a field."""
        for row in self.rows(number, BYTES).tolist():
            start = int(self.fields.value[row])
            yield start, start + int(self.fields.length[row])

    def messages(self, number: int) -> Iterator[Message]:
        return (Message(self.heap, start, end, self.path) for start, end in self.inside(number))

    def number(self, number: int, default: int = 0) -> int:
        rows = self.rows(number, VARINT)
        return int(self.fields.value[rows[-1]]) if len(rows) else default

    def text(self, number: int) -> str:
        found = list(self.inside(number))
        return text_at(self.heap, *found[-1]) if found else ""


def text_at(heap: U8, start: int, end: int) -> str:
    return heap[start:end].tobytes().decode("utf-8", "replace")


@dataclass(slots=True)
class _Meta:
    """Event metadata, shared by all events that refer to it."""

    name: str = ""
    stats: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Position in _WANTED -> what, value, length."""


def looks_like(head: bytes) -> bool:
    """Whether a file begins like an XSpace: with a plane that has an id or a name that begins like those of planes."""
    start = head[:64]
    return start[:1] == b"\n" and any(
        word in start for word in (b"/host:", b"/device:", b"Task Environment", b"/virtual")
    )


def read_xplane(heap: U8, size: int, path: str = "") -> Events:
    """All events of an XSpace; `heap` holds `size` bytes followed by zeros."""
    space = Message(heap, 0, size, path)
    parts: list[Events] = []
    modules: dict[str, Module] = {}
    about: dict[str, dict[str, int | str]] = {}
    for plane in space.messages(1):
        if plane.text(2) == METADATA_PLANE:
            modules |= _modules(plane)
        else:
            about[plane.text(2)] = _plane_stats(plane)
            parts += _plane(plane)
    said = [text_at(heap, *place) for number in (2, 3) for place in space.inside(number)]
    if not parts:
        raise FormatError("it has no events", path=path, hint="did anything run while the profiler was on?")
    began = about.get(TASK_PLANE, {}).get("profile_start_time")
    is_relative = min(int(part.start_ns.min(initial=_UNIX)) for part in parts) < _UNIX
    devices = {name: str(device) for name, of in about.items() if (device := of.get("gpu_device_name"))}
    base_ns = began if isinstance(began, int) and is_relative else 0
    return replace(join(parts), path=path, modules=modules, said=said, devices=devices, base_ns=base_ns)


def _plane_stats(plane: Message) -> dict[str, int | str]:
    """A plane's stats about itself: numbers and texts by name."""
    names = _stat_names(plane)
    found: dict[str, int | str] = {}
    for start, end in plane.inside(6):
        stat, what, value, length, bad = k.read_stat(plane.heap, start, end)
        if bad >= 0:
            raise FormatError("a stat is cut short", path=plane.path, offset=int(bad), hint=_HINT)
        name = names.get(int(stat), "")
        if what == k.NUMBER:
            found[name] = int(value)
        elif what in (k.TEXT, k.REFERENCE):
            found[name] = text_at(plane.heap, value, value + length) if what == k.TEXT else names.get(int(value), "")
    return found


def _modules(plane: Message) -> dict[str, Module]:
    """The compiled programs, by name and by number, as `jit_step` and `jit_step(12)`."""
    found = {}
    for entry in plane.messages(4):
        for metadata in entry.messages(2):
            for stat in metadata.messages(5):
                for start, end in stat.inside(6):
                    module = read_module(plane.heap[start:end].tobytes(), plane.path)
                    found[metadata.text(2)] = module
                    found[metadata.text(2).rpartition("(")[0] or module.name] = module
    return found


def _plane(plane: Message) -> Iterator[Events]:
    name = plane.text(2)
    stat_names = _stat_names(plane)
    id_of = {text: number for number, text in stat_names.items()}
    wanted = np.array([id_of.get(stat, -1) for stat in _WANTED], np.int64)
    metas = _event_metadata(plane, {int(n): i for i, n in enumerate(wanted) if n >= 0})
    for start, end in plane.inside(3):
        yield _line(plane, Message(plane.heap, start, end, plane.path), name, stat_names, metas, wanted)


def _stat_names(plane: Message) -> dict[int, str]:
    found = {}
    for entry in plane.messages(5):
        for metadata in entry.messages(2):
            found[metadata.number(1)] = metadata.text(2)
    return found


def _event_metadata(plane: Message, slot_of: dict[int, int]) -> dict[int, _Meta]:
    found = {}
    for entry in plane.messages(4):
        for metadata in entry.messages(2):
            meta = _Meta(metadata.text(4) or metadata.text(2))
            for start, end in metadata.inside(5):
                stat, what, value, length, bad = k.read_stat(plane.heap, start, end)
                if bad >= 0:
                    raise FormatError("a stat is cut short", path=plane.path, offset=int(bad), hint=_HINT)
                if int(stat) in slot_of:
                    meta.stats[slot_of[int(stat)]] = int(what), int(value), int(length)
            found[metadata.number(1)] = meta
    return found


def _line(
    plane: Message, line: Message, plane_name: str, stat_names: dict[int, str], metas: dict[int, _Meta], wanted: I64
) -> Events:
    rows = line.rows(4, BYTES)
    n = len(rows)
    out = k.event_columns(n, len(wanted))
    bad = k.read_events(line.heap, line.fields.value[rows], line.fields.length[rows], wanted, out, 0)
    if bad >= 0:
        raise FormatError("an event is cut short", path=line.path, offset=int(bad), hint=_HINT)
    used, meta = np.unique(out.metadata, return_inverse=True)
    known = [metas.get(int(number), _Meta(f"event {number}")) for number in used]
    for slot in range(len(wanted)):
        _inherit(out, slot, meta.reshape(-1), known)
    begin_ps = line.number(3) * 1000 + out.offset_ps
    start, end = begin_ps // 1000, (begin_ps + np.maximum(out.duration_ps, 0)) // 1000
    values = _Values(line.heap, stat_names)
    return Events(
        lines=(Line(plane_name, line.text(11) or line.text(2), line.number(10) or line.number(1)),),
        line=np.zeros(n, np.int32),
        name=meta.reshape(-1).astype(np.int32),
        names=tuple(one.name for one in known),
        start_ns=start,
        duration_ns=end - start,
        numbers={stat: values.numbers(out, slot) for slot, stat in enumerate(NUMBERS)},
        words={stat: values.words(out, slot + len(NUMBERS)) for slot, stat in enumerate(WORDS)},
        whole=out.occurrences == 0,
    )


def _inherit(out: k.EventColumns, slot: int, meta: I64, known: list[_Meta]) -> None:
    """Takes values from the metadata that an event lacks."""
    said = [one.stats.get(slot, (k.NO_VALUE, 0, 0)) for one in known]
    if not any(what for what, _, _ in said):
        return
    what, value, length = (np.array(column)[meta] for column in zip(*said, strict=True))
    silent = out.what[slot] == k.NO_VALUE
    for column, values in ((out.what, what), (out.value, value), (out.length, length)):
        column[slot, silent] = values[silent]


class _Values:
    """Stats as numbers and as words, however they were written."""

    def __init__(self, heap: U8, names: dict[int, str]) -> None:
        self._heap, self._names = heap, names

    def numbers(self, out: k.EventColumns, slot: int) -> I64:
        what, value = out.what[slot], out.value[slot]
        found = np.where(what == k.NUMBER, value, UNKNOWN)
        doubles = what == k.DOUBLE
        if doubles.any():
            found[doubles] = np.nan_to_num(value[doubles].view(np.float64)).astype(np.int64)
        if (what >= k.TEXT).any():
            codes, words = self.words(out, slot)
            as_number = [int(w) if w.isdecimal() and len(w) < 19 else UNKNOWN for w in words]
            found = np.where(codes >= 0, np.array([*as_number, UNKNOWN], np.int64)[codes], found)
        return found

    def words(self, out: k.EventColumns, slot: int) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        what, value, length = out.what[slot], out.value[slot], out.length[slot]
        codes: dict[str, int] = {}
        found = np.full(len(what), -1, np.int32)
        for kind in (k.TEXT, k.REFERENCE):
            rows = np.flatnonzero(what == kind)
            places, which = np.unique(np.stack([value[rows], length[rows]]), axis=1, return_inverse=True)
            texts = (
                text_at(self._heap, p, p + n) if kind == k.TEXT else self._names.get(p, "")
                for p, n in places.T.tolist()
            )
            code = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int32)
            found[rows] = code[which.reshape(-1)] if len(rows) else code
        return found, tuple(codes)
