"""The Python stack of a node: that of the operator above it that Python called."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I32
from etude.model.schema import STACK, ValueKind
from etude.model.text import string
from etude.model.trace import Trace


def stacks(trace: Trace, frames: int = 0) -> tuple[I32, list[str]]:
    """(number of each node's stack, -1 where none was recorded; the stacks). `frames` keeps that many of the innermost
    frames; 0 keeps all. Frames are listed from the outermost, separated by `;`."""
    found = trace.attr_cells(heap_only=True).get((STACK, ValueKind.STRING))
    code = np.full(len(trace), -1, np.int32)
    if found is None:
        return code, []
    offsets, which = np.unique(found[1], return_inverse=True)
    words: dict[str, int] = {}
    number = []
    for offset in offsets.tolist():
        stack = string(trace.heap, offset)
        stack = ";".join(stack.split(";")[-frames:]) if frames else stack
        number.append(words.setdefault(stack, len(words)))
    code[found[0]] = np.array(number, np.int32)[which.reshape(-1)]
    above = np.where(code >= 0, -1, trace.parent)  # nearest caller not yet looked up
    while (above >= 0).any():
        asked = np.flatnonzero(above >= 0)
        caller = above[asked]
        code[asked] = code[caller]
        above[asked] = np.where(code[asked] >= 0, -1, np.where(above[caller] == asked, -1, above[caller]))
    return code, list(words)
