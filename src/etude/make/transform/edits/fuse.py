"""fuse: chains of operators on one lane, each the only reader of the one before, become one node."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.aten_inputs import listed, shapes_of, tensor_types, width_of
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.kernels.arrays import I64, Bool
from etude.make.transform.edits.definition import Definition, Here, Parameter, names
from etude.model.graph import dependencies, successors
from etude.model.schema import NO_TEXT, UNKNOWN, Kind
from etude.model.trace import Trace

CLASSES: Final = {"norm": OpClass.NORMALISATION} | {one.key: one for one in OpClass if one}
LIGHT: Final = ("elementwise", "activation", "norm", "softmax", "copy")
"""Classes bound by their bytes."""
_TEXT: Final = (
    "in_shapes",
    "out_shapes",
    "in_types",
    "out_types",
    "in_values",
    "out_values",
    "in_strides",
    "out_strides",
)


def rewrite(here: Here, chain: tuple[str, ...]) -> None:
    trace, made = here.trace, here.made
    member = np.zeros(len(trace), bool)
    member[here.rows] = True
    member &= _of_chain(trace, chain)
    between = result_bytes(trace)
    before = _before(trace, member & (trace.lane >= 0), between)
    last = _last(before)
    gone = np.flatnonzero(last != np.arange(len(trace)))
    if not len(gone):
        here.note(f"no chain of {', '.join(chain)} was found: {_chains(trace, between)}")
        return
    kept = np.unique(last[gone])
    part = np.concatenate([kept, gone])
    into = np.concatenate([np.arange(len(kept)), np.searchsorted(kept, last[gone])])
    moved, inner = _sum(trace.tensor_bytes[part], into), _sum(between[gone], into[len(kept) :], len(kept))
    size = np.where((moved == UNKNOWN) | (inner == UNKNOWN), UNKNOWN, np.maximum(moved - 2 * inner, 0))
    time = _sum(trace.duration_ns[part], into)
    timed = (time != UNKNOWN) & (moved > 0) & (size != UNKNOWN)
    # A chain of such operators is bound by its bytes.
    share = np.where(timed, size / np.maximum(moved, 1), 1.0)
    time = np.where(timed, np.rint(time * share).astype(np.int64), UNKNOWN)
    for column, values in (("flops", _sum(trace.flops[part], into)), ("tensor_bytes", size), ("duration_ns", time)):
        if (getattr(trace, column)[kept] != UNKNOWN).any():
            made.set(column, kept, values)
    for column in _TEXT:  # of its parts: a fused node is described by its FLOPs and bytes
        if (getattr(trace, column)[kept] != NO_TEXT).any():
            made.set(column, kept, NO_TEXT)
    made.words("name", kept, *_names(trace, kept, before))
    made.replace(gone, last[gone])
    made.remove(_launches(trace, gone))


def _chains(trace: Trace, between: I64) -> str:
    """The existing chains of operators that only move bytes, the most frequent first, in the form of `chain`."""
    class_of, light = ops_of(trace).op_class, [int(CLASSES[name]) for name in LIGHT]
    before = _before(trace, np.isin(class_of, light) & (trace.lane >= 0), between)
    second = np.flatnonzero(before >= 0)
    pairs, count = np.unique(np.stack([class_of[before[second]], class_of[second]], 1), axis=0, return_counts=True)
    if not len(pairs):
        return "and there is no chain of other operators whose results have one reader on their lane"
    name_of = {int(CLASSES[name]): name for name in LIGHT}
    told = [",".join(sorted({name_of[int(c)] for c in pairs[i]}, key=LIGHT.index)) for i in np.argsort(-count)]
    return f"there are {' and '.join(f'chain={one}' for one in dict.fromkeys(told))}"


def _launches(trace: Trace, gone: I64) -> I64:
    """Host nodes that only launch removed nodes: a fused chain has one launch."""
    after = successors(trace, "data")
    owner = np.repeat(np.arange(len(trace)), np.diff(after.start))
    is_gone = np.zeros(len(trace), bool)
    is_gone[gone] = True
    launches = np.bincount(owner, minlength=len(trace))
    for_gone = np.bincount(owner[is_gone[after.rows]], minlength=len(trace))
    return np.flatnonzero((trace.cpu == 1) & (trace.kind == Kind.COMP) & (launches > 0) & (launches == for_gone))


def _of_chain(trace: Trace, chain: tuple[str, ...]) -> Bool:
    """Nodes of these classes of operators, or with these names."""
    classes = [int(CLASSES[name]) for name in chain if name in CLASSES]
    codes, words = trace.coded("name")
    named = [any(fnmatchcase(word, want) for want in chain if want not in CLASSES) for word in words]
    return np.isin(ops_of(trace).op_class, classes) | np.array([*named, False])[codes]


def result_bytes(trace: Trace) -> I64:
    """Bytes that each node passes to others, by its shapes; UNKNOWN if not recorded."""
    (shape, shapes), (kind, kinds) = trace.coded("out_shapes"), trace.coded("out_types")
    pairs, which = np.unique(np.stack([shape, kind], 1), axis=0, return_inverse=True)
    found = [UNKNOWN if s < 0 or k < 0 else _bytes(shapes[s], kinds[k]) for s, k in pairs.tolist()]
    return np.array(found or [UNKNOWN], np.int64)[which.reshape(-1)]


def _bytes(shapes: str, types: str) -> int:
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes_of(shapes) if shape]
    widths = [width_of(name) for text in listed(types) for name in tensor_types(text)]
    if not sizes or len(sizes) != len(widths) or not all(widths):
        return UNKNOWN
    return sum(count * width for count, width in zip(sizes, widths, strict=True))


def _before(trace: Trace, member: Bool, between: I64) -> I64:
    """The node before each in its chain, or -1: on its lane, with a single reader, of known size."""
    after, data = successors(trace), dependencies(trace, "data")
    single = member & (np.diff(after.start) == 1) & (between != UNKNOWN)
    first = np.flatnonzero(single)
    reader = after.rows[after.start[first]].astype(np.int64)
    good = member[reader] & (trace.lane[reader] == trace.lane[first]) & (reader > first)
    first, reader = first[good], reader[good]
    owner = np.repeat(np.arange(len(trace)), np.diff(data.start))
    by_data = np.isin(first * len(trace) + reader, data.rows * np.int64(len(trace)) + owner)
    found = np.full(len(trace), -1, np.int64)
    found[reader[by_data]] = first[by_data]  # the later row of two
    return found


def _last(before: I64) -> I64:
    """The last node of the chain of each."""
    last = np.arange(len(before))
    after = last.copy()
    has = np.flatnonzero(before >= 0)
    after[before[has]] = has
    while (after[last] != last).any():
        last = after[last]
        after = after[after]
    return last


def _sum(values: I64, into: NDArray[np.signedinteger], count: int | None = None) -> I64:
    """Sums by target; UNKNOWN if any part is."""
    count = int(into.max()) + 1 if count is None else count
    found = np.zeros(count, np.int64)
    np.add.at(found, into, np.where(values == UNKNOWN, 0, values))
    found[into[values == UNKNOWN]] = UNKNOWN
    return found


def _names(trace: Trace, kept: I64, before: I64) -> tuple[list[str], I64]:
    """`add+rms_norm` for each fused node."""
    codes, words = trace.coded("name")
    known: dict[tuple[int, int], int] = {}
    told = [word.rpartition("::")[2] for word in words]
    text, at = codes[kept].astype(np.int64), before[kept]
    while (at >= 0).any():
        more = np.flatnonzero(at >= 0)
        pairs, which = np.unique(np.stack([codes[at[more]], text[more]], 1), axis=0, return_inverse=True)
        new = []
        for front, rest in pairs.tolist():
            if (front, rest) not in known:
                known[front, rest] = len(told)
                told.append(f"{told[front]}+{told[rest]}")
            new.append(known[front, rest])
        text[more] = np.array(new)[which.reshape(-1)]
        at = np.where(at >= 0, before[at], -1)
    return told, text


EDIT = Definition(
    doc="a chain on one lane whose inner results have one reader becomes one node: FLOPs add, intermediate results "
    "cost nothing",
    cannot="whether such a kernel exists; results that are read again without an edge",
    parameters={
        "chain": Parameter(
            read=names,
            default=",".join(LIGHT),
            doc="classes of operators, or names: elementwise,norm or aten::add,aten::rms_norm",
        )
    },
    selects="compute",
    rewrite=rewrite,
)
