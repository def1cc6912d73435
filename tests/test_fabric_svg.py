"""Pictures of fabrics: what stands in them, and what is too large."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.machine.fabrics import fat_tree, rail_clos
from etude.machine.topology import Topology, Wire, torus
from etude.surface.cli import main
from etude.tell.view.fabric_svg import fabric_svg

NEAR, FAR = Wire(bytes_per_s=400e9, latency_ns=300), Wire(bytes_per_s=50e9, latency_ns=500)
SYSTEM = open_system("dgx-h100")
SVG = "{http://www.w3.org/2000/svg}"


def drawn(topology: Topology) -> ElementTree.Element:
    return ElementTree.fromstring(fabric_svg(SYSTEM, topology))


def heights(picture: ElementTree.Element, kind: str) -> list[int]:
    return [int(g.find(f"{SVG}rect").get("y", "")) for g in picture.iter(f"{SVG}g") if g.get("class") == kind]  # type: ignore[union-attr]


def test_rates_and_counts_stand_in_the_legend() -> None:
    """4 leaves of 4 ports up and 8 down, 12 leaves: 96 devices, 48 connections up."""
    texts = [text.text or "" for text in drawn(fat_tree(12, FAR, levels=2, oversubscription=2)).iter(f"{SVG}text")]
    assert "host, 50 GB/s each way, 500 ns: 96 connections" in texts
    assert "spine, 50 GB/s each way, 500 ns: 48 connections" in texts
    assert "12, 2:1" in texts  # leaves, and how much more comes from below


def test_layers_go_up_and_switches_of_a_node_are_below() -> None:
    picture = drawn(rail_clos(4, 2, scale_up=NEAR, scale_out=FAR, nodes_per_leaf=2, spines=2))
    device, nic, switch = (sorted(set(heights(picture, kind))) for kind in ("device", "nic", "switch"))
    assert len(device) == len(nic) == 1
    spine, leaf, node = switch
    assert spine < leaf < nic[0] < device[0] < node


def test_connections_are_drawn_once_and_ranks_are_named() -> None:
    picture = drawn(torus((4, 4), FAR))
    tips = [path.findtext(f"{SVG}title") for path in picture.iter(f"{SVG}path")]
    assert len([tip for tip in tips if tip]) == 2 * 16
    labels = [g.findtext(f"{SVG}text") for g in picture.iter(f"{SVG}g") if g.get("class") == "device"]
    assert labels == [str(rank) for rank in range(16)]


def test_no_two_vertices_share_a_place() -> None:
    for graph in (torus((4, 4, 2), FAR), fat_tree(4, FAR), torus((9,), FAR)):
        text = fabric_svg(SYSTEM, graph)
        at = re.findall(r'<rect x="(-?\d+)" y="(-?\d+)"', text)
        assert len(set(at)) == len(at) == len(graph.kind)
        assert np.array(at, int).min() > 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "f.svg"
    assert main(["systems", "draw", "dgx-h100", "--ranks", "16", "-o", str(out)]) == 0
    assert "nvlink" in out.read_text() and "rank 15" in out.read_text()
    assert main(["systems", "draw", "dgx-h100", "--ranks", "16", "-o", str(out)]) == 2
    assert main(["systems", "draw", "dgx-h100", "-o", str(tmp_path / "g.svg")]) == 2
    assert "too many for a picture" in capsys.readouterr().err
    assert main(["systems", "draw", "dgx-h100", "-o", str(tmp_path / "g.png")]) == 2


def test_too_large() -> None:
    with pytest.raises(UsageError, match="too many"):
        fabric_svg(SYSTEM, fat_tree(16, FAR))
