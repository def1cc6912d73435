"""InfraGraph files: by hand, and against the `infragraph` package where it is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from etude.base.errors import ClusterError, FormatError
from etude.machine.infragraph.annotations import cluster_of
from etude.machine.infragraph.files import read_cluster, read_infragraph
from etude.machine.infragraph.graph import InfraGraph, expand
from etude.machine.topology import VertexKind


def edge_names(graph: InfraGraph) -> list[tuple[str, str, str]]:
    """(name, name, link) of every edge."""
    edges = zip(graph.a.tolist(), graph.b.tolist(), graph.link.tolist(), strict=True)
    return [(graph(a), graph(b), graph.links[link].name) for a, b, link in edges]


HOST = """
name: two hosts
devices:
- name: host
  components:
  - {name: xpu, count: 4, choice: xpu}
  - {name: nic, count: 4, choice: nic}
  - {name: nvsw, count: 1, choice: switch}
  links: [{name: nv}, {name: pcie}]
  edges:
  - {ep1: {component: 'xpu[0:4]'}, ep2: {component: 'nvsw[0]'}, scheme: many2many, link: nv}
  - {ep1: {component: xpu}, ep2: {component: nic}, scheme: one2one, link: pcie}
- name: leaf
  components:
  - {name: asic, count: 1, choice: cpu}
  - {name: port, count: 8, choice: port}
  links: [{name: ic, physical: {bandwidth: {gigabytes_per_second: 800}}}]
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
links:
- {name: eth, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}, latency: {us: 1}}}
instances:
- {name: host, device: host, count: 2}
- {name: leaf, device: leaf, count: 1}
edges:
- {ep1: {instance: 'host[0]', component: 'nic[0:4]'}, ep2: {instance: 'leaf[0]', component: 'port[0:4]'}, scheme: one2one, link: eth}
- {ep1: {instance: 'host[1]', component: 'nic'}, ep2: {instance: leaf, component: 'port[4:]'}, scheme: one2one, link: eth}
"""
NOTES = """
links:
- {name: nv, attributes: [{attribute: etude.bandwidth, value: 450GB/s}]}
- {name: pcie, attributes: [{attribute: etude.bandwidth, value: 64GB/s}, {attribute: etude.latency, value: 200ns}]}
nodes:
- {name: 'leaf[0]asic[0]', attributes: [{attribute: etude.kind, value: switch}]}
- {name: 'host[:].xpu[:]', attributes: [{attribute: etude.flops.bf16, value: 989T}, {attribute: other.key, value: x}]}
- {name: host.1.xpu.3, attributes: [{attribute: etude.memory, value: 141GB}]}
edges:
- {ep1: host.0.xpu.0, ep2: 'host[0]nvsw', attributes: [{attribute: etude.bandwidth, value: 225GB/s}]}
graph:
- {attribute: etude.latency, value: 500ns}
"""


def document(text: str = HOST) -> dict[str, Any]:
    return yaml.safe_load(text)


def note(text: str) -> dict[str, Any]:
    notes = document(NOTES)
    for section, entries in yaml.safe_load(text).items():
        notes[section] = notes.get(section, []) + entries
    return notes


def test_the_small_example_expands_as_documented() -> None:
    g = expand(document())
    names = [g(v) for v in range(len(g))]
    assert len(names) == 18 + 9
    assert names[:6] == ["host.0.xpu.0", "host.0.xpu.1", "host.0.xpu.2", "host.0.xpu.3", "host.0.nic.0", "host.0.nic.1"]
    assert names[-1] == "leaf.0.port.7"
    assert len(g.a) == 2 * (4 + 4) + 8 + 8
    assert ("host.1.nic.3", "leaf.0.port.7", "eth") in edge_names(g)


def test_annotations_complete_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(HOST)
    (tmp_path / "notes.yaml").write_text(NOTES)
    (tmp_path / "both.yaml").write_text(f"{HOST}---\n{NOTES}")
    (tmp_path / "a.json").write_text(json.dumps(document()))
    first = read_cluster(tmp_path / "a.yaml", tmp_path / "notes.yaml")
    for cluster in (
        first,
        read_cluster(tmp_path / "both.yaml"),
        read_cluster(tmp_path / "a.json", tmp_path / "notes.yaml"),
    ):
        t = cluster.topology
        assert len(t) == 8
        assert [t.vertex_name(int(v)) for v in t.device[[0, 7]]] == ["host.0.xpu.0", "host.1.xpu.3"]
        wire = {t.link_name(i): (t.bytes_per_s[i], t.latency_ns[i]) for i in range(len(t.src))}
        assert wire["nv: host.0.xpu.0 -> host.0.nvsw.0"] == wire["nv: host.0.nvsw.0 -> host.0.xpu.0"] == (225e9, 500)
        assert wire["nv: host.1.xpu.0 -> host.1.nvsw.0"] == (450e9, 500)
        assert wire["pcie: host.0.xpu.2 -> host.0.nic.2"] == (64e9, 200)
        assert wire["eth: leaf.0.port.7 -> host.1.nic.3"] == (50e9, 1000)
        assert cluster.device(0) == {"flops.bf16": 989 * 10**12}
        assert cluster.device(7) == {"flops.bf16": 989 * 10**12, "memory": 141 * 10**9}
        assert t.kind[t.src[t.bytes_per_s == 800e9]].tolist().count(VertexKind.SWITCH) == 8


def test_ranks_may_be_given() -> None:
    backwards = "nodes:\n" + "".join(
        f"- {{name: host.{r // 4}.xpu.{r % 4}, attributes: [{{attribute: rank, value: '{7 - r}'}}]}}\n"
        for r in range(8)
    )
    t = cluster_of(expand(document()), note(backwards)).topology
    assert [t.vertex_name(int(v)) for v in t.device[:2]] == ["host.1.xpu.3", "host.1.xpu.2"]
    runs = "nodes:\n- {name: 'host[1]xpu', attributes: [{attribute: etude.rank, value: '0:'}]}"
    t = cluster_of(expand(document()), note(runs)).topology
    assert [t.vertex_name(int(v)) for v in t.device] == [f"host.1.xpu.{i}" for i in range(4)]


def test_a_ring_of_components_and_nested_devices() -> None:
    rack = """
name: rack
devices:
- name: card
  components: [{name: xpu, count: 2, choice: xpu}]
  links: [{name: in, physical: {bandwidth: {gigabytes_per_second: 100}, latency: {ns: 10}}}]
  edges: [{ep1: {component: 'xpu[0]'}, ep2: {component: 'xpu[1]'}, scheme: one2one, link: in}]
- name: rack
  components: [{name: card, count: 3, choice: device}]
  links: [{name: ici, physical: {bandwidth: {gigabytes_per_second: 50}, latency: {ns: 100}}}]
  edges: [{ep1: {device: 'card[0:3]', component: 'xpu[0]'}, ep2: {component: 'card.xpu[0]'}, scheme: ring, link: ici}]
instances: [{name: rack, device: rack, count: 2}]
links: [{name: far, physical: {bandwidth: {gigabits_per_second: 100}, latency: {ms: 1}}}]
edges: [{ep1: {instance: rack, component: 'card[2].xpu[1]'}, ep2: {instance: rack, component: 'card[2].xpu[1]'}, scheme: ring, link: far}]
"""
    g = expand(document(rack))
    assert set(edge_names(g)) == {
        *((f"rack.{r}.card.{c}.xpu.0", f"rack.{r}.card.{c}.xpu.1", "in") for r in range(2) for c in range(3)),
        *(
            (f"rack.{r}.card.{c}.xpu.0", f"rack.{r}.card.{(c + 1) % 3}.xpu.0", "ici")
            for r in range(2)
            for c in range(3)
        ),
        ("rack.0.card.2.xpu.1", "rack.1.card.2.xpu.1", "far"),
    }
    t = cluster_of(g).topology
    assert t.forwards.all()  # devices that are joined directly pass on what is not theirs
    assert set(t.latency_ns.tolist()) == {10, 100, 10**6}


@pytest.mark.parametrize(
    ("change", "say"),
    [
        (("xpu[0:4]", "gpu[0:4]"), "there is no component `gpu`"),
        (("nvsw[0]", "nvsw[1]"), "index 1 is outside 0..0"),
        (("xpu[0:4]", "xpu[a]"), "is not a slice"),
        (("scheme: many2many, link: nv", "scheme: star, link: nv"), "unknown scheme `star`"),
        (("link: pcie", "link: ib"), "link `ib` is not defined here"),
        (("link: eth", "link: nv"), "edge 0: link `nv` is not defined here"),
        (("instance: leaf,", "instance: spine,"), "there is no instance `spine`"),
        (("device: leaf", "device: spine"), "is of device `spine`"),
        (("count: 8", "count: -1"), "count is `-1`"),
        (("choice: nic", "choice: card"), "unknown choice `card`"),
        (("choice: nic", "choice: device"), "`nic` is a device that does not exist"),
        (("name: nic, count: 4", "name: xpu, count: 4"), "two components have the name `xpu`"),
        (("count: 2}", "count: 99999999999}"), "more than"),
        (("{component: asic}", "{}"), "`component` is missing"),
        (("ep2: {component: port}", "ep2: 3"), "`ep2` is missing or not a mapping"),
        (("{gigabytes_per_second: 800}", "{gigabytes_per_second: fast}"), "which is not a number"),
        (("component: 'nic[0:4]'", "component: 7"), "`component` is missing"),
    ],
)
def test_broken_files_are_refused(change: tuple[str, str], say: str) -> None:
    assert change[0] in HOST
    with pytest.raises(ClusterError, match=say):
        expand(document(HOST.replace(*change)))


@pytest.mark.parametrize(
    ("notes", "say"),
    [
        ("{}", "link `nv` of device `host` has no bandwidth; nor have `pcie`"),
        ("links: [{name: nv, attributes: [{attribute: etude.bandwidth, value: 0GB/s}]}]", "must be positive"),
        (
            "links: [{name: nv, attributes: [{attribute: etude.bandwith, value: 1GB/s}]}]",
            "unknown key `etude.bandwith`",
        ),
        ("links: [{name: nv, attributes: [{attribute: etude.bandwidth, value: fast}]}]", "is not a bandwidth"),
        ("links: [{name: ib, attributes: []}]", "there is no such link"),
        ("edges: [{ep1: host.0.xpu.0, ep2: host.1.xpu.0, attributes: []}]", "there is no such edge"),
        ("nodes: [{name: 'host[0]gpu', attributes: []}]", "there is no component `gpu`"),
        ("nodes: [{name: 'host.0.xpu', attributes: [{attribute: rank, value: 3}]}]", "cannot all be rank 3"),
        (
            "nodes: [{name: 'host.0.xpu.1', attributes: [{attribute: rank, value: 3}]}]",
            "rank 3 of host.0.xpu.1 appears twice",
        ),
        ("nodes: [{name: 'host.0.xpu.1', attributes: [{attribute: etude.kind, value: gpu}]}]", "unknown kind `gpu`"),
    ],
)
def test_what_is_left_open_or_makes_no_sense_is_refused(notes: str, say: str) -> None:
    with pytest.raises(ClusterError, match=say) as error:
        cluster_of(expand(document()), yaml.safe_load(notes))
    if notes == "{}":
        assert "etude.bandwidth" in error.value.hint


def test_transfers_are_no_bytes_and_latency_is_needed() -> None:
    with pytest.raises(ClusterError, match="only in gigatransfers_per_second"):
        text = HOST.replace("name: nv}", "name: nv, physical: {bandwidth: {gigatransfers_per_second: 32}}}")
        cluster_of(expand(document(text)))
    notes = document(NOTES)
    del notes["graph"]
    with pytest.raises(ClusterError, match="link `nv` of device `host` has no latency"):
        cluster_of(expand(document()), notes)


def test_two_kinds_of_link_between_one_pair_are_refused() -> None:
    more = "  - {ep1: {component: 'xpu[1]'}, ep2: {component: nvsw}, scheme: one2one, link: pcie}\n- name: leaf"
    with pytest.raises(ClusterError, match=r"host\.0\.xpu\.1 and host\.0\.nvsw\.0 are joined by `nv` and `pcie`"):
        expand(document(HOST.replace("- name: leaf\n", more + "\n", 1)))


@pytest.mark.parametrize(
    ("text", "say"),
    [("{", "is not JSON"), ("a: [", "is not YAML"), ("", "a mapping was expected"), ("- 1", "a mapping was expected")],
)
def test_what_is_no_infragraph_at_all(tmp_path: Path, text: str, say: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(FormatError, match=say):
        read_infragraph(tmp_path / "x.yaml")
    with pytest.raises(FormatError, match="cannot be read"):
        read_infragraph(tmp_path / "none.yaml")


# --- against the package --------------------------------------------------------------------------------------------

EXPORT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from infragraph import Api
from infragraph.blueprints.devices.generic.generic_switch import Switch
from infragraph.blueprints.devices.generic.server import Server
from infragraph.blueprints.devices.nvidia.cx5 import Cx5
from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric
from infragraph.blueprints.fabrics.closfabric import ClosFabric
from infragraph.blueprints.fabrics.dragonfly_fabric import DragonflyFabric
from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric
from infragraph.infragraph_service import InfraGraphService

def three(device, *inner):
    system = Api().infrastructure()
    for d in (device, *inner):
        system.devices.append(d)
    system.instances.add(name=device.name, device=device.name, count=3)
    return system

def card():
    return Cx5(variant="cx5_100g_dual")

cases = {
    "single": SingleTierFabric(Server(2), 3), "clos": ClosFabric(),
    "fat2": ClosFatTreeFabric(Switch(8), Server(1), 2, []), "fat3": ClosFatTreeFabric(Switch(8), Server(1), 3, []),
    "dragonfly": DragonflyFabric(Switch(8), Server(1), 4, 2, 2),
}
for name in ("dgx1", "dgx_a100", "dgx_h100", "dgx_gb200"):
    inner = card()
    cases[name], cases[name + "_cx5"] = three(NvidiaDGX(name)), three(NvidiaDGX(name, inner), inner)
for name, system in cases.items():
    service = InfraGraphService()
    service.set_graph(system)
    graph = service.get_networkx_graph()
    open(f"{sys.argv[1]}/{name}.yaml", "w").write(system.serialize(system.YAML))
    with open(f"{sys.argv[1]}/{name}.expected", "w") as out:
        nodes = {n: a["type"] for n, a in graph.nodes(data=True)}
        json.dump({"nodes": nodes, "edges": [[a, b, d["link"]] for a, b, d in graph.edges(data=True)]}, out)
"""


@pytest.fixture(scope="module")
def blueprints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's own blueprints and what it expands them to. Its needs may clash with ours: then
    ETUDE_INFRAGRAPH_PYTHON names an interpreter that has it."""
    folder = tmp_path_factory.mktemp("infragraph")
    python = os.environ.get("ETUDE_INFRAGRAPH_PYTHON") or sys.executable
    done = subprocess.run([python, "-c", EXPORT, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the infragraph package: {done.stderr.strip().splitlines()[-1]}")
    return folder


def test_the_package_expands_its_blueprints_to_the_same_nodes_and_edges(blueprints: Path) -> None:
    for path in sorted(blueprints.glob("*.yaml")):
        expected = json.loads(path.with_suffix(".expected").read_text())
        g: InfraGraph = read_infragraph(path)
        assert {g(v): g.type_of(v) for v in range(len(g))} == expected["nodes"], path.stem
        mine = [(*sorted((a, b)), link) for a, b, link in edge_names(g)]
        assert len(mine) == len(set(mine))
        assert set(mine) == {(*sorted((a, b)), link) for a, b, link in expected["edges"]}, path.stem


def plain(edge: tuple[int, int, int, int]) -> str:
    a, x, b, y = edge
    return (
        f"- ep1:\n    component: port[{x}]\n    instance: router[{a}]\n"
        f"  ep2:\n    component: port[{y}]\n    instance: router[{b}]\n  link: far\n  scheme: one2one\n"
    )


def test_plain_edges_are_read_without_the_parser_and_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = [plain((i, 1, i + 1, 0)) for i in range(1999)]
    head = "devices:\n- name: router\n  components:\n  - {name: port, count: 2, choice: port}\nedges:\n"
    tail = "instances:\n- {name: router, device: router, count: 2000}\nlinks:\n- {name: far}\n"
    (tmp_path / "plain.yaml").write_text(head + "".join(edges) + tail)
    (tmp_path / "other.yaml").write_text(
        head + "".join(edges).replace("- ep1:", "-  ep1:").replace("\n  ", "\n   ") + tail
    )
    odd = "- {ep1: {instance: 'router[0]', component: 'port[0]'}, ep2: {instance: 'router[9]', component: 'port[1]'}, link: far}\n"
    (tmp_path / "mixed.yaml").write_text(head + "".join(edges) + odd + tail)
    parsed, load_all = [], yaml.load_all
    monkeypatch.setattr(yaml, "load_all", lambda text, loader: parsed.append(len(text)) or load_all(text, loader))
    first = edge_names(read_infragraph(tmp_path / "plain.yaml"))
    assert sum(parsed) < 1000
    assert len(first) == 1999
    assert first == edge_names(read_infragraph(tmp_path / "other.yaml"))
    assert len(edge_names(read_infragraph(tmp_path / "mixed.yaml"))) == 2000
