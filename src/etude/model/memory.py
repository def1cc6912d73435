"""Memory use over time: tensors that nodes name, and bytes that memory nodes load and store.

Generators and ASTRA-sim's memory tracker write tensors as two lists of text on a node, `inputs` and `outputs`, in which
each tensor's name is followed by its size in bytes. A tensor lives from the start of the first node that outputs it to
the end of the last that reads it; one that no node outputs (a weight) is there all the time, and one that no node reads
(a result) stays to the end. A load that names its tensor allocates the buffer when it begins; memory nodes that name
nothing add their bytes when they end, and stores remove them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I32, I64, U8
from etude.kernels.compile import kernel
from etude.model import text
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind, ValueKind
from etude.model.trace import Trace

LOCAL: Final = 1
REMOTE: Final = 2
"""Values of `tensor_loc`, as Chakra's MemoryType has them; or the texts `local` and `remote`."""
_WORDS: Final = {"local": LOCAL, "local_memory": LOCAL, "remote": REMOTE, "remote_memory": REMOTE}


def _has(trace: Trace, *names: str) -> bool:
    """Whether any node has such an attribute: cheaper than reading all cells."""
    return any(attr.in_cell and attr.name in names for layout in trace.layouts for attr in layout)


def locations(trace: Trace) -> NDArray[np.int8]:
    """Location of the memory node of each row: LOCAL, REMOTE, or 0 if it has none."""
    found = np.zeros(len(trace), np.int8)
    if not _has(trace, "tensor_loc"):
        return found
    for (name, kind), (nodes, cells) in trace.attr_cells().items():
        if name != "tensor_loc":
            continue
        if kind == ValueKind.STRING:
            words = [text.string(trace.heap, int(cell)).lower() for cell in cells]
            values = np.array([_WORDS.get(word, -1) for word in words], np.int64)
        else:
            values = cells if not kind.is_heap else np.full(len(cells), -1)
        memory = np.isin(trace.kind[nodes], (Kind.MEM_LOAD, Kind.MEM_STORE))
        wrong = np.flatnonzero(memory & ((values < 0) | (values > REMOTE)))
        if len(wrong):
            node = int(nodes[wrong[0]])
            where = f"node {trace.source_id[node]}"
            raise TraceError("its `tensor_loc` is neither local (1) nor remote (2)", where=where)
        found[nodes[memory]] = values[memory]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Tensor t has size_bytes[t]; rows row[start[t]:start[t+1]] name it, those with `out` as their output."""

    start: I64
    row: I32
    out: NDArray[np.bool_]
    size_bytes: I64

    def __len__(self) -> int:
        return len(self.size_bytes)


NO_TENSORS: Final = Tensors(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


def tensors_of(trace: Trace) -> Tensors:
    """The tensors that the nodes of a trace name, with their sizes: the largest if nodes differ."""
    parts = []
    if not _has(trace, "inputs", "outputs"):
        return NO_TENSORS
    for (name, kind), (nodes, cells) in trace.attr_cells(heap_only=True).items():
        if name not in ("inputs", "outputs") or kind != ValueKind.STRING_LIST:
            continue
        count = _count(trace.heap, cells)
        which, key, size = np.empty(count, np.int64), np.empty(count, np.uint64), np.empty(count, np.int64)
        bad = _references(trace.heap, cells, which, key, size)
        if bad >= 0:
            continue  # not names and sizes in turn: these lists mean something else
        parts.append((nodes[which], key, size, np.full(count, name == "outputs")))
    if not parts:
        return NO_TENSORS
    row, key, size, out = (np.concatenate([p[k] for p in parts]) for k in range(4))
    _, tensor = np.unique(key, return_inverse=True)
    tensor = tensor.reshape(-1)
    order = np.argsort(tensor, kind="stable")
    count = int(tensor.max(initial=-1)) + 1
    sizes = np.zeros(count, np.int64)
    np.maximum.at(sizes, tensor, size)
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(tensor, minlength=count), out=start[1:])
    return Tensors(start, row[order].astype(np.int32), out[order], sizes)


@kernel(allocates=False)
def _count(heap, cells):  # type: ignore[no-untyped-def]
    """Number of texts in all lists, divided by two."""
    total = 0
    for cell in cells:
        p, length = text.prefix(heap, cell)
        end = p + length
        n = 0
        while p < end and heap[p] == 10:
            p, length = text.prefix(heap, p + 1)
            p += length
            n += 1
        total += n // 2
    return total


@kernel(allocates=False)
def _references(heap, cells, which, key, size):  # type: ignore[no-untyped-def]
    """List, fingerprint of the name and size of each tensor. Returns a list of another form, or -1."""
    at = 0
    for i in range(len(cells)):
        p, length = text.prefix(heap, cells[i])
        end = p + length
        n = 0
        while p < end:
            if heap[p] != 10:
                return i
            p, length = text.prefix(heap, p + 1)
            if p + length > end:
                return i
            if n % 2 == 0:
                h = np.uint64(0xCBF29CE484222325)
                for k in range(p, p + length):
                    h = (h ^ np.uint64(heap[k])) * np.uint64(0x100000001B3)
                which[at] = i
                key[at] = h
            else:
                value = np.int64(0)
                digits = 0
                for k in range(p, p + length):
                    if heap[k] == 46:  # a point: the rest is a fraction of a byte
                        break
                    if heap[k] < 48 or heap[k] > 57 or digits == 18:
                        return i
                    value = 10 * value + (np.int64(heap[k]) - 48)
                    digits += 1
                if digits == 0:
                    return i
                size[at] = value
                at += 1
            p += length
            n += 1
        if n % 2:
            return i
    return -1


def named(prefix: str, tensor: I64, size_bytes: I64) -> U8:
    """A row of bytes of one width for each tensor: its name (the prefix and its number) and its size, as two texts of a
    list."""
    columns = [np.frombuffer(prefix.encode(), np.uint8) + np.zeros((len(tensor), 1), np.uint8), _digits(tensor)]
    name, size = np.hstack(columns), _digits(size_bytes)
    if name.shape[1] > 127:
        raise TraceError(f"the name of a tensor begins with {len(prefix)} bytes")
    head, tail = (np.tile(np.array([10, part.shape[1]], np.uint8), (len(tensor), 1)) for part in (name, size))
    return np.hstack([head, name, tail, size])


def _digits(numbers: I64) -> U8:
    """Non-negative numbers in decimal, with the same number of digits."""
    width = len(str(int(numbers.max(initial=0))))
    return (numbers[:, None] // 10 ** np.arange(width - 1, -1, -1, dtype=np.int64) % 10 + 48).astype(np.uint8)


def moved_bytes(trace: Trace) -> I64:
    """Bytes that each node brings into memory, negative if it stores them elsewhere. Moves within the device's own
    memory count 0."""
    sign = np.where(trace.kind == Kind.MEM_LOAD, 1, np.where(trace.kind == Kind.MEM_STORE, -1, 0))
    if not sign.any():
        return np.zeros(len(trace), np.int64)
    return np.where(locations(trace) == LOCAL, 0, sign * np.maximum(trace.tensor_bytes, 0))


@dataclass(frozen=True, slots=True, eq=False)
class MemoryLevels:
    """Bytes in memory, and bytes stored elsewhere by memory nodes and not loaded again, from each time on."""

    time_ns: I64
    held_bytes: I64
    stored_bytes: I64


def memory_levels(part: RunPart) -> MemoryLevels | None:
    """The levels of memory over time; None if the trace says nothing about memory. What ends at an instant makes room
    for what begins at it."""
    tensors, moved = tensors_of(part.trace), moved_bytes(part.trace)
    loads = np.flatnonzero((moved != 0) & (part.end_ns != UNKNOWN))
    if not len(tensors) and not moved.any():
        return None
    begin, until, size = _lifetimes(part, tensors)
    last = part.end_ns.max(initial=UNKNOWN)
    ends = until <= last
    time = np.concatenate([begin, until[ends], part.end_ns[loads]])
    turn = np.repeat(np.array([1, 0, 1], np.int8), [len(begin), int(ends.sum()), len(loads)])
    lives = np.concatenate([size, -size[ends], np.zeros(len(loads), np.int64)])
    brought = moved.copy()
    brought[tensors.row] = 0  # counted with the tensors that they name
    none, order = np.zeros(len(time) - len(loads), np.int64), np.lexsort((turn, time))
    loaded, stored = (np.concatenate([none, one[loads]])[order] for one in (brought, -moved))
    return MemoryLevels(time[order], np.cumsum(lives[order]) + _not_below_0(loaded), _not_below_0(stored))


def _not_below_0(change: I64) -> I64:
    """The running sum of changes, clipped at 0."""
    total = np.cumsum(change)
    return total - np.minimum(np.minimum.accumulate(total), 0) if len(total) else total


def _lifetimes(part: RunPart, tensors: Tensors) -> tuple[I64, I64, I64]:
    """(begin, end, bytes) of each tensor that was created; one that stays ends after everything else."""
    if not len(tensors):
        return tensors.size_bytes, tensors.size_bytes, tensors.size_bytes
    start, end = part.start_ns[tensors.row], part.end_ns[tensors.row]
    first, never = part.start_ns[part.start_ns != UNKNOWN].min(initial=np.iinfo(np.int64).max), np.iinfo(np.int64).max
    stays = part.end_ns.max(initial=UNKNOWN) + 1
    heads = tensors.start[:-1]
    made, read = np.logical_or.reduceat(tensors.out, heads), np.logical_or.reduceat(~tensors.out, heads)
    begin = np.minimum.reduceat(np.where(tensors.out & (start != UNKNOWN), start, never), heads)
    begin = np.where(made, begin, first)
    until = np.maximum.reduceat(np.where(end == UNKNOWN, stays, end), heads)
    until = np.where(made & read, until, stays)
    there = begin < never
    return begin[there], until[there], tensors.size_bytes[there]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPeaks:
    """The most that was in memory, and stored elsewhere, for each rank present; UNKNOWN if not recorded."""

    held_bytes: I64
    stored_bytes: I64


def memory_peaks(run: Run) -> MemoryPeaks:
    held, stored = (np.full(len(run.job.ranks), UNKNOWN, np.int64) for _ in range(2))
    for part in run.parts():
        levels = memory_levels(part)
        if levels is not None:
            held[part.at], stored[part.at] = levels.held_bytes.max(initial=0), levels.stored_bytes.max(initial=0)
    return MemoryPeaks(held, stored)
