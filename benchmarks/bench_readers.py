"""Traces of other profilers, made by hand at any size, into recordings and into jobs.

    python benchmarks/bench_readers.py                    # a million events each
    python benchmarks/bench_readers.py --events 100000

Half of the events are calls on one thread, half kernels on four streams of one GPU, tied by correlation. `read` is the
file into columns, `job` the whole of `etude.open`, with the causal graph. CPU seconds of this process, warm: each
reader has read a small file before.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import etude
from etude.capture.ingest import profiles
from etude.kernels.varint import encode_varint

PERIOD_NS, CALL_NS, KERNEL_NS, LATE_NS, STREAMS = 10_000, 3_000, 8_000, 20_000, 4
NAMES = tuple(f"fusion_{i}" for i in range(50))


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def entry(number: int, name: bytes) -> bytes:
    return field(1, number) + field(2, field(1, number) + field(2, name))


def plane(name: bytes, lines: list[bytes]) -> bytes:
    metadata = b"".join(field(4, entry(i + 1, text.encode())) for i, text in enumerate(NAMES))
    return field(
        1, field(2, name) + b"".join(field(3, one) for one in lines) + metadata + field(5, entry(1, b"correlation_id"))
    )


def event(name: int, start_ns: int, length_ns: int, correlation: int) -> bytes:
    stat = field(4, field(1, 1) + field(3, correlation))
    return field(4, field(1, name) + field(2, start_ns * 1000) + field(3, length_ns * 1000) + stat)


def write_xplane(path: Path, launches: int) -> None:
    calls = [event(i % 50 + 1, i * PERIOD_NS, CALL_NS, i + 1) for i in range(launches)]
    streams = [
        field(1, s) + field(2, f"Stream #{s}(Compute)".encode())
        + b"".join(event(i % 50 + 1, i * PERIOD_NS + LATE_NS, KERNEL_NS, i + 1) for i in range(s, launches, STREAMS))
        for s in range(STREAMS)
    ]  # fmt: skip
    host = field(1, 501) + field(2, b"python") + b"".join(calls)
    path.write_bytes(plane(b"/device:GPU:0", streams) + plane(b"/host:CPU", [host]))


def write_nsight(path: Path, launches: int) -> None:
    tid = (7 << 24) + 1
    with sqlite3.connect(path) as to:
        to.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        to.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(("cudaLaunchKernel_v7000", *NAMES))))
        to.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
        rows = ((i * PERIOD_NS, i * PERIOD_NS + CALL_NS, tid, i + 1, 0) for i in range(launches))
        to.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", rows)
        to.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
            " (start, end, deviceId, streamId, correlationId, globalPid, demangledName)"
        )
        begins = (i * PERIOD_NS + LATE_NS for i in range(launches))
        kernels = (
            (begin, begin + KERNEL_NS, 0, i % STREAMS, i + 1, 7 << 24, i % 50 + 1) for i, begin in enumerate(begins)
        )
        to.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", kernels)


def write_rocprof(path: Path, launches: int) -> None:
    def record(i: int, begin: int, length: int) -> dict[str, object]:
        return {"kind": 0, "operation": 0, "thread_id": 501, "correlation_id": {"internal": i + 1, "external": 0},
                "start_timestamp": begin, "end_timestamp": begin + length}  # fmt: skip

    def dispatch(i: int) -> dict[str, object]:
        return {"agent_id": {"handle": 1}, "queue_id": {"handle": 1}, "kernel_id": i % 50}

    calls = [record(i, i * PERIOD_NS, CALL_NS) for i in range(launches)]
    kernels = [
        {
            **record(i, i * PERIOD_NS + LATE_NS, KERNEL_NS),
            "dispatch_info": dispatch(i),
            "stream_id": {"handle": i % STREAMS + 1},
        }
        for i in range(launches)
    ]
    tool = {
        "agents": [{"id": {"handle": 1}, "type": 2, "name": "gfx942"}],
        "strings": {"buffer_records": [{"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel"]}]},
        "kernel_symbols": [{"kernel_id": i, "kernel_name": name} for i, name in enumerate(NAMES)],
        "buffer_records": {"hip_api": calls, "kernel_dispatch": kernels},
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}), encoding="utf-8")


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "run.xplane.pb": write_xplane,
    "run.sqlite": write_nsight,
    "run.json": write_rocprof,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    events = parser.parse_args().events
    print(f"{'file':>14} {'events':>10} {'MB':>6} {'read_s':>7} {'job_s':>7} {'nodes':>10}")
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as folder:
            small, large = Path(folder) / f"small.{name}", Path(folder) / name
            write(small, 500)
            etude.open(small)
            write(large, events // 2)
            begin = time.process_time()
            [(_, reader)] = profiles.files_of(large)
            rows = sum(len(one) for one in reader.read(large, None))
            read = time.process_time()
            job = etude.open(large)
            done = time.process_time()
            size = large.stat().st_size / 1e6
            print(
                f"{name:>14} {rows:>10,} {size:>6.0f} {read - begin:>7.2f} {done - read:>7.2f} {len(job.trace(0)):>10,}"
            )


if __name__ == "__main__":
    main()
