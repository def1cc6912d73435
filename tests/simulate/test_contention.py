"""What meets on a device in a simulation: the numbers of `ops contend`, and closed forms worked by hand."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import UsageError
from etude.machine import open_device
from etude.machine.sharing import HostLink, KernelSharing
from etude.machine.system import Device, Level, LevelKind, System
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind, ValueKind
from etude.run.simulate.options import Overlap, RemoteMemory
from etude.run.simulate.run import simulate
from etude.surface.cli import main

H200 = open_device("h200")
PRODUCT = {"flops": 2 * 4096**3, "tensor_bytes": 3 * 2 * 4096**2}
SMALL = {"flops": 2 * 1024**3, "tensor_bytes": 3 * 2 * 1024**2}
STREAM = {"flops": 2**28, "tensor_bytes": 3 * 2**29}
KERNELS = {"product": (PRODUCT, 200_000), "small": (SMALL, 5_500), "stream": (STREAM, 380_000)}


def machine(device: Device = H200, **level: Any) -> System:
    given = {"name": "node", "kind": LevelKind.SWITCH, "size": 2, "bandwidth_bytes_per_s": 10e9, "latency_ns": 0.0}
    return System(name="two", device=device, levels=(Level(**(given | level)),))


def beside(op: str, background: str) -> float:
    """How much slower one kernel is while others of one kind follow each other on a second stream."""
    b = TraceBuilder()
    (work, alone), (other, other_ns) = KERNELS[op], KERNELS[background]
    b.add(Kind.COMP, duration_ns=alone, stream=7, **work)
    for _ in range(80 * alone // other_ns + 2):
        b.add(Kind.COMP, duration_ns=other_ns, stream=8, **other)
    start, end = simulate(job_of("pair", [b]), machine(), contention=True).timing.block(0)
    return float(end[0] - start[0]) / alone


def test_a_pair_of_nodes_takes_what_ops_contend_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = list(KERNELS)
    with (tmp_path / "pairs.csv").open("w") as file:
        out = csv.writer(file)
        out.writerow([f"{who}{what}" for who in ("op", "background") for what in ("", "_alone_ns", "_flops", "_bytes")])
        for op in names:
            for other in names:
                rows = [(x, KERNELS[x][1], KERNELS[x][0]["flops"], KERNELS[x][0]["tensor_bytes"]) for x in (op, other)]
                out.writerow([*rows[0], *rows[1]])
    assert main(["ops", "contend", str(tmp_path / "pairs.csv"), "--device", "h200", "--json"]) == 0
    said = [row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]]
    found = [beside(op, other) for op in names for other in names]
    assert found == pytest.approx(said, rel=1e-3)
    assert max(said) > 5 and min(said) < 1.1  # queues and kernels that do not notice


def collective_and_kernel(kernel: dict[str, int], alone_ns: int, size: int) -> Job:
    parts = []
    for _ in range(2):
        b = TraceBuilder()
        b.add(Kind.COLL, collective=Collective.ALL_REDUCE, in_bytes=size)
        b.add(Kind.COMP, duration_ns=alone_ns, stream=7, **kernel)
        parts.append(b)
    return job_of("both", parts)


def test_a_collective_holds_cores_and_draws_memory_as_ops_contend_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # 2 GB over 2 ranks: each sends 2 GB and reduces 1 GB: 5 GB of memory in the collective's time
    size = 2 * 10**9
    alone = simulate(collective_and_kernel(SMALL, 1, size), machine())
    taken_ns = alone.timing.block(0)[1][0]
    with (tmp_path / "held.csv").open("w") as file:
        out = csv.writer(file)
        names = ("op", "holder", "sms_held", "op_alone_ns", "holder_bytes_per_s_alone", "op_flops", "op_bytes")
        out.writerow(names)
        for kernel, alone_ns in KERNELS.values():
            drawn = 5 * size / 2 / taken_ns * 1e9
            out.writerow(("op", "nccl", 16, alone_ns, drawn, kernel["flops"], kernel["tensor_bytes"]))
    assert main(["ops", "contend", str(tmp_path / "held.csv"), "--device", "h200", "--json"]) == 0
    for row, (kernel, alone_ns) in zip(json.loads(capsys.readouterr().out)["rows"], KERNELS.values(), strict=True):
        run = simulate(collective_and_kernel(kernel, alone_ns, size), machine(), contention=True)
        start, end = run.timing.block(0)
        assert (end - start)[1] / alone_ns == pytest.approx(row["predicted"], rel=1e-3)


def tiny(**more: Any) -> Device:
    """4 cores, 100 bytes per ns of memory, 10 bytes per ns to the host each way."""
    link = HostLink(read_bytes_per_s=10e9, write_bytes_per_s=10e9, both_bytes_per_s=8e9)
    sharing = KernelSharing(clusters=1, gap_ns=0.0, communication_cores=1)
    given = {"memory_bandwidth_bytes_per_s": 100e9 / 0.9, "cores": 4, "sharing": sharing, "host_link": link}
    return Device(name="tiny", **{**given, **more})


def loads(size: int, collective_bytes: int, **row: Any) -> Job:
    parts = []
    for _ in range(2):
        b = TraceBuilder()
        b.add(Kind.COLL, collective=Collective.ALL_GATHER, in_bytes=collective_bytes)
        b.add(Kind.MEM_LOAD, tensor_bytes=size, stream=8, **row)
        parts.append(b)
    return job_of("loads", parts)


HOST = RemoteMemory(bytes_per_s=10e9)


def ends(job: Job, on: System, **options: Any) -> list[int]:
    return simulate(job, on, contention=True, remote_memory=HOST, **options).timing.block(0)[1].tolist()


def test_copies_and_collectives_meet_on_the_link_to_the_host():
    # alone: 10,000 bytes gathered at 10 bytes per ns are 1000 ns, 4000 bytes loaded 400 ns, both the whole link
    apart, over = machine(tiny()), machine(tiny(), on_host_link=True)
    assert ends(loads(4000, 10_000), apart) == [1000, 400]
    assert ends(loads(4000, 10_000), over) == [pytest.approx(1400, abs=2), pytest.approx(800, abs=2)]
    # 4 bytes per ns are 0.4 of the link: met, and the load has 0.6 until it ends
    slower = machine(tiny(), on_host_link=True, bandwidth_bytes_per_s=4e9)
    assert ends(loads(4000, 8_000), slower) == [2000, pytest.approx(667, abs=2)]


def test_a_copy_in_the_devices_own_memory_meets_kernels_there():
    b = TraceBuilder()
    stream = {"tensor_bytes": 100_000, "duration_ns": 1000, "flops": 100}
    b.add(Kind.COMP, stream=7, **stream)
    b.add(Kind.MEM_LOAD, tensor_bytes=100_000, duration_ns=1000, stream=8, attrs={"tensor_loc": (ValueKind.INT32, 1)})
    (found,) = {tuple(simulate(job_of("two", [b]), machine(tiny()), contention=True).timing.block(0)[1].tolist())}
    assert found == (pytest.approx(2000, rel=0.02), pytest.approx(2000, rel=0.02))


def test_one_after_the_other_is_as_before():
    b = TraceBuilder()
    for _ in range(5):
        b.add(Kind.COMP, duration_ns=1000, stream=7, data=[len(b) - 1] if len(b) else [], **PRODUCT)
        b.add(Kind.MEM_LOAD, tensor_bytes=4000, stream=8, data=[len(b) - 1])
    job = job_of("chain", [b])
    before, after = (simulate(job, machine(), contention=on, remote_memory=HOST) for on in (False, True))
    assert [x.tolist() for x in before.timing.block(0)] == [x.tolist() for x in after.timing.block(0)]


def test_host_work_meets_nobody():
    b = TraceBuilder()
    b.add(Kind.COMP, duration_ns=1000, cpu=1)
    b.add(Kind.COMP, duration_ns=1000, stream=7, **PRODUCT)
    assert simulate(job_of("host", [b]), machine(), contention=True).makespan_ns == 1000


def test_work_that_is_not_known_is_said():
    b = TraceBuilder()
    b.add(Kind.COMP, duration_ns=100_000, stream=7)
    b.add(Kind.COMP, duration_ns=100_000, stream=8)
    run = simulate(job_of("dark", [b]), machine(), contention=True)
    assert any("2 compute nodes have no operations" in note for note in run.notes)
    assert run.makespan_ns == pytest.approx(200_000, rel=0.02)  # both fill the cores, and take turns


def test_contention_and_factors_are_two_words_for_one_thing():
    with pytest.raises(UsageError, match="cannot be combined with overlap"):
        simulate(loads(1, 1), machine(), contention=True, overlap=Overlap(compute=1.1))
    assert replace(H200.sharing).communication_cores == 16
