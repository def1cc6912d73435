"""SQLite files of Nsight Systems: a real one against plain SQL, older layouts made by hand."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import FormatError
from etude.capture.link import recording as r
from etude.capture.link.kernel_names import step_of, talk_of_kernel
from etude.capture.link.nsight import read_nsight
from etude.capture.link.recording import DeviceRecording
from etude.model.schema import UNKNOWN

REAL = Path(__file__).parents[1] / "golden" / "profiles" / "nsight_h200.sqlite.gz"
PROCESS, THREAD = 7, 7001
PID = PROCESS << 24
TID = PID | THREAD
NCCL_SUM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    path = tmp_path / "run.sqlite"
    path.write_bytes(gzip.decompress(REAL.read_bytes()))
    return path


def named(one: DeviceRecording, category: int) -> list[tuple[str, int, int]]:
    rows = np.flatnonzero(one.category == category).tolist()
    return [(one.names[one.name[i]], int(one.start_ns[i]), int(one.duration_ns[i])) for i in rows]


def made(path: Path, *tables: str, rows: dict[str, list[tuple[object, ...]]]) -> Path:
    with sqlite3.connect(path) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table}")
        for table, values in rows.items():
            for value in values:
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(value))})", value)
    return path


def test_a_real_file_says_what_sql_says(real: Path) -> None:
    [one] = read_nsight(str(real))
    with sqlite3.connect(real) as connection:
        kernels = connection.execute(
            "SELECT s.value, k.start, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN StringIds s ON s.id = k.demangledName ORDER BY k.rowid"
        ).fetchall()
        calls = connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
        copied = connection.execute("SELECT bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY rowid").fetchall()
    assert named(one, r.KERNEL) == kernels
    assert len(named(one, r.CUDA_CALL)) == calls
    assert one.copied_bytes[one.category == r.COPY].tolist() == [size for (size,) in copied]
    assert [name for name, _, _ in named(one, r.ANNOTATION)] == [f"ProfilerStep#{step}" for step in (2, 3, 4)]
    assert {name for name, _, _ in named(one, r.CPU_OP)} >= {"forward", "backward", "optimizer"}
    assert one.device_name == "NVIDIA H200"
    launched = np.isin(one.correlation[one.category == r.KERNEL], one.correlation[one.category == r.CUDA_CALL])
    assert launched.all()
    assert not any(name.endswith("_v7000") for name, _, _ in named(one, r.CUDA_CALL))


def test_a_packed_file_is_read_from_memory(real: Path) -> None:
    [one] = read_nsight("run.sqlite.gz", real.read_bytes())
    assert len(one) == len(read_nsight(str(real))[0])


def test_an_old_layout_lacks_columns(tmp_path: Path) -> None:
    path = made(
        tmp_path / "old.sqlite",
        "StringIds (id INTEGER, value TEXT)",
        "CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT, shortName INT)",
        "CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT)",
        rows={
            "StringIds": [(1, "gemm"), (2, "cudaLaunchKernel_v7000")],
            "CUPTI_ACTIVITY_KIND_KERNEL": [(100, 150, 0, 7, 11, 1)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [(90, 95, TID, 11, 2)],
        },
    )
    [one] = read_nsight(str(path))
    assert named(one, r.KERNEL) == [("gemm", 100, 50)]
    assert named(one, r.CUDA_CALL) == [("cudaLaunchKernel", 90, 5)]
    assert one.thread[one.category == r.CUDA_CALL].tolist() == [THREAD]


def test_processes_and_devices_are_ranks(tmp_path: Path) -> None:
    second = 9 << 24
    path = made(
        tmp_path / "two.sqlite",
        "StringIds (id INTEGER, value TEXT)",
        "CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,"
        " demangledName INT)",
        "CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT)",
        rows={
            "StringIds": [(1, "gemm"), (2, "cudaLaunchKernel_v7000"), (3, "cudaMalloc_v3020")],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                (100, 150, 0, 7, 11, PID, 1),
                (200, 250, 1, 7, 12, PID, 1),
                (300, 350, 0, 7, 11, second, 1),
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                (90, 95, PID | 1, 11, 2),
                (190, 195, PID | 2, 12, 2),
                (10, 20, PID | 3, 5, 3),
                (290, 295, second | 1, 11, 2),
            ],
        },
    )
    ranks = read_nsight(str(path))
    assert [one.rank for one in ranks] == [0, 1, 2] and ranks[0].world_size == 3
    starts = [[start for _, start, _ in named(one, r.KERNEL)] for one in ranks]
    assert starts == [[100], [200], [300]]
    # the thread that launches nothing lies with the first device of its process
    assert [sorted(one.thread[one.category == r.CUDA_CALL].tolist()) for one in ranks] == [[1, 3], [2], [1]]


def test_a_range_of_nccl_says_the_bytes_of_its_kernel(tmp_path: Path) -> None:
    path = made(
        tmp_path / "nccl.sqlite",
        "StringIds (id INTEGER, value TEXT)",
        "CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,"
        " demangledName INT)",
        "CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT)",
        "NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT, domainId INT,"
        " jsonText TEXT)",
        rows={
            "StringIds": [(1, NCCL_SUM), (2, "cudaLaunchKernelExC_v11060"), (3, "ncclAllReduce")],
            "CUPTI_ACTIVITY_KIND_KERNEL": [(100, 150, 0, 7, 11, PID, 1), (200, 250, 0, 7, 12, PID, 1)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [(90, 95, TID, 11, 2), (190, 195, TID, 12, 2)],
            "NVTX_EVENTS": [
                (0, None, 75, "NCCL", TID, None, 1, None),
                (80, 99, 59, None, TID, 3, 1, '{"NCCL communicator ID": 5, "Message size [bytes]": 4096}'),
                (180, 199, 59, "Message size [bytes]: 8", TID, None, 0, None),
            ],
        },
    )
    [one] = read_nsight(str(path))
    talks = [one.talks[code] for code in one.talk[one.category == r.KERNEL].tolist()]
    assert [(t.collective, t.dtype, t.in_bytes) for t in talks] == [
        ("all_reduce", "BFloat16", 4096),
        ("all_reduce", "BFloat16", UNKNOWN),
    ]


@pytest.mark.parametrize(
    ("name", "collective", "dtype"),
    [
        (NCCL_SUM, "all_reduce", "BFloat16"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter", "Float"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", "all_gather", ""),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast", ""),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "", ""),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "", ""),
        ("void at::native::reduce_kernel<512, 1>()", "", ""),
    ],
)
def test_what_names_of_kernels_say(name: str, collective: str, dtype: str) -> None:
    found = talk_of_kernel(name)
    assert (found.collective if found else "") == collective
    assert (found.dtype if found else "") == dtype


@pytest.mark.parametrize(
    ("name", "step"),
    [("step 3", 3), ("ProfilerStep#12", 12), ("Iteration_7", 7), ("train_step 4", 4), ("iter:5", 5), ("step", -1),
     ("footstep 3", -1), ("forward", -1)],
)  # fmt: skip
def test_ranges_that_mark_steps(name: str, step: int) -> None:
    assert step_of(name) == step


def test_other_databases_and_damaged_ones_are_refused(tmp_path: Path, real: Path) -> None:
    other = made(tmp_path / "other.sqlite", "people (name TEXT)", rows={"people": [("Ada",)]})
    with pytest.raises(FormatError, match="no kernels, calls or ranges"):
        read_nsight(str(other))
    data = real.read_bytes()
    cut = tmp_path / "cut.sqlite"
    for size in (100, len(data) // 3, len(data) // 2):
        cut.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"cut\.sqlite"):
            read_nsight(str(cut))
    wrong = made(
        tmp_path / "wrong.sqlite",
        "CUPTI_ACTIVITY_KIND_KERNEL (start TEXT, end INT)",
        rows={"CUPTI_ACTIVITY_KIND_KERNEL": [("soon", 5)]},
    )
    with pytest.raises(FormatError, match=r"wrong\.sqlite"):
        read_nsight(str(wrong))
