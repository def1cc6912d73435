"""The Chrome JSON that JAX writes next to an `.xplane.pb`: processes are planes, threads are lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from etude.base.errors import FormatError
from etude.capture.link.scan import ENTER, IDENTITY, INT, TEXT, TIME, WORD, Json, JsonField, Rows, Scanner
from etude.capture.link.xla import NUMBERS, WORDS, Events, Line
from etude.kernels.arrays import I32, I64, U8
from etude.model.schema import UNKNOWN

_ARGS: Final = 1
_SCANNER = Scanner(
    (
        JsonField("ph", WORD),
        JsonField("name", WORD),
        JsonField("pid", IDENTITY),
        JsonField("tid", IDENTITY),
        JsonField("ts", TIME),
        JsonField("dur", TIME),
        JsonField("args", ENTER, into=_ARGS),
        JsonField("name", TEXT, "label", _ARGS, rare=True),
        *(JsonField(key, INT, key, _ARGS, rare=True) for key in NUMBERS),
        *(JsonField(key, TEXT, key, _ARGS, rare=True) for key in WORDS),
    )
)


def looks_like(head: bytes) -> bool:
    """Whether this is Chrome's JSON whose first process is a plane of XLA."""
    return b'"traceEvents"' in head and b'"process_name"' in head and (b'"/host:CPU"' in head or b'"/device:' in head)


def read_xla_json(heap: U8, size: int, path: str = "") -> Events:
    """All events of the file; `heap` holds `size` bytes followed by zeros."""
    whole = Json(heap, size, path)
    _, rows = whole.top("traceEvents", _SCANNER)
    phase, phases = rows.words["ph"][0], whole.texts(rows.words["ph"][1])
    name, names = rows.words["name"][0], whole.texts(rows.words["name"][1])
    lines, line_of = _lines(whole, rows, name, names)
    is_event = np.array([p == "X" for p in phases] + [False])[phase] & (rows.dense["ts"] != UNKNOWN)
    chosen = np.flatnonzero(is_event)
    if not len(chosen):
        raise FormatError("it has no events", path=path, hint="did anything run while the profiler was on?")
    keys = list(zip(rows.dense["pid"][chosen].tolist(), rows.dense["tid"][chosen].tolist(), strict=True))
    line = np.array([line_of.setdefault(key, len(line_of)) for key in keys], np.int32)
    lines += [Line("", f"{tid}", tid) for _, tid in list(line_of)[len(lines) :]]
    return Events(
        lines=tuple(lines),
        line=line,
        name=name[chosen],
        names=names,
        start_ns=rows.dense["ts"][chosen],
        duration_ns=np.maximum(rows.dense["dur"][chosen], 0),
        numbers={key: _numbers(rows, key, chosen) for key in NUMBERS},
        words={key: _coded(whole, rows, key, chosen) for key in WORDS},
        whole=np.ones(len(chosen), bool),
        path=path,
    )


def _lines(whole: Json, rows: Rows, name: I32, names: Sequence[str]) -> tuple[list[Line], dict[tuple[int, int], int]]:
    """(Lines, the line of each process and thread) from the events that name them."""
    pid, tid = rows.dense["pid"], rows.dense["tid"]
    planes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for row, place in zip(*(column.tolist() for column in rows.rare["label"]), strict=True):
        what = names[name[row]] if name[row] >= 0 else ""
        if what == "process_name":
            planes[int(pid[row])] = whole.text(place)
        elif what == "thread_name":
            threads[int(pid[row]), int(tid[row])] = whole.text(place)
    lines = [Line(planes.get(process, ""), text, thread) for (process, thread), text in threads.items()]
    return lines, {key: at for at, key in enumerate(threads)}


def _coded(whole: Json, rows: Rows, key: str, chosen: I64) -> tuple[I32, tuple[str, ...]]:
    at, places = rows.rare[key]
    codes, words = whole.coded(places)
    column = np.full(rows.count, -1, np.int32)
    column[at] = codes
    return column[chosen], words


def _numbers(rows: Rows, key: str, chosen: I64) -> I64:
    at, values = rows.rare[key]
    column = np.full(rows.count, UNKNOWN, np.int64)
    column[at] = values
    return column[chosen]
