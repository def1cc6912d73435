"""Files that the examples of `fleet` and `federate` name: those of `examples/`, and a few of their own."""

from pathlib import Path
from shutil import copy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COPIED = (
    "airan.yaml", "backbone.yaml", "clients.csv", "cluster.yaml", "edge.yaml", "jobs.csv", "moe.yaml", "pool.yaml",
    "monday.yaml", "qwen1.5-moe.yaml", "rl.yaml", "spot_capacity.csv", "spot_price.csv",
)  # fmt: skip


def make(folder: Path) -> None:
    for name in COPIED:
        copy(EXAMPLES / name, folder / name)
    for name, old, new in (
        ("edge", "count: 2000", "count: 20"), ("backbone", "count: 3000", "count: 30"),
        ("moe", "every: 1h", "every: 2h"), ("airan", "every: 30s", "every: 20s"),
    ):  # fmt: skip
        (folder / f"{name}2.yaml").write_text((EXAMPLES / f"{name}.yaml").read_text("utf-8").replace(old, new), "utf-8")
    (folder / "spot.yaml").write_text("nodes: [{count: 4, gpus: 8, mtbf: 2h, back: 20min}]\n")
    (folder / "days.yaml").write_text("micro_batch: 2\n")
    (folder / "experts.yaml").write_text("precision: fp8\n")
    (folder / "groups.csv").write_text("name,step_s,down,up,group,available,share\na,1,1Gb/s,1Gb/s,x,0.9,0.5\n")
