"""InfraGraph as a system: named on the command line or in a system's file, with levels where it has some."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import ClusterError, UsageError
from etude.machine.fabrics import dragonfly, fat_tree, rail_clos
from etude.machine.levels import levels_of
from etude.machine.topology import Wire, full, ring
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.store import chakra
from etude.surface.cli import main

WIRE = Wire(bytes_per_s=1e9, latency_ns=100)
GRAPH = """
name: pair
devices:
- name: host
  components:
  - {name: xpu, count: 2, choice: xpu}
  - {name: sw, count: 2, choice: switch}
  - {name: nic, count: 2, choice: nic}
  links:
  - {name: nv, physical: {bandwidth: {gigabytes_per_second: 2}, latency: {ns: 50}}}
  - {name: pcie, physical: {bandwidth: {gigabytes_per_second: 3}, latency: {ns: 10}}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: sw}, scheme: many2many, link: nv}
  - {ep1: {component: xpu}, ep2: {component: nic}, scheme: one2one, link: pcie}
- name: leaf
  components: [{name: asic, count: 1, choice: switch}]
  links: []
  edges: []
links: [{name: eth, physical: {bandwidth: {gigabits_per_second: 8}, latency: {us: 1}}}]
instances: [{name: host, device: host, count: 2}, {name: leaf, device: leaf, count: 1}]
edges:
- {ep1: {instance: host, component: nic}, ep2: {instance: leaf, component: asic}, scheme: many2many, link: eth}
"""
FIGURES = """---
nodes:
- name: 'host[:]xpu[:]'
  attributes: [{attribute: etude.flops.bf16, value: 1T}, {attribute: etude.memory, value: 1GB}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pair.yaml").write_text(GRAPH + FIGURES)
    job = job_of("w", [_all_reduce() for _ in range(4)])
    chakra.write_job(job, tmp_path)
    return tmp_path


def _all_reduce() -> TraceBuilder:
    trace = TraceBuilder()
    trace.add(Kind.COLL, source_id=1, name="sum", collective=Collective.ALL_REDUCE, in_bytes=4000)
    return trace


def said(options: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(options)
    return code, capsys.readouterr().err


def test_a_graph_of_nodes_has_levels(folder: Path):
    system = etude.open_system(folder / "pair.yaml")
    assert [(level.name, level.kind, level.size) for level in system.levels] == [
        ("nv", "switch", 2),
        ("eth", "switch", 2),
    ]
    assert [level.bandwidth_bytes_per_s for level in system.levels] == [4e9, 1e9]  # two switches; one port
    assert [level.latency_ns for level in system.levels] == [100, 2020]
    assert (system.name, system.device.memory_bytes, system.device.peak("bf16")) == ("pair", 10**9, 1e12)


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        (fat_tree(4, WIRE), (2, 2, 4)),
        (rail_clos(4, 8, scale_up=WIRE, scale_out=WIRE), (8, 4)),
        (full(6, WIRE), (6,)),
        (dragonfly(2, 2, 1, WIRE), (2, 6)),  # a way between two groups may be as short as one inside
        (ring(6, WIRE), None),
    ],
)
def test_levels_of_fabrics(graph, sizes):
    found = levels_of(graph)
    assert bool(found.irregular) == (sizes is None)
    assert tuple(level.size for level in found.levels) == (sizes or (6,))
    assert sorted(found.place.tolist()) == list(range(len(graph)))


def test_ranks_in_another_order_keep_their_units():
    graph = rail_clos(2, 2, scale_up=WIRE, scale_out=WIRE)
    mixed = levels_of(replace(graph, device=np.array([0, 2, 1, 3], np.int32)))
    assert [level.size for level in mixed.levels] == [2, 2]
    assert mixed.place.tolist() == [0, 2, 1, 3]


def test_simulate_takes_the_graph_and_flow_by_default(folder: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["simulate", str(folder / "w"), "--system", str(folder / "pair.yaml"), "--json"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("host.0.nic" in link["link"] for link in found["links"])
    assert main([*asked, "--network", "flow"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main([*asked, "--network", "analytic"]) == 0
    assert json.loads(capsys.readouterr().out)["links"] == []


def test_a_system_file_names_the_graph_and_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "all.yaml").write_text("name: all\ndevice: h100\ntopology: pair.yaml\nplacement: [0, 2, 1, 3]\n")
    system = etude.open_system(folder / "all.yaml")
    assert "H100" in system.device.name
    assert system.topology is not None
    assert system.placement == (0, 2, 1, 3)
    assert [system.topology.vertex_name(int(v)) for v in system.topology.device[:2]] == ["host.0.xpu.0", "host.1.xpu.0"]
    code, text = said(["systems", "check", str(folder / "all.yaml")], capsys)
    assert code == 0
    assert "level `eth`: switch of 2 at 1 GB/s, 2020 ns" in text


def test_an_irregular_graph_has_no_closed_forms(folder: Path, capsys: pytest.CaptureFixture[str]):
    seats = "- {name: 'host[%s]', attributes: [{attribute: etude.rank, value: '%s'}]}\n"
    odd = GRAPH + "---\nnodes:\n" + seats % ("0]xpu[0:2", "0:") + seats % ("1]xpu[0", "2")
    (folder / "odd.yaml").write_text(odd)
    chakra.write_job(job_of("three", [_all_reduce() for _ in range(3)]), folder)
    code, text = said(["systems", "check", str(folder / "odd.yaml")], capsys)
    assert code == 0
    assert "it has no levels" in text
    asked = ["simulate", str(folder / "three"), "--system", str(folder / "odd.yaml")]
    assert said(asked, capsys)[0] == 0
    code, text = said([*asked, "--network", "analytic"], capsys)
    assert code == 2
    assert "closed forms need levels" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("bandwidth: {gigabytes_per_second: 2}, ", ""), "link `nv` of device `host` has no bandwidth"),
        ((", latency: {us: 1}", ""), "link `eth` has no latency"),
        (("gigabytes_per_second: 2", "gigabytes_per_second: 0"), "bandwidth"),
        (("gigabytes_per_second: 2", "gigatransfers_per_second: 2"), "only in gigatransfers_per_second"),
        (("choice: xpu", "choice: cpu"), "it has no devices (xpu)"),
        (("'host[:]xpu[:]'", "host.0.xpu.0"), "the device of rank 1 is not described"),
        (("component: nic}, ep2", "component: 'nic[0]'}, ep2"), "no route from"),
    ],
)
def test_what_a_graph_leaves_open_is_refused(folder: Path, capsys, change: tuple[str, str], problem: str):
    (folder / "bad.yaml").write_text((GRAPH + FIGURES).replace(*change))
    for asked in (["systems", "check"], ["simulate", str(folder / "w"), "--system"]):
        code, text = said([*asked, str(folder / "bad.yaml")], capsys)
        assert code == 2
        assert problem in text
        assert "bad.yaml" in text


def test_a_job_larger_than_the_graph_has_no_place(folder: Path):
    job = job_of("w", [_all_reduce() for _ in range(5)])
    with pytest.raises(UsageError, match="no device for rank 4"):
        etude.simulate(job, etude.open_system(folder / "pair.yaml"))


def test_levels_beside_a_graph_must_fit_it(folder: Path):
    (folder / "all.yaml").write_text(
        "name: all\ntopology: pair.yaml\nlevels: [{name: l, kind: switch, size: 3, bandwidth: 1GB/s}]\n"
    )
    with pytest.raises(ClusterError, match="levels of 3 devices do not match a graph of 4"):
        etude.open_system(folder / "all.yaml")
    (folder / "all.yaml").write_text("name: all\ntopology: [1]\n")
    with pytest.raises(ClusterError, match="topology: expected the path"):
        etude.open_system(folder / "all.yaml")


def test_the_same_job_by_name_and_by_value(folder: Path):
    job: Job = etude.open(folder / "w")
    assert etude.simulate(job, etude.open_system(folder / "pair.yaml")).makespan_ns > 4000 * 2 * 3 / 4


@pytest.mark.parametrize(
    "command",
    [
        "simulate {job} --system {graph}",
        "predict gpt2 --tp 2 --gpus 4 --seq 64 --system {graph}",
        "plan gpt2 --gpus 4 --seq 64 --tries 1 --system {graph}",
        "generate gpt2 --gpus 4 --seq 64 --system {graph} --no-write",
        "roofline {job} --system {graph}",
        "metrics {job} --system {graph}",
        "report {job} --system {graph} -o {out}",
        "systems show {graph}",
        "anonymise {job} --times-on {graph} -o {job}-copy",
    ],
)
def test_every_command_opens_a_graph(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    graph = tmp_path / "cluster.yaml"
    rates = "{attribute: etude.memory_bandwidth, value: 1TB/s}, {attribute: etude.memory, value: 80GB}"
    graph.write_text(GRAPH + FIGURES.replace("{attribute: etude.memory, value: 1GB}", rates))
    job = tmp_path / "job"
    assert main(["generate", "gpt2", "--tp", "2", "--gpus", "4", "--seq", "64", "-o", str(job)]) == 0
    words = command.format(job=job, graph=graph, out=tmp_path / "report.html").split()
    assert main(words) == 0, capsys.readouterr().err
