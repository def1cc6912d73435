"""Why edges are there, as text that a file can carry: a letter an edge, data dependencies before control ones.

A node that waits for its launch, for two tensors and, in program order, for a node before it says `lttp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.kernels.compile import kernel
from etude.kernels.varint import put_varint, varint_length
from etude.model import text
from etude.model.schema import Why

if TYPE_CHECKING:
    from etude.model.trace import Trace

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

LETTERS: Final = np.frombuffer("".join(why.letter for why in Why).encode(), np.uint8)
_NONE: Final = 255
_MEANING: Final = np.full(256, _NONE, np.uint8)
_MEANING[LETTERS] = np.arange(len(LETTERS), dtype=np.uint8)

assert len(set(LETTERS.tolist())) == len(Why) == max(Why) + 1


def explained(trace: Trace) -> NDArray[np.bool_]:
    """Nodes of which some edge has a known reason."""
    found = np.zeros(len(trace), np.bool_)
    for start, why in ((trace.data_start, trace.data_why), (trace.ctrl_start, trace.ctrl_why)):
        if why.any():
            _explained(start, why, found)
    return found


def spell(trace: Trace, heap: U8) -> tuple[U8, I64]:
    """The heap with the reasons of each explained node behind it, and their offsets; -1 on nodes without any."""
    for why in (trace.data_why, trace.ctrl_why):
        if len(why) and int(why.max()) >= len(LETTERS):
            raise TraceError(f"a dependency has reason {int(why.max())}, which is none of {len(LETTERS)}")
    offset = np.full(len(trace), -1, np.int64)
    base = len(heap) - text.PAD
    size = _place(explained(trace), trace.data_start, trace.ctrl_start, base, offset)
    bigger = np.zeros(size + text.PAD, np.uint8)
    bigger[:base] = heap[:base]
    _spell(trace.data_start, trace.data_why, trace.ctrl_start, trace.ctrl_why, LETTERS, offset, bigger)
    return bigger, offset


def read(heap: U8, offset: I64, data_start: I64, ctrl_start: I64) -> tuple[U8, U8, I64]:
    """(reasons of data edges, of control edges, rows whose text does not fit their edges) from the offset of each
    row's text, -1 where there is none. Text fits if it has a letter for each edge, and says more than nothing."""
    data_why, ctrl_why = np.zeros(int(data_start[-1]), np.uint8), np.zeros(int(ctrl_start[-1]), np.uint8)
    strange = np.zeros(len(offset), np.bool_)
    _read(heap, offset, data_start, ctrl_start, _MEANING, data_why, ctrl_why, strange)
    return data_why, ctrl_why, np.flatnonzero(strange)


def spelled(trace: Trace, node: int) -> str:
    """The reasons of one node's edges; "" if none is known. For looking, not loops."""
    parts = (
        why[start[node] : start[node + 1]]
        for start, why in ((trace.data_start, trace.data_why), (trace.ctrl_start, trace.ctrl_why))
    )
    found = np.concatenate(list(parts))
    return LETTERS[found].tobytes().decode() if found.any() else ""


@kernel
def _explained(start, why, found):  # type: ignore[no-untyped-def]
    for i in range(len(found)):
        for e in range(start[i], start[i + 1]):
            if why[e]:
                found[i] = True
                break


@kernel
def _place(wanted, data_start, ctrl_start, base, offset):  # type: ignore[no-untyped-def]
    """Offsets of slices of one byte an edge, each behind its length; returns where they end."""
    p = base
    for i in range(len(wanted)):
        if wanted[i]:
            offset[i] = p
            length = data_start[i + 1] - data_start[i] + ctrl_start[i + 1] - ctrl_start[i]
            p += length + varint_length(np.uint64(length))
    return p


@kernel
def _spell(data_start, data_why, ctrl_start, ctrl_why, letters, offset, heap):  # type: ignore[no-untyped-def]
    for i in range(len(offset)):
        p = offset[i]
        if p < 0:
            continue
        length = data_start[i + 1] - data_start[i] + ctrl_start[i + 1] - ctrl_start[i]
        p = put_varint(heap, p, length)
        for e in range(data_start[i], data_start[i + 1]):
            heap[p] = letters[data_why[e]]
            p += 1
        for e in range(ctrl_start[i], ctrl_start[i + 1]):
            heap[p] = letters[ctrl_why[e]]
            p += 1


@kernel
def _read(heap, offset, data_start, ctrl_start, meaning, data_why, ctrl_why, strange):  # type: ignore[no-untyped-def]
    for i in range(len(offset)):
        if offset[i] < 0:
            continue
        first, length = text.prefix(heap, offset[i])
        data, ctrl = data_start[i], ctrl_start[i]
        num_data = data_start[i + 1] - data
        fits, known = length == num_data + ctrl_start[i + 1] - ctrl, False
        if fits:
            for p in range(first, first + length):
                fits &= meaning[heap[p]] != _NONE
                known |= meaning[heap[p]] != 0
        if not (fits and known):
            strange[i] = True
            continue
        for e in range(num_data):
            data_why[data + e] = meaning[heap[first + e]]
        for e in range(length - num_data):
            ctrl_why[ctrl + e] = meaning[heap[first + num_data + e]]
