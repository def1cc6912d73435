"""What is in memory when: tensors that nodes name, and bytes that memory nodes load and store.

Generators and ASTRA-sim's memory tracker write tensors as two lists of text on a node, `inputs` and `outputs`, in which
each tensor's name is followed by its size in bytes. A tensor lives from the start of the first node that puts it out
to the end of the last that takes it in; one that no node puts out (a weight) is there all the time, and one that no
node takes in (a result) stays to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.model import text
from etude.model.schema import Kind, ValueKind
from etude.model.trace import Trace

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

LOCAL: Final = 1
REMOTE: Final = 2
"""Values of `tensor_loc`, as Chakra's MemoryType has them; or the texts `local` and `remote`."""
_WORDS: Final = {"local": LOCAL, "local_memory": LOCAL, "remote": REMOTE, "remote_memory": REMOTE}


def _has(trace: Trace, *names: str) -> bool:
    """Whether any node has such an attribute, before all cells are looked at."""
    return any(attr.in_cell and attr.name in names for layout in trace.layouts for attr in layout)


def locations(trace: Trace) -> NDArray[np.int8]:
    """Where the memory node of each row works: LOCAL, REMOTE, or 0 where it does not say."""
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
    """Tensor t has the size size_bytes[t]; rows row[start[t]:start[t+1]] name it, those with `out` as their output."""

    start: I64
    row: I32
    out: NDArray[np.bool_]
    size_bytes: I64

    def __len__(self) -> int:
        return len(self.size_bytes)


NO_TENSORS: Final = Tensors(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


def tensors_of(trace: Trace) -> Tensors:
    """The tensors that the nodes of a trace name, with their sizes: the largest where nodes differ."""
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
            continue  # not names and sizes by turns: these lists say something else
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


@njit(cache=True)
def _count(heap, cells):  # type: ignore[no-untyped-def]
    """Texts in all lists, over two."""
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


@njit(cache=True)
def _references(heap, cells, which, key, size):  # type: ignore[no-untyped-def]
    """List, fingerprint of the name and size of each tensor. Returns a list that is not of that form, or -1."""
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


def peak_bytes(base: I64, program: I64, rows: I64, times: tuple[I64, I64], moved: I64, tensors: list[Tensors]) -> I64:
    """Most bytes in memory, of each instance: live tensors, and what memory nodes loaded and did not store yet.

    Instance i has the nodes base[i]:base[i+1] and runs program[i], whose rows begin at rows[program[i]] of `moved`.
    """
    found = np.zeros(len(base) - 1, np.int64)
    for i, p in enumerate(program.tolist()):
        here = slice(base[i], base[i + 1])
        t = tensors[p]
        part = moved[rows[p] : rows[p + 1]] if len(moved) else np.zeros(here.stop - here.start, np.int64)
        found[i] = _peak(times[0][here], times[1][here], part, t.start, t.row, t.out, t.size_bytes)
    return found


@njit(cache=True)
def _peak(start_ns, end_ns, moved, first, row, out, size):  # type: ignore[no-untyped-def]
    last = np.int64(0)
    for i in range(len(end_ns)):
        last = max(last, end_ns[i])
    loads = np.flatnonzero(moved != 0)
    when = np.empty(2 * len(size) + len(loads), np.int64)
    what = np.empty(len(when), np.int64)  # bytes that come or go
    kind = np.empty(len(when), np.int64)
    n = 0
    for t in range(len(size)):
        begin, end = np.int64(-1), np.int64(-1)
        made, read = False, False
        for k in range(first[t], first[t + 1]):
            i = row[k]
            if out[k]:
                made = True
                if start_ns[i] >= 0 and (begin < 0 or start_ns[i] < begin):
                    begin = start_ns[i]
            else:
                read = True
            if end_ns[i] < 0:
                end = last + 1
            else:
                end = max(end, end_ns[i])
        if not made:
            begin = np.int64(0)
        if begin < 0:
            continue
        if not made or not read:
            end = last + 1
        when[n], what[n], kind[n] = 2 * begin + 1, size[t], 0
        when[n + 1], what[n + 1], kind[n + 1] = 2 * end, -size[t], 0  # what ends at an instant makes room first
        n += 2
    for j in loads:
        if end_ns[j] >= 0:
            when[n], what[n], kind[n] = 2 * end_ns[j] + 1, moved[j], 1
            n += 1
    live, held, most = np.int64(0), np.int64(0), np.int64(0)
    for k in np.argsort(when[:n], kind="mergesort"):
        if kind[k] == 0:
            live += what[k]
        else:
            held = max(held + what[k], np.int64(0))
        most = max(most, live + held)
    return most
