"""Rates of copies as recorded: more precise than lengths in whole µs."""

from __future__ import annotations

import numpy as np

from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64
from etude.model.attrs import scalar_to_cell
from etude.model.schema import UNKNOWN, ValueKind
from etude.model.trace import Attr, Layout

RATE = Attr("memory_bandwidth_gbyte_per_s", ValueKind.DOUBLE)


def rate_cells(device: DeviceTrace, nodes: I64, event: I64) -> dict[int, tuple[Layout, list[int]]]:
    """Attribute and value of the nodes that have a rate; `event` is the row of each in the device trace."""
    rows, codes, words = device.texts("copy_rate")
    if not len(rows):
        return {}
    cells = [_cell(word) for word in words]
    code_of = np.full(len(device), -1, np.int64)
    code_of[rows] = codes
    code = code_of[event]
    found: dict[int, tuple[Layout, list[int]]] = {}
    for node, one in zip(nodes[code >= 0].tolist(), code[code >= 0].tolist(), strict=True):
        cell = cells[one]
        if cell != UNKNOWN:
            found[node] = ((RATE,), [cell])
    return found


def _cell(word: str) -> int:
    try:
        rate = float(word)
    except ValueError:
        return UNKNOWN
    return scalar_to_cell(ValueKind.DOUBLE, rate) if np.isfinite(rate) else UNKNOWN
