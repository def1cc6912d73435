"""How each node uses the device of its rank: compute, communication, memory, the host's own, or not at all.

Every measure of time (breakdown, idle time, overlap, ...) and every colour starts from this one classification.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from etude.kernels.arrays import U8, Bool
from etude.model.frames import SEGMENT, frames
from etude.model.schema import Kind
from etude.model.trace import Trace


class Use(IntEnum):
    """How a node uses the device of its rank. If several run at once, the smallest number counts."""

    NONE = 0
    """Takes no time of its own there: metadata, frames, records of a wait."""
    COMPUTE = 1
    COMMUNICATION = 2
    MEMORY = 3
    """Copies and fills."""
    HOST = 4
    """Runs on the host and is not work of a device: next to a device with work of its own, or between operators."""

    @property
    def label(self) -> str:
        return self.name.lower() if self else "other"


_COMM: Final = re.compile(r"^nccl|^rccl|^hccl|ncclKernel|ncclDevKernel|rcclKernel|^gloo:")
_MEMORY: Final = re.compile(
    r"^(hip)?Mem(cpy|set)|^dma|^__amd_rocclr_(copy|fill)|^Copy(Device|Host)|^FillBuffer|^\[CUDA mem(cpy|set)"
    r"|^zeCommandListAppendMemory(Copy|Fill)"
)
"""Copies and fills, by their names in CUDA, ROCm (old and new), Nsight and Level Zero."""
_WAIT: Final = re.compile(r"^(Stream Wait Event|Event Sync|Stream Sync|Context Sync|Device Sync)|^event_(wait|record)$")
_COMPUTES: Final = re.compile(
    r"^(?!autograd::|torch::autograd::|c10d::|_c10d|torch\.distributed)[\w.]+::|CompiledFxGraph"
)
"""Operators on the host that compute: of a library (`aten::mm`), or fused by the compiler; not those of the calling
engine, of communication, or user annotations."""
_BY_KIND = np.zeros(256, np.uint8)
_BY_KIND[Kind.COMP] = Use.COMPUTE
_BY_KIND[[Kind.SEND, Kind.RECV, Kind.COLL]] = Use.COMMUNICATION
_BY_KIND[[Kind.MEM_LOAD, Kind.MEM_STORE]] = Use.MEMORY

_KNOWN: Final[WeakKeyDictionary[Trace, U8]] = WeakKeyDictionary()
"""Of programs that are alive: an analysis asks for the same ones again and again."""


def uses(trace: Trace) -> U8:
    """Use of each node. If nothing runs on a device, the host is the device, with what its operators compute.

    A kernel's kind determines its use; kernels recorded without one are recognised by name, as NCCL's and the driver's
    copies are.
    """
    if trace not in _KNOWN:
        _KNOWN[trace] = _uses(trace)
    return _KNOWN[trace].copy()


def _uses(trace: Trace) -> U8:
    use = _BY_KIND[trace.kind]
    if has_device(trace):
        host = trace.cpu == 1
        _by_name(trace, use, (use == Use.COMPUTE) & ~host)
        talks = ((use == Use.COMMUNICATION) & ~host).any()
        use[host & (use != Use.NONE) & ((use != Use.COMMUNICATION) | talks)] = Use.HOST
    else:
        _on_the_host(trace, use)
    use[frames(trace)] = Use.NONE
    return use


def has_device(trace: Trace) -> bool:
    """Whether anything runs besides the host, or there is no host. Messages without a place are not a sign of a device:
    those of gloo run on the host."""
    if not (trace.cpu == 1).any():
        return True
    use = _BY_KIND[trace.kind]
    work = (use != Use.NONE) & (trace.cpu != 1)
    return bool((work & ((use != Use.COMMUNICATION) | (trace.cpu == 0))).any())


def segments(trace: Trace) -> Bool:
    """Nodes that are host time between operators, inside an operator or outside of all."""
    codes, words = trace.coded("name")
    return (codes == words.index(SEGMENT)) & (trace.cpu == 1) if SEGMENT in words else np.zeros(len(trace), bool)


def _on_the_host(trace: Trace, use: U8) -> None:
    """If the host is the device: recorded time between operators is compute inside an operator that computes, and
    otherwise the host's own. Other traces have no such time."""
    between = segments(trace)
    if not between.any():
        return
    codes, words = trace.coded("name")
    computes = np.array([bool(_COMPUTES.search(word)) for word in words] + [False])[codes]
    inside = np.where(between & (trace.parent >= 0), computes[trace.parent], computes & ~between)
    use[(use == Use.COMPUTE) & ~inside] = Use.HOST


def _by_name(trace: Trace, use: U8, unsure: Bool) -> None:
    rows = np.flatnonzero(unsure)
    codes, words = trace.coded("name", rows)
    of_word = np.full(len(words) + 1, Use.COMPUTE, np.uint8)  # the last is for nodes without a name
    for number, word in enumerate(words):
        if _COMM.search(word):
            of_word[number] = Use.COMMUNICATION
        elif _MEMORY.search(word):
            of_word[number] = Use.MEMORY
        elif _WAIT.search(word):
            of_word[number] = Use.NONE
    use[rows] = of_word[codes]
