"""Flattened layouts: which attribute each cell of a node is."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.model.trace import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Attributes in cells, layout after layout; those of layout i are entries start[i] to start[i] + count[i]."""

    start: I64
    count: I64
    kind: NDArray[np.uint8]
    position: I32
    """Position in the layout, counting attributes held by columns too."""
    name: I32

    def cells(self, layout: I32) -> tuple[I32, I64]:
        """For the cells of nodes with these layouts, in order: the node, and the entry."""
        count = self.count[layout]
        ends = np.cumsum(count)
        total = int(ends[-1]) if len(ends) else 0
        node = np.repeat(np.arange(len(layout), dtype=np.int32), count)
        return node, np.repeat(self.start[layout] - (ends - count), count) + np.arange(total)


def flat_layouts(layouts: Sequence[Layout], names: dict[str, int]) -> Flat:
    """Flattens layouts; `names` numbers attribute names, and grows."""
    start: list[int] = []
    count: list[int] = []
    kind: list[int] = []
    position: list[int] = []
    name: list[int] = []
    for layout in layouts:
        start.append(len(kind))
        for i, a in enumerate(layout):
            if a.in_cell:
                kind.append(int(a.kind))
                position.append(i)
                name.append(names.setdefault(a.name, len(names)))
        count.append(len(kind) - start[-1])
    return Flat(
        np.array(start, np.int64),
        np.array(count, np.int64),
        np.array(kind, np.uint8),
        np.array(position, np.int32),
        np.array(name, np.int32),
    )


def list_text(values: list[Any]) -> str:
    """A list as JSON: bytes in base64, numbers that JSON lacks as text."""
    return msgspec.json.encode([_json(v) for v in values]).decode()


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
