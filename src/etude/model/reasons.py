"""Why edges exist, as text in a file: one letter per edge, data dependencies before control ones.

A node that waits for its launch, for two tensors and, in program order, for a node before it has `lttp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I64, U8, as_read
from etude.kernels.compile import kernel
from etude.kernels.varint import put_varint, varint_length
from etude.model import text
from etude.model.schema import Why

if TYPE_CHECKING:
    from etude.model.trace import Trace


LETTERS: Final = np.frombuffer("".join(why.letter for why in Why).encode(), np.uint8)
_NONE: Final = 255
_MEANING: Final = np.full(256, _NONE, np.uint8)
_MEANING[LETTERS] = np.arange(len(LETTERS), dtype=np.uint8)

assert len(set(LETTERS.tolist())) == len(Why) == max(Why) + 1


def explained(trace: Trace) -> NDArray[np.bool_]:
    """Nodes with at least one edge of known reason."""
    found = np.zeros(len(trace), np.bool_)
    for start, why in ((trace.data_start, trace.data_why), (trace.ctrl_start, trace.ctrl_why)):
        if why.any():
            _explained(start, why, found)
    return found


def spell(trace: Trace, heap: U8) -> tuple[U8, I64]:
    """The heap followed by the reasons of each explained node, and their offsets; -1 on nodes without any."""
    for why in (trace.data_why, trace.ctrl_why):
        if len(why) and int(why.max()) >= len(LETTERS):
            raise TraceError(f"a dependency has reason {int(why.max())}, which is not one of the {len(LETTERS)}")
    offset = np.full(len(trace), -1, np.int64)
    base = len(heap) - text.PAD
    size = _place(explained(trace), trace.data_start, trace.ctrl_start, base, offset)
    bigger = np.zeros(size + text.PAD, np.uint8)
    bigger[:base] = heap[:base]
    reasons = Reasons(trace.data_start, as_read(trace.data_why), trace.ctrl_start, as_read(trace.ctrl_why))
    _spell(reasons, offset, bigger)
    return bigger, offset


def read(heap: U8, offset: I64, data_start: I64, ctrl_start: I64) -> tuple[U8, U8, I64]:
    """(reasons of data edges, of control edges, rows whose text does not fit their edges) from the offset of each row's
    text, -1: none. Text fits if it has one letter for each edge, and at least one known reason."""
    data_why, ctrl_why = np.zeros(int(data_start[-1]), np.uint8), np.zeros(int(ctrl_start[-1]), np.uint8)
    strange = np.zeros(len(offset), np.bool_)
    _read(heap, offset, Reasons(data_start, data_why, ctrl_start, ctrl_why), strange)
    return data_why, ctrl_why, np.flatnonzero(strange)


def spelled(trace: Trace, node: int) -> str:
    """The reasons of one node's edges; "" if none is known. For looking, not loops."""
    parts = (
        why[start[node] : start[node + 1]]
        for start, why in ((trace.data_start, trace.data_why), (trace.ctrl_start, trace.ctrl_why))
    )
    found = np.concatenate(list(parts))
    return LETTERS[found].tobytes().decode() if found.any() else ""


@kernel(allocates=False)
def _explained(start, why, found):  # type: ignore[no-untyped-def]
    for i in range(len(found)):
        for e in range(start[i], start[i + 1]):
            if why[e]:
                found[i] = True
                break


@kernel
def _place(wanted, data_start, ctrl_start, base, offset):  # type: ignore[no-untyped-def]
    """Offsets of slices of one byte per edge, each after its length; returns where they end."""
    p = base
    for i in range(len(wanted)):
        if wanted[i]:
            offset[i] = p
            length = data_start[i + 1] - data_start[i] + ctrl_start[i + 1] - ctrl_start[i]
            p += length + varint_length(np.uint64(length))
    return p


class Reasons(NamedTuple):
    """Reasons of the edges of each node."""

    data_start: I64
    data_why: U8
    ctrl_start: I64
    ctrl_why: U8


@kernel(allocates=False)
def _spell(reasons, offset, heap):  # type: ignore[no-untyped-def]
    data_start, ctrl_start = reasons.data_start, reasons.ctrl_start
    for i in range(len(offset)):
        p = offset[i]
        if p < 0:
            continue
        length = data_start[i + 1] - data_start[i] + ctrl_start[i + 1] - ctrl_start[i]
        p = put_varint(heap, p, length)
        for e in range(data_start[i], data_start[i + 1]):
            heap[p] = LETTERS[reasons.data_why[e]]
            p += 1
        for e in range(ctrl_start[i], ctrl_start[i + 1]):
            heap[p] = LETTERS[reasons.ctrl_why[e]]
            p += 1


@kernel(allocates=False)
def _read(heap, offset, reasons, strange):  # type: ignore[no-untyped-def]
    data_start, ctrl_start = reasons.data_start, reasons.ctrl_start
    for i in range(len(offset)):
        if offset[i] < 0:
            continue
        first, length = text.prefix(heap, offset[i])
        data, ctrl = data_start[i], ctrl_start[i]
        num_data = data_start[i + 1] - data
        fits, known = length == num_data + ctrl_start[i + 1] - ctrl, False
        if fits:
            for p in range(first, first + length):
                fits &= _MEANING[heap[p]] != _NONE
                known |= _MEANING[heap[p]] != 0
        if not (fits and known):
            strange[i] = True
            continue
        for e in range(num_data):
            reasons.data_why[data + e] = _MEANING[heap[first + e]]
        for e in range(length - num_data):
            reasons.ctrl_why[ctrl + e] = _MEANING[heap[first + num_data + e]]
