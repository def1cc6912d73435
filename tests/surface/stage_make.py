"""Files that the examples of the verbs that make, change, compare and measure name."""

from __future__ import annotations

from pathlib import Path

from etude.decide.study import template
from etude.run.qualify import Figure, Node, write_node


def make(folder: Path) -> None:
    (folder / "measured.csv").write_text("model,gpus\n")
    for name in ("my", "theirs"):
        (folder / f"{name}.yaml").write_text(template())
    figure = {"name": "gemm", "part": "link", "unit": "FLOP/s", "value": 1e12, "spread": 0.01, "device": "0"}
    for number in (1, 2, 3, 7):
        node = Node(f"node{number}", (Figure(**figure),), {"devices": ["cpu"]})
        write_node(node, folder / f"node{number}.json")
    for name in ("run", "job", "proxy", "shared"):
        (folder / name).mkdir(exist_ok=True)
