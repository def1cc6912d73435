"""Files that the examples of `energy` name."""

from pathlib import Path


def make(folder: Path) -> None:
    (folder / "regions.csv").write_text("region,impact,price,pue\nsweden,99,0.5,1.5\n")
