"""Node: what was measured of one machine, and the JSON file it is in. No host name is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from etude.base.results import format_of, read_json
from etude.base.shapes import TEXT, Shape, ValuePlace, check_value, keys, several, shown

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


FIGURE: Final = keys(
    name=TEXT,
    part=Shape("text", among=PARTS),
    unit=TEXT,
    value=Shape("number", least=1e-30),
    spread=Shape("number", least=0.0).if_there(),
    device=TEXT.if_there(),
)
SHAPE: Final = keys(name=TEXT, about=keys(), figures=several(FIGURE.alone()))
WHAT: Final = "a file of node figures"
HINT: Final = "`etude qualify -o node.json` writes one"


def read_node(path: str | PathLike[str]) -> QualifiedNode:
    """The figures in a file. Raises FormatError."""
    found = read_json(Path(path), WHAT, HINT)
    place = ValuePlace(str(path), hint=HINT)
    if not isinstance(found, dict):
        raise place.wrong(f"is not {WHAT}: expected keys and values, not {shown(found)}")
    form = f"{found.get('format')} {found.get('version')}"
    format_of(form, {"etude node": VERSION}, Path(path), WHAT, HINT)
    check_value(found, SHAPE, place)
    figures = tuple(NodeFigure(**(entry | {"value": float(entry["value"])})) for entry in found["figures"])
    return QualifiedNode(found["name"], figures, found["about"])
