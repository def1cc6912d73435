"""Records of rocprof: bad files are refused, what is not known is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import FormatError
from etude.capture.link import recording as r
from etude.capture.link.recording import DeviceRecording
from etude.capture.link.rocprof import read_rocprof
from etude.capture.link.rocprof_json import read_rocprof_json
from etude.model.schema import UNKNOWN
from etude.model.text import pad

GOLDEN = Path(__file__).parents[1] / "golden" / "profiles"


def read(document: Any) -> list[DeviceRecording]:
    data = json.dumps(document).encode() if not isinstance(document, bytes) else document
    return read_rocprof(pad(np.frombuffer(data, np.uint8)), len(data), "made.json")


def kernel(start: int, end: int, number: int, agent: int) -> dict[str, Any]:
    info = {"agent_id": {"handle": agent}, "queue_id": {"handle": 99}, "kernel_id": number}
    return {"start_timestamp": start, "end_timestamp": end, "correlation_id": {"internal": 5}, "dispatch_info": info}


def test_what_a_file_lacks_is_unknown() -> None:
    tool = {"buffer_records": {"kernel_dispatch": [kernel(10, 30, 7, 42)], "page_faults": [{"start_timestamp": 1}]}}
    for document in ({"rocprofiler-sdk-tool": [tool]}, {"rocprofiler-sdk-tool": tool}):
        [one] = read(document)
        assert one.names[one.name[0]] == "kernel 7" and one.duration_ns.tolist() == [20]
        assert one.device.tolist() == [UNKNOWN] and one.stream.tolist() == [1]
        assert list(one.told) == ["1 records of `page_faults` are not read"]


def test_processes_are_ranks() -> None:
    tools = [{"buffer_records": {"kernel_dispatch": [kernel(10 * at, 10 * at + 5, 1, 42)]}} for at in (1, 2)]
    first, second = read({"rocprofiler-sdk-tool": tools})
    assert (first.rank, second.rank, second.world_size) == (0, 1, 2)
    assert first.start_ns.tolist() == [10] and second.start_ns.tolist() == [20]


def test_operations_may_be_words() -> None:
    call = {
        "kind": "HIP_RUNTIME_API",
        "operation": "hipMalloc",
        "start_timestamp": 1,
        "end_timestamp": 2,
        "thread_id": 8,
    }
    [one] = read({"rocprofiler-sdk-tool": [{"buffer_records": {"hip_api": [call]}}]})
    assert one.names == ("hipMalloc",) and one.category.tolist() == [r.CUDA_CALL] and one.thread.tolist() == [8]


def test_bad_files_are_refused() -> None:
    with pytest.raises(FormatError, match="no kernels, copies or calls"):
        read({"rocprofiler-sdk-tool": [{"buffer_records": {}}]})
    with pytest.raises(FormatError, match="no `rocprofiler-sdk-tool`"):
        read({"other": 1})
    for name, reader in (("rocprofv3", read_rocprof), ("rocprof_results", read_rocprof_json)):
        data = (GOLDEN / f"{name}.json").read_bytes()
        for size in np.linspace(20, len(data) - 1, 60).astype(int).tolist():
            with pytest.raises(FormatError, match=r"made\.json"):
                reader(pad(np.frombuffer(data[:size], np.uint8)), size, "made.json")
