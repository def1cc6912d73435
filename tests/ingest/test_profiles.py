"""Traces of other profilers as jobs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.analyse.breakdown import breakdown
from etude.analyse.clocks import offsets
from etude.base.errors import UsageError
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.timing import Timing
from etude.store import columns
from etude.surface.cli import main

GOLDEN = Path(__file__).parents[1] / "golden" / "profiles"
JAX_CPU, JAX_GPU = GOLDEN / "jax_cpu.xplane.pb.gz", GOLDEN / "jax_h200.xplane.pb.gz"


def parts_are_the_span(path: Path) -> None:
    for row in breakdown(etude.open_run(path)).to_pylist():
        parts = row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_memory_ns"] + row["idle_ns"]
        assert parts == row["span_ns"]


def recorded(job: Job) -> Timing:
    assert job.timing is not None
    return job.timing


def union_ns(intervals: list[tuple[int, int]]) -> int:
    """Time that any of some intervals covers, one ns after the other."""
    total, until = 0, -(1 << 62)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_the_parts_of_a_breakdown_are_its_span(path: Path) -> None:
    parts_are_the_span(path)


def test_a_jax_program_on_two_host_devices_is_a_job_of_two_ranks() -> None:
    job = etude.open(JAX_CPU)
    assert job.world_size == 2 and len(job.ranks) == 2
    assert job.provenance["source_format"] == "jax profiler"
    for rank in (0, 1):
        trace = job.trace(rank)
        calls = np.flatnonzero(trace.kind == Kind.COLL)
        assert set(trace.collective[calls].tolist()) == {Collective.ALL_REDUCE}
        # three steps of: a (256, 512); it and b (512, 64); b and the loss, all float32
        sizes = [524_288, 524_288 + 131_072, 131_072 + 4]
        assert trace.in_bytes[calls].tolist() == sizes * 3
        assert np.unique(trace.step[calls]).tolist() == [0, 1, 2]
    assert len(job.groups) == 1 and job.groups.members.tolist() == [0, 1]
    assert etude.check(job) == []


def test_a_jax_program_on_a_mesh_has_the_groups_that_xla_prints() -> None:
    """`sum(x @ x.T)` of (256, 256) float32 on 2 x 2 devices. The text of the program: an all-gather to (128, 256) in
    `[2,2]<=[2,2]T(1,0)`, an all-reduce of it in `[2,2]<=[4]`, one of 256 along the first axis of a mesh."""
    job = etude.open(GOLDEN / "jax_mesh.xplane.pb.gz")
    columns, rows = ((0, 2), (1, 3)), ((0, 1), (2, 3))
    for rank in range(4):
        trace, binding = job.trace(rank), job.group_slots(rank)
        found = [
            (Collective(trace.collective[i]), int(trace.in_bytes[i]),
             tuple(job.groups.ranks(int(binding[trace.group[i]])).tolist()))
            for i in np.flatnonzero(trace.kind == Kind.COLL).tolist()
        ]  # fmt: skip
        assert found == 3 * [
            (Collective.ALL_GATHER, 65_536, columns[rank % 2]),
            (Collective.ALL_REDUCE, 131_072, rows[rank // 2]),
            (Collective.ALL_REDUCE, 1024, columns[rank % 2]),
        ]
    assert etude.check(job) == []


def test_devices_of_one_process_share_its_clock() -> None:
    """Its devices leave a collective at different times; that is no offset of clocks."""
    run = etude.open_run(GOLDEN / "jax_mesh.xplane.pb.gz")
    assert run.timing.aligned and offsets(run).tolist() == [0, 0, 0, 0]
    assert offsets(replace(run, timing=replace(run.timing, aligned=False))).any()


def test_the_chrome_json_beside_it_has_the_same_times() -> None:
    for name in ("jax_cpu", "jax_h200"):
        from_pb, from_json = (etude.open(GOLDEN / f"{name}.{ending}") for ending in ("xplane.pb.gz", "trace.json.gz"))
        for rank in from_pb.ranks.tolist():
            times = []
            for job in (from_pb, from_json):
                trace, timing = job.trace(rank), recorded(job)
                rows = np.flatnonzero((trace.cpu == 0) & (trace.stream >= 0))
                start = timing.start_ns[rank][rows] - timing.start_ns[rank][rows].min()
                length = timing.end_ns[rank][rows] - timing.start_ns[rank][rows]
                times.append(sorted(zip((trace.text("name", int(i)) for i in rows), start, length, strict=True)))
            assert len(times[0]) == len(times[1]) > 0
            for (name_a, start_a, length_a), (name_b, start_b, length_b) in zip(*times, strict=True):
                assert name_a == name_b and abs(start_a - start_b) <= 1 and abs(length_a - length_b) <= 1


def test_kernels_of_a_gpu_follow_from_their_launches() -> None:
    job = etude.open(JAX_GPU)
    trace = job.trace(0)
    kernels = np.flatnonzero((trace.cpu == 0) & (trace.stream >= 0))
    assert len(kernels) == 48  # 45 kernels and fills of three graph launches, 3 copies
    assert (trace.parent[kernels] >= 0).sum() == 45  # copies are launched by a thread of PjRt's, outside of operators
    assert (trace.correlation[kernels] > 0).all()
    assert np.bincount(trace.step[kernels]).tolist() == [16, 16, 16]
    assert job.provenance["device"] == "NVIDIA H200"
    copies = trace.tensor_bytes[kernels][trace.stream[kernels] == 15]
    assert copies.tolist() == [2048 * 1024 * 4] * 3
    timing = recorded(job)
    spans = [(int(timing.start_ns[0][i]), int(timing.end_ns[0][i])) for i in kernels.tolist()]
    row = breakdown(etude.open_run(JAX_GPU)).to_pylist()[0]
    busy = row["span_ns"] - row["idle_ns"]
    assert busy == union_ns(spans)


def test_records_of_rocprofv3_by_hand() -> None:
    """Two steps 200 µs apart, on each of two GPUs: a copy of 20 µs, a kernel of 60 µs, then at one time an all-reduce
    of 40 µs and a kernel of 30 µs; from the first copy to the last all-reduce 1,015 to 1,337 µs."""
    path = GOLDEN / "rocprofv3.json"
    for row in breakdown(etude.open_run(path)).to_pylist():
        assert (row["span_ns"], row["compute_ns"], row["memory_ns"]) == (322_000, 180_000, 40_000)
        assert (row["comm_ns"], row["exposed_comm_ns"], row["idle_ns"]) == (80_000, 20_000, 82_000)
    job = etude.open(path)
    assert job.provenance == {"source_format": "rocprofv3", "device": "AMD Instinct MI300X"}
    for rank in (0, 1):
        trace = job.trace(rank)
        device = np.flatnonzero((trace.cpu == 0) & (trace.stream >= 0))
        assert len(device) == 8 and (trace.correlation[device] > 0).all()
        copies = [i for i in device.tolist() if trace.text("name", i) == "Memcpy HtoD"]
        assert trace.tensor_bytes[copies].tolist() == [1_048_576] * 2
    assert np.unique(job.trace(0).step[job.trace(0).step >= 0]).tolist() == [0, 1]


def test_chrome_json_of_rocprof_by_hand() -> None:
    """Two steps: kernels of 60.2 and 9.2 µs, 0.2 µs apart, each behind an arrow from its call; times of `BeginNs`."""
    path = GOLDEN / "rocprof_results.json"
    [row] = breakdown(etude.open_run(path)).to_pylist()
    assert (row["span_ns"], row["compute_ns"], row["idle_ns"]) == (269_600, 138_800, 130_800)
    trace = etude.open(path).trace(0)
    kernels = np.flatnonzero((trace.cpu == 0) & (trace.stream == 3))
    assert [trace.text("name", int(i)) for i in kernels] == ["Cijk_Ailk_Bljk_BBS", "elementwise"] * 2
    assert (trace.correlation[kernels] > 0).all() and trace.step[kernels].tolist() == [0, 0, 1, 1]


def test_hosts_of_a_folder_are_ranks_one_after_the_other(tmp_path: Path) -> None:
    run = tmp_path / "log" / "plugins" / "profile" / "2026_11_16"
    run.mkdir(parents=True)
    for host in ("node-a", "node-b"):
        shutil.copy(JAX_CPU, run / f"{host}.xplane.pb.gz")
        shutil.copy(GOLDEN / "jax_cpu.trace.json.gz", run / f"{host}.trace.json.gz")
    for path in (tmp_path / "log", run):
        job = etude.open(path)
        assert (job.world_size, len(job.ranks)) == (4, 4)
        assert not recorded(job).aligned  # two machines, two clocks
    shutil.copytree(run, run.parent / "2026_11_17")
    with pytest.raises(UsageError, match="it has 2 runs"):
        etude.open(tmp_path / "log")


def test_link_names_the_way_for_traces_of_other_profilers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "log" / "plugins" / "profile" / "2026_11_16"
    run.mkdir(parents=True)
    shutil.copy(JAX_CPU, run / "node.xplane.pb.gz")
    for path, source in ((tmp_path / "log", "jax profiler"), (GOLDEN / "nsight_h200.sqlite.gz", "nsight systems")):
        assert main(["link", str(path), "-o", str(tmp_path / "job")]) == 2
        said = capsys.readouterr().err
        assert f"was recorded by {source}, and `link` is for PyTorch's profiler" in said
        assert f"`etude convert {path} job/ --to et` writes Chakra traces" in said


def test_a_program_is_known_by_content_not_by_name(tmp_path: Path) -> None:
    renamed = tmp_path / "anything.bin"
    shutil.copy(JAX_CPU, renamed)
    assert len(etude.open(renamed).ranks) == 2


def test_groups_of_a_profile_cannot_be_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains its groups"):
        etude.open(JAX_CPU, groups=tmp_path / "groups.json")


def test_a_job_of_a_profile_can_be_stored_and_simulated(tmp_path: Path) -> None:
    job = etude.open(JAX_CPU)
    (tmp_path / "job").mkdir()
    columns.write_job(job, tmp_path / "job")
    again = etude.open(tmp_path / "job")
    result = etude.simulate(again, etude.open_system("dgx-h100"), collective_times="recorded")
    timing = recorded(job)
    span = max(int(end.max()) for end in timing.end_ns) - min(int(start.min()) for start in timing.start_ns)
    assert 0.5 * span < result.makespan_ns < 1.5 * span
