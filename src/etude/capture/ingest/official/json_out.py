"""The JSON that Chakra's official linker writes: the host trace with its times, and the device's nodes among it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from etude.base.errors import FormatError
from etude.capture.ingest.official import json_kernels as k
from etude.capture.ingest.official.link import OfficialLinked, link, microseconds
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.kernels.arrays import I64
from etude.model.schema import UNKNOWN
from etude.model.text import words

_BLOCK: Final = 4096
"""Rows whose times are made text at a time."""
_PIECE_BYTES: Final = 1 << 20
_HEAD: Final = b'{\n    "nodes": ['
_TAIL: Final = b"\n    ]\n}"
_MEMBER: Final = ",\n            "
_LABELS: Final = (
    ",\n        {", f'{_MEMBER}"inclusive_dur": ', f'{_MEMBER}"exclusive_dur": ', f'{_MEMBER}"ts": ',
    f'{_MEMBER}"inter_thread_dep": ', "null", "\n        }",
)  # fmt: skip


def linked_json(host: HostTrace, device: DeviceTrace) -> Iterator[bytes | memoryview]:
    """The file, piece by piece, with the official indentation. A pair that cannot be linked is refused before the
    first piece.

    Synchronisations that their critical-path analysis finds are not in it: their converter drops every one.
    """
    heap = host.json.heap
    members = host.json.members_at(3 if heap[:3].tobytes() == b"\xef\xbb\xbf" else 0)
    if "nodes" not in members or heap[members["nodes"]] != ord("["):
        raise FormatError("no list `nodes` in it", path=host.json.path)
    order = np.argsort(host.id, kind="stable")
    return _pieces(host, members, _Nodes(host, order, device, link(host, order, device), members["nodes"]))


def _pieces(host: HostTrace, members: dict[str, int], nodes: _Nodes) -> Iterator[bytes | memoryview]:
    before = b"{"
    for key, place in members.items():
        yield before + b"\n"
        if key == "nodes":
            yield from _node_pieces(nodes)
        else:
            yield _formatted({key: _loads(host, place)})[2:-2]
        before = b","
    yield b"\n}"


def _formatted(value: dict[str, Any]) -> bytes:
    """Like json.dumps(value, indent=4), but several times as fast."""
    text = json.dumps(value).encode()
    try:
        return msgspec.json.format(text, indent=4)
    except msgspec.DecodeError:  # NaN and Infinity, which Python reads and writes
        return json.dumps(value, indent=4).encode()


def _loads(host: HostTrace, place: int) -> Any:
    """The value at a place as Python reads it."""
    text = host.json.slice(place).decode("utf-8", "replace")
    try:
        return json.loads(text, strict=False)
    except ValueError as problem:
        raise FormatError(f"not JSON: {problem}", path=host.json.path) from None


def _node_pieces(nodes: _Nodes) -> Iterator[bytes | memoryview]:
    if not len(nodes):
        yield b'    "nodes": []'
        return
    yield _HEAD[2:]
    skipped = 1  # the comma before the first
    for first in range(0, len(nodes), _BLOCK):
        for piece in nodes.written(first, min(first + _BLOCK, len(nodes))):
            yield piece[skipped:]
            skipped = 0
    yield b"\n    ]"


class _Nodes:
    """Rows of the host by id, each followed by what it launched; ids count from 0 in that order."""

    def __init__(
        self, host: HostTrace, order: I64, device: DeviceTrace, linked: OfficialLinked, list_place: int
    ) -> None:
        self._host, self._linked = host, linked
        self._source = k.Source(host.json.heap, host.json.word)
        places = np.empty(len(host), np.int64)
        if k.element_places(*self._source, list_place, places) != len(host):
            raise FormatError("more than one list `nodes` in it", path=host.json.path)
        self._place = places[order]
        self._new_id = np.arange(len(order)) + linked.gpu_start[:-1]
        self._caller, self._missing = self._callers(host.id[order], host.caller[order])
        self._handover = np.where(linked.handover >= 0, self._new_id[linked.handover], -1)
        self._gpu_ts = microseconds(device.start_ns[linked.gpu])
        self._gpu_us = microseconds(np.maximum(device.duration_ns[linked.gpu], 0))
        self._added = _added(device, linked.gpu)
        self._labels = _texts(_LABELS)
        self._room = _PIECE_BYTES

    def __len__(self) -> int:
        return len(self._place)

    def _callers(self, ids: I64, caller: I64) -> tuple[I64, dict[int, int]]:
        """The new id of each row's caller; callers that are not in the trace come after all others."""
        at = np.maximum(np.searchsorted(ids, caller, side="right") - 1, 0)
        found = self._new_id[at] if len(ids) else at
        lost = np.flatnonzero((ids[at] != caller) & (caller != UNKNOWN)) if len(ids) else at
        total = len(ids) + len(self._linked.gpu)
        missing: dict[int, int] = {}
        found[lost] = [missing.setdefault(old, total + len(missing)) for old in caller[lost].tolist()]
        return found, missing

    def written(self, first: int, stop: int) -> Iterator[bytes | memoryview]:
        """Text of the rows from `first` to `stop`, each node with a comma before it."""
        rows, at = self._rows(first, stop), 0
        while at < stop - first:
            out = np.empty(self._room, np.uint8)
            target = k.Target(
                out,
                words(out),
                np.empty((k.LEVELS, k.KEYS), np.uint64),
                np.zeros(k.LEVELS, np.int64),
                np.zeros((3, 3), np.int64),
            )
            status, at, used = k.write_rows(self._source, rows, at, target)
            if used:
                yield out[:used].data
            if status == k.ODD:
                yield self._by_python(first + at)
                at += 1
            elif status == k.FULL and not used:
                self._room *= 2

    def _rows(self, first: int, stop: int) -> k.HostRows:
        linked, rows = self._linked, slice(first, stop)
        gpu = slice(int(linked.gpu_start[first]), int(linked.gpu_start[stop]))
        times = np.stack([linked.inclusive_us[rows], linked.exclusive_us[rows], linked.start_us[rows]], axis=1)
        on_device = np.stack([self._gpu_us[gpu], self._gpu_ts[gpu]], axis=1)
        name, tail, texts = self._added
        return k.HostRows(
            place=self._place[rows],
            id=self._new_id[rows],
            caller=self._caller[rows],
            timed=linked.timed[rows],
            handover=self._handover[rows],
            gpu_start=linked.gpu_start[first : stop + 1] - linked.gpu_start[first],
            name=name[gpu],
            tail=tail[gpu],
            times=_texts(map(repr, [*times.reshape(-1).tolist(), *on_device.reshape(-1).tolist()])),
            words=texts,
            labels=self._labels,
        )

    # -- what the kernels leave to Python ------------------------------------------------------------------------------

    def _by_python(self, i: int) -> bytes:
        """The i-th row of the host by id, and what it launched."""
        return b"," + _formatted({"nodes": list(self._dicts(i))})[len(_HEAD) : -len(_TAIL)]

    def _dicts(self, i: int) -> Iterator[dict[str, Any]]:
        linked = self._linked
        node: dict[str, Any] = _loads(self._host, int(self._place[i]))
        node["id"] = int(self._new_id[i])
        if linked.timed[i]:
            node["inclusive_dur"] = float(linked.inclusive_us[i])
            node["exclusive_dur"] = float(linked.exclusive_us[i])
            node["ts"] = float(linked.start_us[i])
            node["inter_thread_dep"] = int(self._handover[i]) if self._handover[i] >= 0 else None
        if "ctrl_deps" in node:
            known = isinstance(node["ctrl_deps"], int)
            node["ctrl_deps"] = int(self._caller[i]) if known else self._lost(node["ctrl_deps"])
        yield node
        for number, at in enumerate(range(int(linked.gpu_start[i]), int(linked.gpu_start[i + 1])), 1):
            yield {**node, **self._on_device(at), "id": node["id"] + number, "ctrl_deps": node["id"]}

    def _lost(self, old: Any) -> int:
        """The new id of what is not the id of a node."""
        total = len(self) + len(self._linked.gpu)
        return self._missing.setdefault(old, total + len(self._missing))

    def _on_device(self, at: int) -> dict[str, Any]:
        name, tail, texts = self._added
        told = [_text(texts, int(code[at])) for code in (name, tail)]
        took_us = float(self._gpu_us[at])
        found: dict[str, Any] = json.loads(f'{{"name": {told[0]}{told[1]}}}')
        times = {"inclusive_dur": took_us, "exclusive_dur": took_us, "ts": float(self._gpu_ts[at])}
        return found | times


def _added(device: DeviceTrace, gpu: I64) -> tuple[I64, I64, k.TextHeap]:
    """(Name, tail, texts): codes of the texts of each device activity's name, and of what only such nodes have."""
    names = [json.dumps(name) for name in device.names]
    group = np.full(len(device) + 1, -1, np.int64)
    rows, places = device.rare["group_name"]
    group[rows] = places
    group[:-1][~device.name_has("ncclDevKernel")] = -1
    known: dict[tuple[int, ...], int] = {}
    columns = (device.category, device.phase, device.stream, group)
    keys = zip(*(column[gpu].tolist() for column in columns), strict=True)
    tail = np.array([known.setdefault(key, len(known)) for key in keys], np.int64) + len(names)
    name = device.name[gpu].astype(np.int64) % max(len(names), 1)
    return name, tail, _texts([*names, *(_tail(device, *key) for key in known)])


def _tail(device: DeviceTrace, category: int, phase: int, stream: int, group: int) -> str:
    values: dict[str, Any] = {
        "cat": device.categories[category],
        "ph": device.phases[phase],
        "stream": device.identity(stream) if stream != UNKNOWN else None,
    }
    if group >= 0:
        values["pg_name"] = device.json.text(group)
    return "".join(f'{_MEMBER}"{key}": {json.dumps(value)}' for key, value in values.items())


def _texts(texts: Iterable[str]) -> k.TextHeap:
    """ASCII texts end to end."""
    listed = list(texts)
    start = np.zeros(len(listed) + 1, np.int64)
    np.cumsum([len(text) for text in listed], out=start[1:])
    return k.TextHeap(np.frombuffer("".join(listed).encode("ascii"), np.uint8), start)


def _text(texts: k.TextHeap, i: int) -> str:
    return texts.heap[texts.start[i] : texts.start[i + 1]].tobytes().decode("ascii")
