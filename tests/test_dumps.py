"""Graphs from dumps of other tools: NCCL's topology of a node, ibnetdiscover with routing tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import EtudeError
from etude.machine import open_system
from etude.machine.routes import Routes
from etude.machine.topology import Topology
from etude.surface.cli import main

NCCL = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:15:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:19:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="fffffff" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:18:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:9d:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
      <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="fffffff" count="18" tclass="0x068000"/></gpu>
    </pci>
    <pci busid="0000:a1:00.0" class="0x020700">
      <nic><net name="mlx5_1" dev="1" speed="200000" port="1" guid="0x2" maxconn="131072" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"""


DEEP = "".join(f'<pci busid="{n}">' for n in range(5000)) + "</pci>" * 5000


def rates(graph: Topology) -> dict[str, float]:
    """GB/s of each link by its ends, one way."""
    return {graph.link_name(k).partition(": ")[2]: graph.bytes_per_s[k] / 1e9 for k in range(len(graph.src))}


def way(graph: Topology, a: int, b: int) -> list[str]:
    """Names of the vertices between the devices of two ranks."""
    _, links = Routes(graph).paths(graph.device[[a]], graph.device[[b]])
    return [graph.vertex_name(int(graph.dst[link])) for link in links[:-1]]


def graph_of(path: Path) -> Topology:
    found = open_system(path).topology
    assert found is not None
    return found


def test_a_node_of_nccl(tmp_path: Path) -> None:
    """PCIe 5 x16: 48 GB/s, 4 x8: 12; 18 links of 20.6; 400 Gb/s: 50; a card that does not say: PCIe 3 x16, 12."""
    path = tmp_path / "topo.xml"
    path.write_text(NCCL)
    found = rates(graph_of(path))
    assert found["gpu.0 -> pci.0000:15:00.0"] == 48
    assert found["gpu.1 -> cpu.1"] == 12 and found["cpu.0 -> cpu.1"] == 10
    assert found["gpu.0 -> nvswitch"] == pytest.approx(18 * 20.6)
    assert found["nic.0000:18:00.0 -> network"] == 50 and found["nic.0000:a1:00.0 -> network"] == 25
    assert found["nic.0000:a1:00.0 -> cpu.1"] == 12
    assert way(graph_of(path), 0, 1) == ["nvswitch"]


def test_nodes_meet_in_the_network_or_on_rails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topo.xml").write_text(NCCL)
    (tmp_path / "two.yaml").write_text(
        "name: two\ndevice: h100\ntopology: topo.xml\nnodes: 2\nlatency: {nvlink: 1us}\n"
    )
    (tmp_path / "rails.yaml").write_text("name: rails\ndevice: h100\ntopology: topo.xml\nnodes: 2\nrails: true\n")
    two = graph_of(tmp_path / "two.yaml")
    near, far = "node0/", "node1/"
    own = [f"{near}pci.0000:15:00.0", f"{near}nic.0000:18:00.0", "network"]
    assert way(two, 0, 2)[:3] == own and len(two) == 4
    assert way(two, 0, 1) == [f"{near}nvswitch"]
    assert {int(v) for v in two.latency_ns[two.link_type == two.link_names.index("nvlink")]} == {1000}
    rails = graph_of(tmp_path / "rails.yaml")
    assert "network.0" in way(rails, 0, 2) and "network.1" in way(rails, 1, 3)
    assert far  # ranks 2 and 3 are on the second node
    assert main(["systems", "check", str(tmp_path / "two.yaml")]) == 0
    capsys.readouterr()
    assert main(["systems", "check", str(tmp_path / "topo.xml")]) == 0
    assert "latencies of links are assumed, since the file has none: pci 500 ns" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("<system", "<sys"), "unknown|expected|is not"),
        (("32.0 GT/s PCIe", "7 GT/s"), "unknown `link_speed`"),
        (('speed="400000"', 'speed="fast"'), "net: speed: `fast` is not a whole number"),
        (("</system>", ""), "is not XML"),
        (("<system ", "<!DOCTYPE x []><system "), "DOCTYPE"),
        (('sm="90"', 'sm="50"'), "an NVLink of no known rate"),
        (('speed="400000"', 'speed="0"'), "not a positive number"),
        (('count="18"', f'count="{"9" * 400}"'), "not a whole number up to"),
        (('link_width="16"', 'link_width="-16"'), "not a whole number up to"),
        (('rank="1"', 'rank="0"'), "several gpus have rank 0"),
        (('<cpu numaid="1"', f'<cpu>{DEEP}</cpu><cpu numaid="1"'), "inside one another"),
    ],
)
def test_nodes_that_are_wrong(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(NCCL.replace(*change))
    with pytest.raises(EtudeError, match=words):
        open_system(path)


def fabric() -> str:
    """Two leaves of two cards, two spines: HDR."""
    leaf, spine, card = ["S-000a", "S-000b"], ["S-000c", "S-000d"], ["H-1", "H-2", "H-3", "H-10"]
    lines = ["#", "# Topology file: generated by ibnetdiscover", "#"]
    names = ["node1 mlx5_0", "node2 mlx5_0", "node3 mlx5_0", "node10 mlx5_0"]
    for k, one in enumerate(leaf):
        lines += ["", f'Switch\t40 "{one}"\t\t# "MF0;leaf{k}:MQM8700/U1" enhanced port 0 lid {20 + k} lmc 0']
        lines += [
            f'[{c + 1}]\t"{card[2 * k + c]}"[1](0c42)\t\t# "{names[2 * k + c]}" lid {2 * k + c + 1} 4xHDR'
            for c in (0, 1)
        ]
        lines += [
            f'[{s + 11}]\t"{spine[s]}"[{k + 1}]\t\t# "MF0;spine{s}:MQM8700/U1" lid {30 + s} 4xHDR' for s in (0, 1)
        ]
    for s, one in enumerate(spine):
        lines += ["", f'Switch\t40 "{one}"\t\t# "MF0;spine{s}:MQM8700/U1" enhanced port 0 lid {30 + s} lmc 0']
        lines += [f'[{k + 1}]\t"{leaf[k]}"[{s + 11}]\t\t# "MF0;leaf{k}:MQM8700/U1" lid {20 + k} 4xHDR' for k in (0, 1)]
    for c, one in enumerate(card):
        lines += ["", f'Ca\t1 "{one}"\t\t# "{names[c]}"']
        k = c // 2
        about = f'lid {c + 1} lmc 0 "MF0;leaf{k}:MQM8700/U1" lid {20 + k} 4xHDR'
        lines += [f'[1](0c42) \t"{leaf[k]}"[{c % 2 + 1}]\t\t# {about}']
    return "\n".join(lines) + "\n"


def tables(spine_of: dict[tuple[int, int], int]) -> str:
    """`spine_of[leaf, lid]` of cards on the other leaf; cards of their own by their ports."""
    lines = []
    for k, guid in enumerate(("000a", "000b")):
        lines += [f"Unicast lids [0x0-0x2b] of switch Lid {20 + k} guid 0x{guid} (MF0;leaf{k}:MQM8700/U1):"]
        lines += ["  Lid  Out   Destination", "       Port     Info"]
        for lid in range(1, 5):
            port = (lid - 1) % 2 + 1 if (lid - 1) // 2 == k else 11 + spine_of[k, lid]
            lines.append(f"0x{lid:04x} {port:03d} : (Channel Adapter portguid 0x0c42: 'node')")
    for s, guid in enumerate(("000c", "000d")):
        lines += [f"Unicast lids [0x0-0x2b] of switch Lid {30 + s} guid 0x{guid} (MF0;spine{s}):"]
        lines += [
            f"0x{lid:04x} {(lid - 1) // 2 + 1:03d} : (Channel Adapter portguid 0x0c42: 'node')" for lid in range(1, 5)
        ]
    return "\n".join(lines) + "\n"


def test_a_fabric_of_infiniband(tmp_path: Path) -> None:
    """HDR on four lanes: 25 GB/s. Ranks in the order of names: node2 before node10."""
    path = tmp_path / "fabric.txt"
    path.write_text(fabric())
    found = graph_of(path)
    assert [found.vertex_name(int(v)) for v in found.device] == [f"node{n} mlx5_0" for n in (1, 2, 3, 10)]
    assert set(rates(found).values()) == {25.0} and len(found.src) == 2 * (4 + 4)
    assert way(found, 0, 1) == ["leaf0"]
    assert way(found, 0, 3) in (["leaf0", "spine0", "leaf1"], ["leaf0", "spine1", "leaf1"])


@pytest.mark.parametrize("spine", [0, 1])
def test_tables_say_which_way(tmp_path: Path, spine: int) -> None:
    (tmp_path / "fabric.txt").write_text(fabric())
    (tmp_path / "lfts.txt").write_text(tables({(0, 3): spine, (0, 4): 1 - spine, (1, 1): 1, (1, 2): 1}))
    (tmp_path / "ib.yaml").write_text("name: ib\ndevice: h100\ntopology: fabric.txt\ntables: lfts.txt\nlatency: 1us\n")
    found = graph_of(tmp_path / "ib.yaml")
    assert way(found, 0, 2) == ["leaf0", f"spine{spine}", "leaf1"]
    assert way(found, 0, 3) == ["leaf0", f"spine{1 - spine}", "leaf1"]
    assert way(found, 2, 0) == way(found, 3, 1) == ["leaf1", "spine1", "leaf0"]
    assert np.unique(found.latency_ns).tolist() == [1000]


def test_tables_that_lead_nowhere_name_the_switch(tmp_path: Path) -> None:
    (tmp_path / "fabric.txt").write_text(fabric())
    whole = tables({(0, 3): 0, (0, 4): 0, (1, 1): 1, (1, 2): 1})
    (tmp_path / "ib.yaml").write_text("name: ib\ndevice: h100\ntopology: fabric.txt\ntables: lfts.txt\n")
    (tmp_path / "lfts.txt").write_text(whole.replace("0x0003 011", "0x0003 255", 1))
    with pytest.raises(EtudeError, match="from node1 mlx5_0 to node3 mlx5_0 end at leaf0|end at leaf0"):
        way(graph_of(tmp_path / "ib.yaml"), 0, 2)
    (tmp_path / "lfts.txt").write_text("nothing\n")
    with pytest.raises(EtudeError, match="no routing table"):
        open_system(tmp_path / "ib.yaml")


def test_only_so_many_nodes(tmp_path: Path) -> None:
    (tmp_path / "topo.xml").write_text(NCCL)
    (tmp_path / "rack.yaml").write_text("name: rack\ndevice: h100\ntopology: topo.xml\nnodes: 1000000000\n")
    with pytest.raises(EtudeError, match="1,000,000,000 nodes"):
        open_system(tmp_path / "rack.yaml")


def test_ports_that_do_not_lead_back(tmp_path: Path) -> None:
    path = tmp_path / "fabric.txt"
    path.write_text(fabric().replace('[1]\t"S-000a"[11]', '[1]\t"S-000a"[12]', 1))
    with pytest.raises(EtudeError, match="which leads elsewhere"):
        open_system(path)


def test_a_port_without_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "fabric.txt"
    path.write_text(fabric().replace("4xHDR", "", 1))
    with pytest.raises(EtudeError, match="line 6.*has no rate"):
        open_system(path)


def test_a_job_on_them(tmp_path: Path) -> None:
    """All the way: four ranks of a message each, on both dumps."""
    (tmp_path / "fabric.txt").write_text(fabric())
    (tmp_path / "topo.xml").write_text(NCCL)
    job = str(tmp_path / "job")
    assert main(["generate", "micro", "shift:1", "--ranks", "2", "--bytes", "1MB", "-o", job]) == 0
    for name in ("fabric.txt", "topo.xml"):
        assert main(["simulate", job, "--system", str(tmp_path / name), "--network", "links"]) == 0
    assert main(["systems", "draw", str(tmp_path / "topo.xml"), "-o", str(tmp_path / "f.svg")]) == 0
