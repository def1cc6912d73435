"""The Chrome JSON of rocprof's first versions (`rocprof --hip-trace`, `--sys-trace`): `results.json` as recordings.

Processes have names: `CPU HIP API` and `CPU HSA API` hold calls, `GPU0` kernels (`dev-id`, `queue-id`), `COPY` copies,
`Markers and Ranges` what the program named. Arrows (`DataFlow`) lead from calls to their work. `BeginNs` and `EndNs`
have the times in ns, where `ts` and `dur` have whole µs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from etude.base.errors import FormatError
from etude.capture.link import recording as r
from etude.capture.link.kernel_names import step_of
from etude.capture.link.ranks import split
from etude.capture.link.recording import DeviceRecording
from etude.capture.link.rocprof import RocprofEvents, join
from etude.capture.link.scan import ENTER, INT, TEXT, TIME, WORD, Json, JsonField, Rows, Scanner
from etude.kernels.arrays import I32, I64, U8, Bool
from etude.model.schema import UNKNOWN

_ARGS: Final = 1
_SCANNER = Scanner(
    (
        JsonField("ph", WORD),
        JsonField("name", WORD),
        JsonField("pid", INT),
        JsonField("tid", INT),
        JsonField("ts", TIME),
        JsonField("dur", TIME),
        JsonField("id", INT),
        JsonField("args", ENTER, into=_ARGS),
        JsonField("BeginNs", INT, "begin", _ARGS),
        JsonField("EndNs", INT, "end", _ARGS),
        JsonField("dev-id", INT, "device", _ARGS),
        JsonField("queue-id", INT, "queue", _ARGS),
        JsonField("name", TEXT, "label", _ARGS, rare=True),
    )
)
_GPU: Final = re.compile(r"(?:\d+ )?GPU(?P<number>\d+)")
_PROCESSES: Final = {
    "CPU HIP API": r.CUDA_CALL,
    "CPU HSA API": r.CUDA_CALL,
    "COPY": r.COPY,
    "Markers and Ranges": r.CPU_OP,
}
_COPY_STREAM: Final = 1 << 20
NEAR_NS: Final = 1_000
"""Arrows have a resolution of 1 µs."""


def looks_like(head: bytes) -> bool:
    return b'"traceEvents"' in head and any(name in head for name in (b'CPU HIP API"', b'CPU HSA API"'))


def read_rocprof_json(heap: U8, size: int, path: str = "") -> list[DeviceRecording]:
    """One recording for each GPU; `heap` holds `size` bytes followed by zeros."""
    json = Json(heap, size, path)
    _, rows = json.top("traceEvents", _SCANNER)
    phase, phases = rows.words["ph"][0], json.texts(rows.words["ph"][1])
    is_event = np.array([text == "X" for text in phases] + [False])[phase]
    labels = _labels(json, rows)
    start, end = _times(rows, is_event)
    correlation = _arrows(rows, labels, phase, phases, is_event, start, end)
    parts, told = [], {}
    for process, label in labels.items():
        mine = np.flatnonzero(is_event & (rows.dense["pid"] == process) & (start != UNKNOWN))
        gpu = _GPU.fullmatch(label)
        category = r.KERNEL if gpu else _PROCESSES.get(re.sub(r"^\d+ ", "", label))
        if category is None:
            told[f"events of `{label}` are not read"] = len(mine)
        elif len(mine):
            parts.append(_part(json, rows, mine, category, int(gpu["number"]) if gpu else 0, start, end, correlation))
    if not parts:
        raise FormatError("no kernels, copies or calls are in it", path=path)
    found = split(join(parts, path, "", r.merged_told(told)))
    return [replace(one, rank=at, world_size=len(found)) for at, one in enumerate(found)]


def _labels(json: Json, rows: Rows) -> dict[int, str]:
    """Process -> its name."""
    name, names = rows.words["name"][0], json.texts(rows.words["name"][1])
    found = {}
    for row, place in zip(*(column.tolist() for column in rows.rare["label"]), strict=True):
        if name[row] >= 0 and names[name[row]] == "process_name":
            found[int(rows.dense["pid"][row])] = json.text(place)
    return found


def _times(rows: Rows, is_event: Bool) -> tuple[I64, I64]:
    """(start, end) in ns, on the clock of `ts`, which differs from that of `BeginNs` by the beginning of the trace."""
    column = rows.dense
    exact = is_event & (column["begin"] != UNKNOWN) & (column["end"] != UNKNOWN) & (column["ts"] != UNKNOWN)
    offset = int((column["begin"][exact] - column["ts"][exact]).min()) if exact.any() else 0
    start = np.where(exact, column["begin"] - offset, column["ts"])
    return start, np.where(exact, column["end"] - offset, start + np.maximum(column["dur"], 0))


def _part(
    json: Json, rows: Rows, mine: I64, category: int, gpu: int, start: I64, end: I64, correlation: I64
) -> RocprofEvents:
    column, n = rows.dense, len(mine)
    device = column["device"][mine] if category == r.KERNEL else np.full(n, UNKNOWN, np.int64)
    queue = np.where(column["queue"][mine] != UNKNOWN, column["queue"][mine], column["tid"][mine])
    names = json.texts(rows.words["name"][1])
    if category == r.CPU_OP:
        names = tuple(r.step_name(step) if (step := step_of(text)) >= 0 else text for text in names)
    if category == r.COPY:
        names = tuple(text if text.startswith("Memcpy") else f"Memcpy ({text})" for text in names)
        queue, device = queue + _COPY_STREAM, np.zeros(n, np.int64)
    if category == r.KERNEL:
        device = np.where(device != UNKNOWN, device, gpu)
    columns = {
        "start": start[mine],
        "end": end[mine],
        "thread": column["tid"][mine],
        "stream": queue,
        "device": device,
        "correlation": correlation[mine],
    }
    return RocprofEvents(category, columns, rows.words["name"][0][mine], names)


def _arrows(
    rows: Rows, labels: dict[int, str], phase: I32, phases: tuple[str, ...], is_event: Bool, start: I64, end: I64
) -> I64:
    """A number for each call and the work that it launched: that of the arrow between them."""
    calls = [p for p, label in labels.items() if _PROCESSES.get(re.sub(r"^\d+ ", "", label)) == r.CUDA_CALL]
    found = np.full(rows.count, UNKNOWN, np.int64)
    for letter, on_host in (("s", True), ("f", False), ("t", False)):
        arrows = np.flatnonzero(np.array([text == letter for text in phases] + [False])[phase])
        known = is_event & (np.isin(rows.dense["pid"], calls) == on_host) & (start != UNKNOWN)
        for process in np.unique(rows.dense["pid"][arrows]).tolist():
            for thread in np.unique(rows.dense["tid"][arrows][rows.dense["pid"][arrows] == process]).tolist():
                here = known & (rows.dense["pid"] == process) & (rows.dense["tid"] == thread)
                ends = arrows[(rows.dense["pid"][arrows] == process) & (rows.dense["tid"][arrows] == thread)]
                _tie(rows, np.flatnonzero(here), ends, start, end, found)
    return found


def _tie(rows: Rows, events: I64, arrows: I64, start: I64, end: I64, found: I64) -> None:
    """Gives an arrow's number to the latest event that contains the end of the arrow."""
    if not len(events):
        return
    events = events[np.argsort(start[events], kind="stable")]
    when = rows.dense["ts"][arrows]
    at = np.searchsorted(start[events], when + NEAR_NS, "right") - 1
    fits = (at >= 0) & (end[events[at]] + NEAR_NS >= when)
    found[events[at[fits]]] = rows.dense["id"][arrows[fits]] + 1
