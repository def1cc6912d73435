"""Files that the examples of the verbs that make, change, compare and measure name."""

from __future__ import annotations

from pathlib import Path

from etude.decide.study import template


def make(folder: Path) -> None:
    (folder / "measured.csv").write_text("model,gpus\n")
    for name in ("my", "theirs"):
        (folder / f"{name}.yaml").write_text(template())
    for name in ("run", "job", "proxy", "shared"):
        (folder / name).mkdir(exist_ok=True)
