"""Files that the examples of `generate --program` name."""

from pathlib import Path


def make(folder: Path) -> None:
    (folder / "model.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(8, 8)\n")
