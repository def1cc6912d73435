"""Tiny recorded traces, made by hand: what the profiler would have written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from etude.capture.link.device import DeviceTrace, read_device
from etude.capture.link.host import HostTrace, read_host
from etude.model.text import pad

PROCESS, THREAD = "[pytorch|profiler|execution_trace|process]", "[pytorch|profiler|execution_trace|thread]"


def node(id: int, name: str, caller: int, rf_id: int = 0, tid: int = 1, **more: Any) -> dict[str, Any]:
    """A node of a host trace; `inputs` is (values, shapes, types), the rest are attributes."""
    sides = {}
    for side in ("inputs", "outputs"):
        values, shapes, types = more.pop(side, ([], [], []))
        sides[side] = {"values": values, "shapes": shapes, "types": types}
    attrs = {"rf_id": rf_id, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": tid, "fw_tid": 0, "op_schema": ""} | more
    listed = [{"name": k, "type": "string" if isinstance(v, str) else "uint64", "value": v} for k, v in attrs.items()]
    return {"id": id, "name": name, "ctrl_deps": caller, **sides, "attrs": listed}


def host_json(*nodes: dict[str, Any], schema: str = "1.1.1-chakra.0.0.4") -> dict[str, Any]:
    """One process with one thread (ids 1 and 2) around these nodes, written in order of their ends."""
    roots = [node(2, THREAD, 1), node(1, PROCESS, 1)]
    top = {"schema": schema, "pid": 7, "time": "2026-01-01 00:00:00", "start_ts": 5}
    return {**top, "nodes": [*nodes, *roots], "finish_ts": 9}


def event(cat: str, name: str, ts: float, dur: float, tid: Any = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: float, dur: float, rf: int, tid: Any = 7, cat: str = "cpu_op") -> dict[str, Any]:
    """An operator; its external id is 1000 more than its record-function id."""
    return event(cat, name, ts, dur, tid, **{"External id": 1000 + rf, "Record function id": rf})


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", tid: Any = 7) -> dict[str, Any]:
    return event("cuda_runtime", name, ts, 1.0, tid, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, rf: int, stream: int = 7, **args: Any) -> dict[str, Any]:
    found = {"External id": 1000 + rf, "correlation": correlation, "stream": stream, "device": 0, **args}
    return event("kernel", name, ts, dur, stream, **found)


def device_json(*events: dict[str, Any], **top: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, **top, "traceEvents": list(events)}


def read_host_json(value: Any, path: str = "host.json") -> HostTrace:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_host(pad(text), len(text), path)


def read_device_json(value: Any, path: str = "device.json") -> DeviceTrace:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_device(pad(text), len(text), path)


# -- ranks of a run ---------------------------------------------------------------------------------------------------

WORLD = {"backend": "nccl", "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
ARGS = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Out msg nelems": 256, "Group size": 2,
    "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def rank_json(rank: int, start: float, nccl_us: float) -> dict[str, Any]:
    """One all-reduce of 1 KiB that this rank sees for so long."""
    return device_json(
        op("aten::mm", start, 10, 1),
        op("record_param_comms", start + 10, 10, 2) | {"args": {"External id": 1002, **ARGS}},
        launch(start + 12, 2),
        kernel("ncclDevKernel_AllReduce", start + 20, nccl_us, 2, 2, stream=9, **ARGS),
        distributedInfo={"rank": rank, **WORLD},
    )


def put(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
