"""Files that the examples of commands between formats name."""

from pathlib import Path


def make(folder: Path) -> None:
    for name in ("host.json.gz", "kineto.json.gz", "resnet.txt"):
        (folder / name).touch()
