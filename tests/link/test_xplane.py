"""`.xplane.pb`: against protobuf, against files made by hand, and on real ones."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xplane_pb as pb
from etude.base.errors import FormatError
from etude.capture.ingest.dropped import dropped
from etude.capture.link import recording as r
from etude.capture.link.recording import DeviceRecording
from etude.capture.link.xla import recordings
from etude.capture.link.xplane import looks_like, read_xplane
from etude.model.schema import UNKNOWN
from etude.model.text import pad

GOLDEN = Path(__file__).parents[1] / "golden" / "profiles"
REAL = ("jax_cpu", "jax_h200")


def read(space: Any) -> list[DeviceRecording]:
    data = space if isinstance(space, bytes) else space.SerializeToString()
    return recordings(read_xplane(pad(np.frombuffer(data, np.uint8)), len(data), "made.xplane.pb"))


def real(name: str) -> bytes:
    return gzip.decompress((GOLDEN / f"{name}.xplane.pb.gz").read_bytes())


def rows_of(one: DeviceRecording, category: int) -> list[tuple[str, int, int]]:
    """(name, start, end) of the events of a category, in order."""
    chosen = np.flatnonzero(one.category == category)
    return [
        (one.names[one.name[i]], int(one.start_ns[i]), int(one.start_ns[i] + one.duration_ns[i]))
        for i in chosen.tolist()
    ]


@pytest.mark.parametrize("name", REAL)
def test_every_event_is_where_protobuf_says(name: str) -> None:
    data = real(name)
    assert looks_like(data[:100])
    events = read_xplane(pad(np.frombuffer(data, np.uint8)), len(data))
    space = pb.XSpace.FromString(data)
    expected = []
    for plane in space.planes:
        names = {entry.key: entry.value for entry in plane.event_metadata}
        stats = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for line in plane.lines:
            for event in line.events:
                begin = line.timestamp_ns * 1000 + event.offset_ps
                meta = names[event.metadata_id]
                said = {stats[s.metadata_id]: s for s in event.stats}
                op = said.get("hlo_op")
                expected.append(
                    (
                        plane.name,
                        line.display_name or line.name,
                        meta.display_name or meta.name,
                        begin // 1000,
                        (begin + event.duration_ps) // 1000,
                        (op.str_value or stats.get(op.ref_value, "")) if op is not None else "",
                        said["correlation_id"].uint64_value if "correlation_id" in said else UNKNOWN,
                    )
                )
    codes, words = events.words["hlo_op"]
    found = [
        (
            events.lines[events.line[i]].plane,
            events.lines[events.line[i]].name,
            events.names[events.name[i]],
            int(events.start_ns[i]),
            int(events.start_ns[i] + events.duration_ns[i]),
            words[codes[i]] if codes[i] >= 0 else "",
            int(events.numbers["correlation_id"][i]),
        )
        for i in range(len(events))
    ]
    assert found == expected


def test_a_gpu_plane_by_hand() -> None:
    space = pb.XSpace(errors=["2 events were dropped"])
    host = pb.Plane(space, "/host:CPU")
    python = host.line("python", 501, timestamp_ns=1_000)
    host.event(python, "train", 0, 900, step_num=7)
    host.event(python, "$train.py:12 main", 0, 950)
    host.event(python, "launch", 100, 200)
    calls = pb.Plane(space, "/host:CUPTI")
    line = calls.line("Host Threads/501", 501, timestamp_ns=1_000)
    calls.event(line, "cuLaunchKernel", 120, 150, correlation_id=31)
    gpu = pb.Plane(space, "/device:GPU:0")
    stream = gpu.line("Stream #14(Compute)", 14, timestamp_ns=2_000)
    gpu.event(stream, "fusion", 0.25, 100.75, correlation_id=31, hlo_op="fusion.1")
    gpu.event(stream, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 200, 300, hlo_op="all-reduce-start.2")
    gpu.event(stream, "MemcpyH2D", 400, 450, memcpy_details="kind_src:pinned kind_dst:device size:4096 dest:0")
    gpu.event(gpu.line("XLA Ops", 90), "fusion.1", 0, 100)
    [one] = read(space)
    assert rows_of(one, r.ANNOTATION) == [("ProfilerStep#7", 1_000, 1_900)]
    assert rows_of(one, r.PYTHON) == [("train.py(12): main", 1_000, 1_950)]
    assert rows_of(one, r.CUDA_CALL) == [("cuLaunchKernel", 1_120, 1_150)]
    kernels = rows_of(one, r.KERNEL)
    assert kernels == [("fusion", 2_000, 2_100), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2_200, 2_300)]
    assert rows_of(one, r.COPY) == [("MemcpyH2D", 2_400, 2_450)]
    assert one.copied_bytes[one.category == r.COPY].tolist() == [4096]
    assert [one.talks[t].collective for t in one.talk[one.talk >= 0].tolist()] == ["all_reduce"]
    threads = one.thread[np.isin(one.category, (r.CPU_OP, r.CUDA_CALL))]
    assert threads.tolist() == [501, 501]  # the driver's call is inside the operator of its thread
    assert one.correlation[one.category == r.CUDA_CALL].tolist() == [31]
    assert list(one.told) == ["the profiler said: 2 events were dropped"]


def test_a_launch_is_on_the_rank_whose_device_it_launches_for() -> None:
    """Thread 501 launches for both devices, 502 for the second one, 503 for none."""
    space = pb.XSpace()
    calls = pb.Plane(space, "/host:ROCTRACER")
    both, second, none = (calls.line(f"Host Threads/{number}", number) for number in (501, 502, 503))
    for at, (line, ids) in enumerate(((both, (1, 2, 3)), (second, (4, 5)))):
        for number in ids:
            calls.event(line, f"hipLaunchKernel {number}", 100 * number, 100 * number + 10 + at, correlation_id=number)
    calls.event(second, "hipLaunchKernel 6", 600, 610, correlation_id=6)  # of what nothing is recorded
    calls.event(none, "hipMalloc", 0, 10, correlation_id=7)
    for device, ids in ((0, (1, 3)), (1, (2, 4, 5))):
        plane = pb.Plane(space, f"/device:GPU:{device}")
        stream = plane.line("Stream #1", 1)
        for number in ids:
            plane.event(stream, "fusion", 100 * number + 50, 100 * number + 90, correlation_id=number)
    found = [[name for name, _, _ in rows_of(one, r.CUDA_CALL)] for one in read(space)]
    launches = [[f"hipLaunchKernel {number}" for number in ids] for ids in ((1, 3), (2, 4, 5, 6))]
    assert found == [[*launches[0], "hipMalloc"], launches[1]]
    for rank, one in enumerate(read(space)):
        notes = [note.what for note in dropped(r.device_trace(one), rank)]
        assert not any("records were dropped" in what for what in notes), notes


def test_a_tpu_plane_by_hand_with_a_line_of_what_runs_at_the_same_time() -> None:
    space = pb.XSpace()
    for number in (0, 1):
        plane = pb.Plane(space, f"/device:TPU:{number}")
        plane.event(plane.line("Steps", 1), "3", 0, 1_000)
        ops = plane.line("XLA Ops", 2)
        plane.event(ops, "while.1", 0, 500)
        plane.event(ops, "fusion.2", 0, 200)
        plane.event(ops, "all-gather-start.3", 200, 210)
        plane.event(ops, "fusion.4", 210, 400)
        plane.event(ops, "all-gather-done.3", 400, 500)
        plane.event(plane.line("Async XLA Ops", 4), "all-gather.3", 200, 500)
        plane.event(plane.line("Source code", 5), "train.py:7", 0, 400)
        plane.event(plane.line("Sparse Core Ops", 6), "gather", 0, 400)
    first, second = read(space)
    assert (first.rank, second.rank, first.world_size) == (0, 1, 2)
    for one in (first, second):
        assert rows_of(one, r.KERNEL) == [("fusion.2", 0, 200), ("fusion.4", 210, 400), ("all-gather.3", 200, 500)]
        assert rows_of(one, r.ANNOTATION) == [("ProfilerStep#3", 0, 1_000)]
        assert [one.talks[t].collective for t in one.talk[one.talk >= 0].tolist()] == ["all_gather"]
        streams = one.stream[one.category == r.KERNEL].tolist()
        assert streams[0] == streams[1] != streams[2]
    assert sorted(first.told) == [
        "1 events of line `Sparse Core Ops` of plane `/device:TPU:0` are not read",
        "1 events of line `Sparse Core Ops` of plane `/device:TPU:1` are not read",
    ]
    assert second.told == ()


def test_a_start_and_its_done_are_one_communication_beside_the_instructions() -> None:
    space = pb.XSpace()
    plane = pb.Plane(space, "/device:TPU:0")
    ops = plane.line("XLA Ops", 2)
    plane.event(ops, "all-reduce-start.1", 0, 10)
    plane.event(ops, "fusion", 10, 80)
    plane.event(ops, "all-reduce-done.1", 80, 100)
    [one] = read(space)
    assert rows_of(one, r.KERNEL) == [("all-reduce-start.1", 0, 100), ("fusion", 10, 80)]
    streams = one.stream[one.category == r.KERNEL].tolist()
    assert streams[0] != streams[1]


@pytest.mark.parametrize("name", REAL)
def test_a_file_that_is_cut_short_is_refused_with_a_place(name: str) -> None:
    data = real(name)
    problems = []
    for size in np.linspace(1, len(data) - 1, 150).astype(int).tolist():
        try:
            read(data[:size])
        except FormatError as problem:
            problems.append(str(problem))
    assert all("made.xplane.pb" in text for text in problems)
    assert len(problems) >= 145  # cut between two planes, what is left is whole


def test_random_bytes_are_refused() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        data = bytearray(real("jax_cpu"))
        for at in random.integers(0, len(data), 20).tolist():
            data[at] = int(random.integers(256))
        with contextlib.suppress(FormatError):
            read(bytes(data))
