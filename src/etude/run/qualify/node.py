"""Node: what was measured of one machine, and the JSON file it is in. No host name is in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from etude.base.errors import FormatError

VERSION: Final = 1
PARTS: Final = ("device", "link", "host", "replay")
"""What a figure is about: a GPU, or the CPU as a device; what moves data; the host; a whole job."""


CPU_SHARE: Final = "share of a CPU"
"""The figure that says what part of the time a busy thread was given a CPU: below 1 other work of the node has it."""


@dataclass(frozen=True, slots=True)
class NodeFigure:
    """One measured figure. Larger is better, always: a time is given as its inverse."""

    name: str
    """`gemm bf16`, `all_reduce 64 MiB`."""
    part: str
    """One of PARTS."""
    unit: str
    value: float
    """Median over repetitions."""
    spread: float = 0.0
    """Median distance from the median, as a share of it."""
    device: str = ""
    """`cuda:0`, `cpu`; empty where it is about no single device."""

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.device


@dataclass(frozen=True, slots=True)
class QualifiedNode:
    """The figures of a node."""

    name: str
    figures: tuple[NodeFigure, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """Devices, versions, how it was measured."""


def write_node(node: QualifiedNode, path: str | PathLike[str]) -> None:
    """Writes the file as it is named; callers put it in place with `etude.base.files.writing`."""
    head = {"format": "etude node", "version": VERSION, "name": node.name, "about": dict(node.about)}
    text = json.dumps(head | {"figures": [asdict(figure) for figure in node.figures]}, indent=2)
    Path(path).write_text(text + "\n")


def read_node(path: str | PathLike[str]) -> QualifiedNode:
    try:
        found = json.loads(Path(path).read_text())
        if found["format"] != "etude node" or found["version"] != VERSION:
            raise FormatError(f"has version {found['version']} of a node's figures", path=path, hint="measure it again")
        figures = tuple(_figure(entry) for entry in found["figures"])
        node = QualifiedNode(str(found["name"]), figures, dict(found["about"]))
    except OSError as problem:
        raise FormatError(str(problem.strerror or problem).lower(), path=path) from None
    except (KeyError, TypeError, ValueError) as problem:
        hint = "`etude qualify -o node.json` writes one"
        raise FormatError(f"is not a file of node figures: {problem}", path=path, hint=hint) from None
    for figure in figures:
        if figure.part not in PARTS or not 0 < figure.value < math.inf or not 0 <= figure.spread < math.inf:
            raise FormatError(f"figure `{figure.name}` has part `{figure.part}`, value {figure.value}", path=path)
    return node


def _figure(entry: dict[str, Any]) -> NodeFigure:
    numbers = {key: float(entry[key]) for key in ("value", "spread") if key in entry}
    words = {key: str(value) for key, value in entry.items() if key not in numbers}
    return NodeFigure(**words, **numbers)  # type: ignore[arg-type]
