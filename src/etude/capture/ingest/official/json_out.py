"""The JSON that Chakra's official linker writes: the host trace with its times, and the device's nodes among it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.capture.ingest.official.link import OfficialLinked, link, microseconds
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.model.schema import UNKNOWN

I64 = NDArray[np.int64]

_BLOCK: Final = 4096
_HEAD: Final = b'{\n    "nodes": ['
_TAIL: Final = b"\n    ]\n}"


def linked_json(host: HostTrace, device: DeviceTrace) -> Iterator[bytes]:
    """The file, piece by piece, with the official indentation. Input that cannot be linked is refused before the first
    piece.

    Synchronisations that their critical-path analysis finds are not in it: their converter drops every one.
    """
    raw = _read(host)
    order = np.argsort(host.id, kind="stable")
    return _pieces(raw, _Nodes(host, order, device, link(host, order, device), raw["nodes"]))


def _read(host: HostTrace) -> dict[str, Any]:
    text = host.json.heap[: host.json.size].tobytes()
    try:
        found = json.loads(text.decode("utf-8", "replace"), strict=False)
    except ValueError as problem:
        raise FormatError(f"not JSON: {problem}", path=host.json.path) from None
    if not isinstance(found, dict) or not isinstance(found.get("nodes"), list):
        raise FormatError("no list `nodes` in it", path=host.json.path)
    return found


def _pieces(raw: dict[str, Any], nodes: _Nodes) -> Iterator[bytes]:
    before = b"{"
    for key, value in raw.items():
        yield before + b"\n"
        if key == "nodes":
            yield from _node_pieces(nodes)
        else:
            yield _formatted({key: value})[2:-2]
        before = b","
    yield b"\n}"


def _node_pieces(nodes: _Nodes) -> Iterator[bytes]:
    if not len(nodes):
        yield b'    "nodes": []'
        return
    yield _HEAD[2:]
    for first in range(0, len(nodes), _BLOCK):
        block = [made for i in range(first, min(first + _BLOCK, len(nodes))) for made in nodes.of_row(i)]
        yield (b"," if first else b"") + _formatted({"nodes": block})[len(_HEAD) : -len(_TAIL)]
    yield b"\n    ]"


def _formatted(value: dict[str, Any]) -> bytes:
    """Like json.dumps(value, indent=4), but several times as fast."""
    text = json.dumps(value).encode()
    try:
        return msgspec.json.format(text, indent=4)
    except msgspec.DecodeError:  # NaN and Infinity, which Python reads and writes
        return json.dumps(value, indent=4).encode()


class _Nodes:
    """Rows of the host by id, each followed by what it launched; ids count from 0 in that order."""

    def __init__(
        self, host: HostTrace, order: I64, device: DeviceTrace, linked: OfficialLinked, nodes: Sequence[dict[str, Any]]
    ) -> None:
        self._nodes, self._order, self._device, self._linked = nodes, order, device, linked
        self._new_id = np.arange(len(order)) + linked.gpu_start[:-1]
        self._total = len(order) + len(linked.gpu)
        self._id_of = dict(zip(host.id[order].tolist(), self._new_id.tolist(), strict=True))
        self._gpu_ts = microseconds(device.start_ns[linked.gpu])
        self._gpu_us = microseconds(np.maximum(device.duration_ns[linked.gpu], 0))
        rows, places = device.rare["group_name"]
        self._groups = dict(zip(rows.tolist(), places.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._order)

    def of_row(self, i: int) -> Iterator[dict[str, Any]]:
        """The i-th row of the host by id, and what it launched."""
        linked = self._linked
        node = dict(self._nodes[int(self._order[i])])
        node["id"] = int(self._new_id[i])
        if linked.timed[i]:
            node["inclusive_dur"] = float(linked.inclusive_us[i])
            node["exclusive_dur"] = float(linked.exclusive_us[i])
            node["ts"] = float(linked.start_us[i])
            handover = int(linked.handover[i])
            node["inter_thread_dep"] = int(self._new_id[handover]) if handover >= 0 else None
        if "ctrl_deps" in node:
            node["ctrl_deps"] = self._caller(node["ctrl_deps"])
        yield node
        for number, at in enumerate(range(int(linked.gpu_start[i]), int(linked.gpu_start[i + 1])), 1):
            yield {**node, **self._on_device(at), "id": node["id"] + number, "ctrl_deps": node["id"]}

    def _caller(self, old: int) -> int:
        """The new id of a node; those that are not in the trace come after all others."""
        if old not in self._id_of:
            self._id_of[old] = self._total
            self._total += 1
        return self._id_of[old]

    def _on_device(self, at: int) -> dict[str, Any]:
        device, event = self._device, int(self._linked.gpu[at])
        name, stream = device.names[device.name[event]], int(device.stream[event])
        took_us = float(self._gpu_us[at])
        found = {
            "cat": device.categories[device.category[event]],
            "name": name,
            "ph": device.phases[device.phase[event]],
            "inclusive_dur": took_us,
            "exclusive_dur": took_us,
            "ts": float(self._gpu_ts[at]),
            "stream": device.identity(stream) if stream != UNKNOWN else None,
        }
        if "ncclDevKernel" in name and event in self._groups:
            found["pg_name"] = device.json.text(self._groups[event])
        return found
