"""A system as ASTRA-sim's files; a folder that it can run, and that gives what the job itself gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from etude.base.errors import ClusterError, EtudeError
from etude.machine import System, open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.sharing import HostLink
from etude.make.transform.dialects import astra_files, astra_problems, astra_refusals, for_astra
from etude.make.transform.dialects.astra_system import ns3_topology
from etude.model.build import TraceBuilder
from etude.model.job import Job, assemble
from etude.model.schema import Collective, Kind
from etude.run import astra
from etude.store import chakra, columns
from etude.surface.cli import main
from tiny_jobs import GROUPS, ring
from toy_systems import DEVICE, level, one_level, two_levels

GIB = 2**30


def files(system: System, ranks: int, roofline: bool = True) -> dict[str, str]:
    return astra_files(system, ranks, name="w", groups=True, roofline=roofline)


def network(system: System, ranks: int) -> dict[str, list[object]]:
    found: dict[str, list[object]] = yaml.safe_load(files(system, ranks)["network.yml"])
    return found


def test_a_switch_is_two_hops() -> None:
    assert network(one_level("switch", 4, gbyte_per_s=8, efficiency=0.5), 4) == {
        "topology": ["Switch"], "npus_count": [4], "bandwidth": [4e9 / GIB], "latency": [5.0],
    }  # fmt: skip


def test_a_ring_has_two_ways_and_a_full_mesh_one_for_each_peer() -> None:
    levels = level("r", "ring", 4, gbyte_per_s=6), level("f", "full", 3, gbyte_per_s=6), level("t", "ring", 2)
    assert network(System(name="toy", device=DEVICE, levels=levels), 24) == {
        "topology": ["Ring", "FullyConnected", "FullyConnected"],
        "npus_count": [4, 3, 2],
        "bandwidth": [3e9 / GIB, 3e9 / GIB, 1e9 / GIB],
        "latency": [10.0, 10.0, 10.0],
    }


def test_oversubscription_is_in_the_rate() -> None:
    outer = level("o", "switch", 2, gbyte_per_s=4, oversubscription=2)
    system = System(name="toy", device=DEVICE, levels=(level("i", "switch", 2), outer))
    assert network(system, 4)["bandwidth"] == [1e9 / GIB, 2e9 / GIB]


def test_as_much_of_a_system_as_the_ranks_take() -> None:
    assert network(two_levels(4, 8), 8)["npus_count"] == [4, 2]
    assert network(two_levels(4, 8), 3)["npus_count"] == [3]
    assert json.loads(files(two_levels(4, 8), 8)["logical.json"]) == {"logical-dims": ["4", "2"]}


def test_figures_of_the_device() -> None:
    found = json.loads(files(one_level("full", 4), 4)["system.json"])
    assert (found["peak-perf"], found["local-mem-bw"], found["roofline-enabled"]) == (1.0, 1.0, 1)
    assert found["all-reduce-implementation"] == ["direct"] and found["endpoint-delay"] == 10
    assert json.loads(files(one_level("full", 4), 4)["memory.json"]) == {"memory-type": "NO_MEMORY_EXPANSION"}
    link = HostLink(read_bytes_per_s=50e9, write_bytes_per_s=40e9, latency_ns=7000)
    held = one_level("full", 4).with_devices(lambda device: device.__class__(name="x", host_link=link))
    assert json.loads(files(held, 4, roofline=False)["memory.json"]) == {
        "memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 7000, "remote-mem-bw": 50,
    }  # fmt: skip
    with pytest.raises(ClusterError, match="no peak rate"):
        files(held, 4)


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-node", "tpu-v5p-pod", "gb200-nvl72", "fat-tree-h100"])
def test_systems_of_the_catalogue_are_read_back(name: str, tmp_path: Path) -> None:
    system = open_system(name)
    ranks = {"tpu-v5p-pod": len(system), "gb200-nvl72": 144}.get(name, 32)
    for file, text in files(system, ranks).items():
        (tmp_path / file).write_text(text)
    assert astra.read_network(tmp_path / "network.yml").num_npus == ranks
    read = astra.read_system(tmp_path / "system.json")
    assert not read.ignored and set(read.algorithms) == {"all-reduce", "all-gather", "reduce-scatter", "all-to-all"}
    assert not astra.read_remote_memory(tmp_path / "memory.json").ignored


# -- the topology of its ns-3 backend ----------------------------------------------------------------------------------


def test_a_switch_and_a_ring_for_ns3() -> None:
    """1 GB/s is 8 Gbps; 5 ns of a switch's 10 are 0.000005 ms."""
    assert ns3_topology(topology_of_system(one_level("switch", 3))).splitlines() == [
        "4 1 3", "3", "0 3 8Gbps 0.000005ms 0", "1 3 8Gbps 0.000005ms 0", "2 3 8Gbps 0.000005ms 0",
    ]  # fmt: skip
    head, switches, *links = ns3_topology(topology_of_system(one_level("ring", 4))).splitlines()
    assert (head, switches) == ("4 0 4", "")
    assert sorted(line.split()[:3] for line in links) == [
        ["0", "1", "4Gbps"], ["0", "3", "4Gbps"], ["1", "2", "4Gbps"], ["2", "3", "4Gbps"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-node", "dragonfly-h100"])
def test_each_connection_is_there_once(name: str) -> None:
    topology = topology_of_system(open_system(name).resized(32))
    head, switches, *links = ns3_topology(topology).splitlines()
    total, count, wires = map(int, head.split())
    assert (total, count, wires) == (len(topology.kind), total - 32, len(topology.src) // 2)
    assert switches.split() == [str(v) for v in range(32, total)] and len(links) == wires
    assert sum(float(line.split()[2].removesuffix("Gbps")) for line in links) == pytest.approx(
        topology.bytes_per_s.sum() * 8e-9 / 2
    )


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "ranks", "said"),
    [
        (one_level("mesh", 4), 4, "is a line"),
        (one_level("switch", 4).replace(placement=(1, 0, 2, 3)), 4, "rank r is on device r"),
        (one_level("switch", 4), 1, "one rank has no network"),
        (two_levels(4, 2), 6, "not a multiple of"),
        (
            one_level("switch", 4).replace(devices={"a": "0-1", "b": "2-3"}, kinds={"a": DEVICE, "b": DEVICE}), 4,
            "several kinds of devices",
        ),
        (one_level("switch", 4).replace(irregular="by hand"), 4, "a graph has no dimensions"),
    ],
    ids=["line", "placement", "one", "part", "mix", "graph"],
)  # fmt: skip
def test_refused(system: System, ranks: int, said: str) -> None:
    with pytest.raises(EtudeError, match=said):
        files(system, ranks)


# -- the folder --------------------------------------------------------------------------------------------------------


def groups_and_messages() -> Job:
    """Four ranks in two ways of groups, with messages; times of whole microseconds, as the files have them."""
    parts = [ring(rank, duration_ns=3000).part(rank=rank, groups=GROUPS) for rank in range(4)]
    return assemble("w", parts)


def without_times() -> Job:
    """Compute by operations and bytes, and a collective of all."""
    parts = []
    for rank in range(4):
        b = TraceBuilder()
        a = b.add(Kind.COMP, "gemm", flops=5_000_000, tensor_bytes=4096, cpu=0)
        b.add(Kind.COLL, "sum", data=[a], collective=Collective.ALL_REDUCE, in_bytes=1 << 20)
        parts.append(b.part(rank=rank, groups={}))
    return assemble("w", parts)


def recorded() -> Job:
    """As a recording of gloo is linked: a node that describes the groups, and communication on the host."""
    parts = []
    for rank in range(4):
        b = TraceBuilder()
        told = b.add(Kind.METADATA, "process_group:init", duration_ns=9000, cpu=1)
        a = b.add(Kind.COMP, "addmm", ctrl=[told], duration_ns=2000, cpu=0)
        b.add(Kind.COLL, "gloo:all_reduce", data=[a], collective=Collective.ALL_REDUCE, in_bytes=1 << 20, cpu=1)
        parts.append(b.part(rank=rank, groups={}))
    return assemble("w", parts)


def test_a_recording_runs_on_units_that_astra_has() -> None:
    """It aborts on both as they are; the description takes the 1 ns that ASTRA-sim has for no time."""
    job = recorded()
    assert [p for p in astra_problems(job) if "aborts" in p] == [
        "it aborts on METADATA nodes (4)", "it aborts on communication on the host (4)",
    ]  # fmt: skip
    trace = for_astra(job).traces[0]
    assert trace.kind.tolist() == [Kind.COMP, Kind.COMP, Kind.COLL] and trace.cpu.tolist() == [1, 0, 0]
    assert trace.duration_ns.tolist()[:2] == [0, 2000]
    assert not astra_refusals(for_astra(job)) and len(astra_refusals(job)) == 2


@pytest.mark.parametrize("make", [groups_and_messages, without_times, recorded])
@pytest.mark.parametrize("system", ["dgx-h100", "mi300x-node"])
def test_the_folder_gives_what_the_job_gives(
    tmp_path: Path, system: str, make: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """ASTRA mode on the written files and on the job in memory: the same ns on every rank."""
    job: Job = make()  # type: ignore[operator]
    source, out = tmp_path / "job", tmp_path / "run"
    source.mkdir()
    columns.write_job(job, source)
    assert main(["convert", str(source), str(out), "--to", "astra", "--system", system]) == 0
    network, machine = astra.read_network(out / "network.yml"), astra.read_system(out / "system.json")
    memory = astra.read_remote_memory(out / "memory.json")
    capsys.readouterr()
    given = ["--astra-network", "network.yml", "--astra-system", "system.json", "--astra-remote-memory", "memory.json"]
    files = [str(out / name) if "." in name else name for name in given]
    assert main(["simulate", str(out), *files, "--json"]) == 0
    found = [row["finish_ns"] for row in json.loads(capsys.readouterr().out)["ranks"]]
    native = astra.run(for_astra(job), network, machine, astra.AstraOptions(remote_memory=memory))
    assert found == native.finish_ns.tolist() and min(found) > 0
    assert machine.has_roofline == (make is without_times)
    assert (out / "w.json").exists() == (make is groups_and_messages)
    assert sorted(chakra.find_ranks(out)[1]) == [0, 1, 2, 3]
    assert main(["convert", str(source), str(out), "--to", "astra", "--system", system]) == 2
    assert main(["convert", str(source), str(out), "--to", "astra", "--system", system, "--force"]) == 0


def test_what_it_changes_is_said_of_the_files_that_were_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An all-reduce of 2 bytes among 4 ranks runs, as one of 4."""
    source = tmp_path / "job"
    assert main(["generate", "micro", "all_reduce", "--ranks", "4", "--bytes", "2", "-o", str(source)]) == 0
    assert main(["convert", str(source), str(tmp_path / "run"), "--to", "astra", "--system", "dgx-h100"]) == 0
    said = capsys.readouterr().err
    assert "what ASTRA-sim does with these files: it increases all-reduces" in said and "cannot run" not in said


def test_a_group_without_members_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for rank in range(2):
        b = TraceBuilder()
        b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=1 << 20, group="unknown")
        parts.append(b.part(rank=rank, groups={}))
    (made := tmp_path / "job").mkdir()
    columns.write_job(assemble("w", parts), made)
    assert main(["convert", str(made), str(tmp_path / "run"), "--to", "astra", "--system", "dgx-h100"]) == 2
    assert "groups whose members are not known (1 groups)" in capsys.readouterr().err


def test_what_astra_never_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for rank in range(2):
        b = TraceBuilder()
        b.add(Kind.COLL, "sum", collective=Collective.REDUCE_SCATTER_BLOCK, in_bytes=1 << 20)
        parts.append(b.part(rank=rank, groups={}))
    (source := tmp_path / "job").mkdir()
    columns.write_job(assemble("w", parts), source)
    assert main(["convert", str(source), str(tmp_path / "run"), "--to", "astra", "--system", "dgx-h100"]) == 2
    assert "it aborts on reduce_scatter_block" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("what", "other", "size_bytes"),
    [
        (Collective.BARRIER, Collective.ALL_REDUCE, 0),
        (Collective.REDUCE, Collective.REDUCE_SCATTER, 1 << 20),
        (Collective.GATHER, Collective.ALL_GATHER, 1 << 20),
        (Collective.SCATTER, Collective.ALL_TO_ALL, 1 << 20),
    ],
)
def test_what_it_aborts_on_is_written_as_what_it_can_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: Collective, other: Collective, size_bytes: int
) -> None:
    """Two of each on 4 ranks, and the note says so; a barrier has a byte for each of the 4 ranks."""
    parts = []
    for rank in range(4):
        b = TraceBuilder()
        first = b.add(Kind.COLL, "a", collective=what, in_bytes=size_bytes)
        b.add(Kind.COLL, "b", collective=what, in_bytes=size_bytes, data=[first])
        parts.append(b.part(rank=rank, groups={}))
    (source := tmp_path / "job").mkdir()
    columns.write_job(assemble("w", parts), source)
    out = tmp_path / "run"
    assert main(["convert", str(source), str(out), "--to", "astra", "--system", "dgx-h100"]) == 0
    name = what.name.lower()
    assert f"{name} (8 nodes) is written as {other.name.lower()}, which it can run" in capsys.readouterr().err
    found = chakra.read_job(out).trace(0)
    assert found.collective.tolist() == [int(other)] * 2
    assert found.in_bytes.tolist() == [size_bytes or 4] * 2
    assert "exit code 134" in (out / "README.md").read_text()
