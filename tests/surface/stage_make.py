"""Files that the examples of the verbs that make, change, compare and measure name."""

from __future__ import annotations

import json
from pathlib import Path

from etude.decide.study import template
from etude.run.qualify import NodeFigure, QualifiedNode, write_node

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
SPACES = {
    "space": "search: commands\nrun: predict gpt2 --system dgx-h100 --json {flags}\naxes: {tp: [1, 2]}\n"
    "score: step_time_ns\n",
    "other": "search: commands\nrun: predict gpt2 --system dgx-h100 --json {flags}\naxes: {tp: [1, 4]}\n"
    "score: step_time_ns\n",
    "plans": "search: plans\nmodel: gpt2\nsystem: dgx-h100\ngpus: 4\n",
    "chain": "search: chain\nlinks: [{rates: {low: 1MB/s, high: 2MB/s, every: 1s}}]\n",
}
"""Spaces of searches: nothing but their keys is read."""


def make(folder: Path) -> None:
    (folder / "measured.csv").write_text("model,gpus\n")
    (folder / "plan.yaml").write_text("micro_batch: 2\nrecompute: full\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, text in SPACES.items():
        (folder / f"{name}.yaml").write_text(text)
    for name in ("my", "theirs"):
        (folder / f"{name}.yaml").write_text(template())
    figure = {"name": "gemm", "part": "link", "unit": "FLOP/s", "value": 1e12, "spread": 0.01, "device": "0"}
    for number in (1, 2, 3, 7):
        node = QualifiedNode(f"node{number}", (NodeFigure(**figure),), {"devices": ["cpu"]})
        write_node(node, folder / f"node{number}.json")
    for name in ("run", "job", "proxy", "shared"):
        (folder / name).mkdir(exist_ok=True)
