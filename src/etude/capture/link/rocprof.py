"""rocprofv3's JSON (`--output-format json`): records of ROCprofiler-SDK as recordings.

| records | become |
|---|---|
| `kernel_dispatch` | kernels, by agent and stream (or queue); names from `kernel_symbols` |
| `memory_copy` | copies with their bytes |
| `hip_api`, `hsa_api` | calls of the host, tied to their work by correlation |
| `marker_api` | ranges of ROCTx as operators; `step 3` as a step |
| `rccl_api` | operators |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError
from etude.capture.link import recording as r
from etude.capture.link.kernel_names import step_of, talk_of_kernel
from etude.capture.link.ranks import split
from etude.capture.link.recording import DeviceRecording, Talk
from etude.capture.link.scan import ENTER, INT, WORD, Json, JsonField, Rows, Scanner
from etude.kernels.arrays import I32, I64, U8
from etude.model.schema import UNKNOWN

TOP: Final = "rocprofiler-sdk-tool"
_CORRELATION, _DISPATCH, _AGENT, _QUEUE, _STREAM, _TO, _FROM = range(1, 8)
_SCANNER = Scanner(
    (
        JsonField("start_timestamp", INT, "start"),
        JsonField("end_timestamp", INT, "end"),
        JsonField("thread_id", INT, "thread"),
        JsonField("kind", WORD),
        JsonField("operation", WORD),
        JsonField("bytes", INT),
        JsonField("correlation_id", ENTER, into=_CORRELATION),
        JsonField("internal", INT, "correlation", _CORRELATION),
        JsonField("dispatch_info", ENTER, into=_DISPATCH),
        JsonField("kernel_id", INT, "kernel", _DISPATCH),
        JsonField("agent_id", ENTER, context=_DISPATCH, into=_AGENT),
        JsonField("handle", INT, "agent", _AGENT),
        JsonField("queue_id", ENTER, context=_DISPATCH, into=_QUEUE),
        JsonField("handle", INT, "queue", _QUEUE),
        JsonField("stream_id", ENTER, into=_STREAM),
        JsonField("handle", INT, "stream", _STREAM),
        JsonField("dst_agent_id", ENTER, into=_TO),
        JsonField("handle", INT, "to", _TO),
        JsonField("src_agent_id", ENTER, into=_FROM),
        JsonField("handle", INT, "from", _FROM),
    )
)
_CATEGORIES: Final = {
    "kernel_dispatch": r.KERNEL,
    "memory_copy": r.COPY,
    "hip_api": r.CUDA_CALL,
    "hsa_api": r.CUDA_CALL,
    "marker_api": r.CPU_OP,
    "rccl_api": r.CPU_OP,
}
_SILENT: Final = ("memory_allocation", "scratch_memory", "runtime_initialization")
"""Records that are neither work nor calls."""
_COPIES: Final = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
}
_COPY_STREAM: Final = 1 << 20
"""Number of the stream of copies without one; one more for each direction."""
_GPU: Final = 2


def looks_like(head: bytes) -> bool:
    return f'"{TOP}"'.encode() in head


@dataclass(frozen=True, slots=True, eq=False)
class RocprofEvents:
    """Events of one kind; columns that they lack are UNKNOWN."""

    category: int
    rows: Mapping[str, I64]
    name: I32
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.name)

    def column(self, name: str) -> I64:
        found = self.rows.get(name)
        return found if found is not None else np.full(len(self), UNKNOWN, np.int64)


def read_rocprof(heap: U8, size: int, path: str = "") -> list[DeviceRecording]:
    """One recording for each GPU that a process of the file used; `heap` holds `size` bytes followed by zeros."""
    json = Json(heap, size, path)
    top = json.members_at(0).get(TOP)
    if top is None:
        raise FormatError(f"no `{TOP}` in it", path=path, hint="made by `rocprofv3 --output-format json`?")
    found = [one for place in json.elements_at(top) for one in split(_process(json, place))]
    if len(found) == 0:
        raise FormatError("no process is in it", path=path)
    return [replace(one, rank=at, world_size=len(found)) for at, one in enumerate(found)]


def _process(json: Json, place: int) -> DeviceRecording:
    members = json.members_at(place)
    strings = json.value(members["strings"]) if "strings" in members else {}
    agents = _agents(json.value(members["agents"]) if "agents" in members else [])
    symbols = _symbols(json, members)
    parts: list[RocprofEvents] = []
    told: dict[str, int] = {}
    records = json.members_at(members["buffer_records"]) if "buffer_records" in members else {}
    for kind, at in records.items():
        rows = json.rows_at(at, _SCANNER) if kind not in _SILENT else None
        if rows is not None and rows.count and kind in _CATEGORIES:
            parts.append(_part(json, kind, rows, strings, agents, symbols))
        elif rows is not None and rows.count:
            told[f"records of `{kind}` are not read"] = rows.count
    if not any(len(part) for part in parts):
        raise FormatError("no kernels, copies or calls are in it", path=json.path, hint=f"it has: {', '.join(records)}")
    return join(parts, json.path, next(iter(agents.values()), (0, ""))[1], r.merged_told(told))


def _agents(listed: Any) -> dict[int, tuple[int, str]]:
    """Handle of each GPU -> (its number, its name)."""
    found: dict[int, tuple[int, str]] = {}
    for agent in listed if isinstance(listed, list) else ():
        handle = agent.get("id", {}).get("handle") if isinstance(agent, dict) else None
        if isinstance(handle, int) and agent.get("type") == _GPU:
            found[handle] = len(found), str(agent.get("product_name") or agent.get("name") or "")
    return found


def _symbols(json: Json, members: Mapping[str, int]) -> dict[int, str]:
    """Number of each kernel -> its name."""
    found: dict[int, str] = {}
    listed = json.value(members["kernel_symbols"]) if "kernel_symbols" in members else []
    for symbol in listed if isinstance(listed, list) else ():
        if isinstance(symbol, dict) and isinstance(number := symbol.get("kernel_id"), int):
            keys = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")
            name = next((str(symbol[key]) for key in keys if symbol.get(key)), f"kernel {number}")
            found[number] = name.removesuffix(".kd")
    return found


def _part(
    json: Json, kind: str, rows: Rows, strings: Any, agents: Mapping[int, tuple[int, str]], symbols: Mapping[int, str]
) -> RocprofEvents:
    columns = dict(rows.dense)
    if kind == "kernel_dispatch":
        name, names = worded(lambda number: symbols.get(number, f"kernel {number}"), columns["kernel"])
        columns["device"] = _numbered(columns["agent"], agents)
        queue = np.unique(columns["queue"], return_inverse=True)[1].reshape(-1) + 1
        columns["stream"] = np.where(columns["stream"] > 0, columns["stream"], queue)
        return RocprofEvents(r.KERNEL, columns, name, names)
    name, names = _operations(json, rows, strings)
    if kind == "memory_copy":
        names = tuple(_copy_name(text) for text in names)
        to, source = _numbered(columns["to"], agents), _numbered(columns["from"], agents)
        columns["device"] = np.where(to != UNKNOWN, to, source)
        columns["stream"] = np.where(columns["stream"] > 0, columns["stream"], _COPY_STREAM + name)
    elif kind == "marker_api":
        name, names = _messages(columns["correlation"], strings, name, names)
    return RocprofEvents(_CATEGORIES[kind], columns, name, names)


def _numbered(handles: I64, agents: Mapping[int, tuple[int, str]]) -> I64:
    """Numbers of GPUs; UNKNOWN for other handles."""
    distinct, which = np.unique(handles, return_inverse=True)
    numbers = [agents[one][0] if one in agents else UNKNOWN for one in distinct.tolist()]
    return np.array(numbers, np.int64)[which.reshape(-1)]


def worded(name: Callable[[int], str], column: I64) -> tuple[I32, tuple[str, ...]]:
    """Names made from a number, each distinct one once."""
    distinct, codes = np.unique(column, return_inverse=True)
    return codes.reshape(-1).astype(np.int32), tuple(name(one) for one in distinct.tolist())


def _copy_name(operation: str) -> str:
    direction = next((short for long, short in _COPIES.items() if operation.endswith(long)), "")
    return f"Memcpy {direction}" if direction else f"Memcpy ({operation})"


def _operations(json: Json, rows: Rows, strings: Any) -> tuple[I32, tuple[str, ...]]:
    """The operation of each record, from the file's list of operations by kind; else the words of the record itself."""
    (kind, kinds), (operation, operations) = (
        (rows.words[key][0], json.texts(rows.words[key][1])) for key in ("kind", "operation")
    )
    listed = strings.get("buffer_records") if isinstance(strings, dict) else None

    def name(code: int) -> str:
        of, one = divmod(code, len(operations) + 1)
        word = operations[one] if one < len(operations) else ""
        entry = _at(listed, kinds[of] if of < len(kinds) else "")
        found = _at(entry.get("operations"), word) if isinstance(entry, dict) else None
        return found if isinstance(found, str) else word or "call"

    width = len(operations) + 1
    known_kind = np.where(kind >= 0, kind, len(kinds)).astype(np.int64)
    return worded(name, known_kind * width + np.where(operation >= 0, operation, len(operations)))


def _at(listed: Any, place: str) -> Any:
    if isinstance(listed, list) and place.isdecimal() and int(place) < len(listed):
        return listed[int(place)]
    return None


def _messages(correlation: I64, strings: Any, name: I32, names: tuple[str, ...]) -> tuple[I32, tuple[str, ...]]:
    """Texts of markers, by correlation; the call if there is none."""
    listed = strings.get("marker_api") if isinstance(strings, dict) else None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    text_of = {entry["key"]: str(entry.get("value", "")) for entry in entries if isinstance(entry.get("key"), int)}
    texts = [text_of.get(one, "") or names[code] for one, code in zip(correlation.tolist(), name.tolist(), strict=True)]
    return r.coded([r.step_name(step) if (step := step_of(text)) >= 0 else text for text in texts])


def join(parts: Sequence[RocprofEvents], path: str, device_name: str, told: Sequence[str]) -> DeviceRecording:
    """Events of all kinds as one recording."""
    names: dict[str, int] = {}
    talks: list[Talk] = []
    code, talk, category = [], [], []
    for part in parts:
        to = np.array([*(names.setdefault(text, len(names)) for text in part.names), -1], np.int32)
        known = [talk_of_kernel(text) if part.category == r.KERNEL else None for text in part.names]
        spoken = np.array([*(len(talks) + at if one else -1 for at, one in enumerate(known)), -1], np.int32)
        talks += [one or Talk(collective="") for one in known]
        kinds = np.full(len(part), part.category, np.uint8)
        kinds[np.array([step_of(text) >= 0 for text in part.names] + [False])[part.name] & (kinds == r.CPU_OP)] = (
            r.ANNOTATION
        )
        code.append(to[part.name])
        talk.append(spoken[part.name])
        category.append(kinds)

    def joined(column: str) -> I64:
        return np.concatenate([part.column(column) for part in parts])

    start, kinds_of_all = joined("start"), np.concatenate(category)
    on_host = kinds_of_all < r.KERNEL
    return DeviceRecording(
        path=path,
        category=kinds_of_all,
        name=np.concatenate(code),
        names=tuple(names),
        start_ns=start,
        duration_ns=np.maximum(joined("end"), start) - start,
        thread=np.where(on_host, joined("thread"), UNKNOWN),
        stream=np.where(on_host, UNKNOWN, joined("stream")),
        device=joined("device"),
        correlation=np.where(kinds_of_all == r.CPU_OP, UNKNOWN, joined("correlation")),
        talk=np.concatenate(talk),
        talks=talks,
        copied_bytes=np.where(kinds_of_all == r.COPY, joined("bytes"), UNKNOWN),
        device_name=device_name,
        told=told,
    )
