"""The output of Chakra's official timeline visualizer for a simulator's log: Chrome's JSON, with times in
milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from etude.base.errors import FormatError, UsageError
from etude.base.files import logged, write_pieces

__all__ = ["official_timeline", "write_timeline"]

_LOCAL, _REMOTE, _COMPUTE, _COMMUNICATION = 1, 2, 3, 4


def write_timeline(source: Path, out: Path, *, num_npus: int, mhz: int, log: Path | None = None) -> str:
    """The timeline of a simulator's log. Returns what was written, in words, which `log` has too."""
    try:
        with source.open(encoding="utf-8") as lines:
            text = official_timeline(lines, str(source), num_npus=num_npus, mhz=mhz)
    except UnicodeDecodeError:
        hint = "expected lines `issue,...` and `callback,...`"
        raise FormatError("is not a text file", path=source, hint=hint) from None
    write_pieces(out, [text.encode()])
    return logged(f"wrote {out}", log)


def official_timeline(lines: Iterable[str], path: str, *, num_npus: int, mhz: int) -> str:
    """Lines `issue,sys=0,tick=0,id=7,name=COMP_NODE_x` and `callback,...` as complete events; `path` is for errors."""
    if num_npus < 1 or mhz < 1:
        raise UsageError("NPUs and MHz count from 1", hint="--num_npus 2 --npu_frequency 1000")
    issued: list[dict[int, tuple[str, int]]] = [{} for _ in range(num_npus)]
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if "issue" not in line and "callback" not in line:
            continue
        what, npu, cycle, node, name = _parsed(line, path, number)
        if not 0 <= npu < num_npus:
            raise FormatError(
                f"line {number}: NPU {npu} of {num_npus}", path=path, hint="--num_npus gives their number"
            )
        if what == "issue":
            issued[npu][node] = name, cycle
        elif node not in issued[npu]:
            raise FormatError(f"line {number}: node {node} of NPU {npu} ends and was not issued", path=path)
        else:
            name, begin = issued[npu].pop(node)
            took_ms = (cycle - begin) / (mhz * 1_000)
            events.append(
                {
                    "pid": npu,
                    "tid": _row(name, path, number),
                    "ts": (begin / mhz) / 1_000,
                    "dur": took_ms,
                    "ph": "X",
                    "name": name,
                    "args": {"ms": took_ms},
                }
            )
    return json.dumps({"meta_user": "aras", "traceEvents": events, "meta_cpu_count": num_npus})


def _parsed(line: str, path: str, number: int) -> tuple[str, int, int, int, str]:
    columns = line.strip().split(",")
    try:
        values = [column.split("=")[1] for column in columns[1:5]]
        what, npu, cycle, node, name = columns[0], int(values[0]), int(values[1]), int(values[2]), values[3]
    except (IndexError, ValueError):
        what, npu, cycle, node, name = "", 0, 0, 0, ""
    if what not in ("issue", "callback"):
        hint = "issue,sys=0,tick=0,node_id=7,node_name=COMP_NODE_x"
        raise FormatError(f"line {number}: not an event: {line.strip()[:80]!r}", path=path, hint=hint)
    return what, npu, cycle, node, name


def _row(name: str, path: str, number: int) -> int:
    """The row of a node in its NPU's part of the picture, from its name."""
    if "MEM_LOAD_NODE" in name or "MEM_STORE_NODE" in name:
        if "LOCAL_MEMORY" in name:
            return _LOCAL
        if "REMOTE_MEMORY" in name:
            return _REMOTE
    if "COMP_NODE" in name:
        return _COMPUTE
    if any(kind in name for kind in ("COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE")):
        return _COMMUNICATION
    hint = "names contain COMP_NODE, COMM_COLL_NODE, ...; `etude timeline` shows any trace"
    raise FormatError(f"line {number}: `{name}` does not contain a node type", path=path, hint=hint)
