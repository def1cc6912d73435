"""What nodes need from a tier below the device: accesses to items, with the bytes of each.

An item is kept or evicted as a whole: weights of a module, the cache of a layer, results of one node. Weights that are
gathered from shards are needed by the gather: a rank's own shard of them. With `by=layer` consecutive accesses of one
layer are one: from its first node to its last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.aten_inputs import listed, shapes_of, tensor_types, width_of
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.kernels.arrays import I64, Bool
from etude.make.transform.edits.compress import CLASSES as SENT
from etude.make.transform.edits.compress import tensor_classes
from etude.make.transform.edits.definition import Here
from etude.make.transform.edits.fuse import result_bytes
from etude.make.transform.edits.recompute import backward_of
from etude.model.schema import UNKNOWN, Collective
from etude.model.trace import Trace

CLASSES: Final = {
    "weights": (OpClass.GEMM, OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM),
    "experts": (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM),
    "features": (OpClass.EMBEDDING,),
    "optimizer": (OpClass.OPTIMIZER,),
    "kv": (OpClass.ATTENTION, OpClass.ATTENTION_DECODE),
    "activations": (),
}
"""Operators that need it; activations are results of any."""
CACHED: Final = "flash_attn::varlen_fwd"
"""Attention over a cache: queries of new tokens, keys and values of all."""
STATE_BYTES: Final = 12
"""Bytes per parameter under AdamW: two moments and a copy of the weights, in fp32."""
_MADE_OF_INPUTS: Final = "backward-weight"
"""The phase whose products have no weights: their gradients come from activations."""


class Needed(NamedTuple):
    """Accesses in the order of the program."""

    row: I64
    """The node; for a layer its first."""
    last: I64
    """The last node of this access: for a layer its last."""
    item: I64
    load_bytes: I64
    """Bytes to read if the item is absent."""
    hold_bytes: I64
    """Bytes in the device."""
    write_bytes: I64
    """New bytes after the node."""
    makes: Bool
    """The node produces the item: nothing is read."""

    def in_order(self) -> Needed:
        order = np.lexsort((self.makes, self.row))
        return Needed(*(column[order] for column in self))  # type: ignore[arg-type]

    def largest(self, which: Bool | None = None) -> I64:
        """Bytes of each item at its largest, among these accesses."""
        mine = np.ones(len(self.row), bool) if which is None else which
        sizes = np.zeros(int(self.item.max(initial=-1)) + 1, np.int64)
        np.maximum.at(sizes, self.item[mine], self.hold_bytes[mine])
        return sizes

    def scaled(self, part: float) -> Needed:
        load, hold, write = (
            np.rint(sizes * part).astype(np.int64) for sizes in (self.load_bytes, self.hold_bytes, self.write_bytes)
        )
        return self._replace(load_bytes=load, hold_bytes=hold, write_bytes=write)


def needed(here: Here, what: str, given: int) -> Needed:
    """`given`: bytes for each node, if the job has none."""
    trace, rows = here.trace, here.rows[here.trace.lane[here.rows] >= 0]
    rows = rows[trace.cpu[rows] != 1]
    if what == "activations":
        return _results(trace, rows, given)
    if given and what in ("weights", "experts", "features"):  # the selector says which nodes
        return _read(rows, _numbered(trace, rows, np.full(len(rows), given)), np.full(len(rows), given, np.int64))
    if what == "kv":
        return _cache(trace, rows, given)
    rows = rows[np.isin(ops_of(trace).op_class[rows], [int(one) for one in CLASSES[what]])]
    if what == "optimizer":
        return _state(here, rows, given)
    if what == "features":
        sizes = _known(what, result_bytes(trace)[rows])
        return _read(rows, np.arange(len(rows)), sizes)  # other rows of the table each time
    rows = rows[_has_weights(trace, rows, what)]
    gathers, alone = _gathered(here, rows, what)
    both = np.append(alone, gathers)
    sizes = np.append(_weight_bytes(trace, alone), trace.in_bytes[gathers])
    return _read(both, _numbered(trace, both, sizes), _known(what, sizes))


class Users(NamedTuple):
    """The nodes of each access: a node, or the nodes of a layer."""

    row: I64
    access: I64


def by_layer(trace: Trace, found: Needed) -> tuple[Needed, Users]:
    """Consecutive accesses of one layer as one access to one item: the layer. What a layer needs twice is loaded
    once."""
    layer = _layers(trace, found.row)
    run = np.cumsum(np.append(True, layer[1:] != layer[:-1])) - 1 if len(layer) else layer
    first = np.flatnonzero(np.append(True, run[1:] != run[:-1])) if len(run) else run
    _, once = np.unique(np.stack([run, found.item], 1), axis=0, return_index=True)
    load, hold, write = (
        np.bincount(run[once], sizes[once], minlength=len(first)).astype(np.int64)
        for sizes in (found.load_bytes, found.hold_bytes, found.write_bytes)
    )
    last = found.last[np.append(first[1:], len(run)) - 1]
    one = Needed(found.row[first], last, layer[first], load, hold, write, found.makes[first])
    return one, Users(found.row, run)


def _layers(trace: Trace, rows: I64) -> I64:
    """The layer of each node: its module up to the first number, else its first name; without a module the node."""
    modules, paths = trace.coded("module")
    names = [path.split(".") for path in paths]
    depth = [next((i for i, name in enumerate(one) if name.isdecimal()), 0) + 1 for one in names]
    _, of = np.unique([".".join(one[:d]) for one, d in zip(names, depth, strict=True)], return_inverse=True)
    known = np.append(of.reshape(-1), 0)[modules[rows]]
    return np.unique(np.where(modules[rows] < 0, len(paths) + rows, known), return_inverse=True)[1].reshape(-1)


def _read(rows: I64, items: I64, sizes: I64) -> Needed:
    none = np.zeros(len(rows), np.int64)
    return Needed(rows, rows, items, sizes, sizes, none, np.zeros(len(rows), bool)).in_order()


def _results(trace: Trace, rows: I64, given: int) -> Needed:
    source, user = backward_of(trace, rows)
    sizes = np.full(len(source), given, np.int64) if given else _known("activations", result_bytes(trace)[source])
    items, none = np.arange(len(source)), np.zeros(len(source), np.int64)
    made = np.arange(2 * len(source)) < len(source)
    rows = np.append(source, user)
    both = Needed(
        rows, rows, np.append(items, items), np.append(none, sizes), np.append(sizes, sizes),
        np.append(sizes, none), made,
    )  # fmt: skip
    return both.in_order()


def _state(here: Here, rows: I64, given: int) -> Needed:
    if given:
        sizes = np.full(len(rows), given, np.int64)
    else:
        sizes = STATE_BYTES * _known("optimizer", _of_shapes(here.trace, rows, _parameters))
        here.note(
            f"offload: the optimizer has {STATE_BYTES} bytes for each parameter (AdamW: two moments and a copy "
            "of the weights in fp32); size= gives others"
        )
    read = _read(rows, _numbered(here.trace, rows, sizes), sizes)
    return read._replace(write_bytes=read.load_bytes)


def _cache(trace: Trace, rows: I64, given: int) -> Needed:
    """Keys and values: those of earlier tokens are read, those of new ones are written."""
    codes, words = trace.coded("name")
    cached = np.array([*(word == CACHED for word in words), False])[codes]
    core = np.isin(ops_of(trace).op_class[rows], [int(one) for one in CLASSES["kv"]])
    if given:
        rows = rows[core | cached[rows]]
        return _read(rows, _numbered(trace, rows, np.zeros(len(rows))), np.full(len(rows), given, np.int64))
    if core.any() and not cached[rows].any():
        hint = "use a job of `etude generate serve`, or size=100MB for each selected node"
        raise UsageError("the job has no cache of keys and values: it only reads those of its own tokens", hint=hint)
    rows = rows[cached[rows]]
    whole, new = (_known("kv", _of_shapes(trace, rows, read)) for read in (_cached_bytes, _new_bytes))
    items = _numbered(trace, rows, np.zeros(len(rows)))
    return Needed(rows, rows, items, whole - new, whole, new, np.zeros(len(rows), bool)).in_order()


def _known(what: str, sizes: I64) -> I64:
    if (sizes == UNKNOWN).any():
        hint = "size=100MB, for each selected node"
        raise UsageError(f"the bytes of {what} are not known: some nodes have no shapes or data types", hint=hint)
    return sizes


def _numbered(trace: Trace, rows: I64, sizes: NDArray[np.generic]) -> I64:
    """One item per module and size; nodes without a module have one each."""
    modules, _ = trace.coded("module")
    alone = np.where(modules[rows] < 0, rows, -1)
    table = np.stack([modules[rows].astype(np.int64), np.asarray(sizes, np.int64), alone], 1)
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


# -- weights -----------------------------------------------------------------------------------------------------------


def _gathered(here: Here, rows: I64, what: str) -> tuple[I64, I64]:
    """(gathers that bring weights of these products, products whose weights nothing gathers)"""
    trace = here.trace
    calls = np.flatnonzero(trace.collective == int(Collective.ALL_GATHER))
    calls = calls[tensor_classes(here, calls) == SENT.index("weights")]
    (phases, said), (modules, paths) = trace.coded("phase"), trace.coded("module")
    passes = np.array([*(word.startswith(("forward", "backward")) for word in said), False])
    calls = calls[passes[phases[calls]] & (modules[calls] >= 0)]
    if what == "experts":
        of_experts = [any(name.startswith("e") for name in names[:1]) for names in here.groups]
        calls = calls[np.array([*of_experts, False])[trace.group[calls]]]
    block = {paths[code].rpartition(".")[0] for code in np.unique(modules[calls]).tolist()}
    inside = np.array([*(any(path.startswith(f"{one}.") for one in block) for path in paths), False])
    wanted = {path for path, code in zip(paths, range(len(paths)), strict=True) if (modules[rows] == code).any()}
    used = {one for one in block if any(path.startswith(f"{one}.") for path in wanted)}
    chosen = np.array([*(path.rpartition(".")[0] in used for path in paths), False])
    return calls[chosen[modules[calls]]], rows[~inside[modules[rows]]]


def _has_weights(trace: Trace, rows: I64, what: str) -> Bool:
    phases, words = trace.coded("phase")
    if (phases[rows] < 0).any():
        raise UsageError(
            f"the products with {what} are not known: the job has no phases", hint="size=100MB, for each selected node"
        )
    return np.array([*(word != _MADE_OF_INPUTS for word in words), False])[phases[rows]]


def _weight_bytes(trace: Trace, rows: I64) -> I64:
    """Bytes of the last input of each product."""
    return _of_shapes(trace, rows, _last_bytes)


def _of_shapes(trace: Trace, rows: I64, read: Callable[[str, str], int]) -> I64:
    """Bytes by the shapes and types of each node's inputs; UNKNOWN without."""
    (shape, shapes), (kind, kinds) = trace.coded("in_shapes"), trace.coded("in_types")
    pairs, which = np.unique(np.stack([shape[rows], kind[rows]], 1), axis=0, return_inverse=True)
    found = [UNKNOWN if s < 0 or k < 0 else read(shapes[s], kinds[k]) for s, k in pairs.tolist()]
    return np.array(found or [UNKNOWN], np.int64)[which.reshape(-1)]


def _widths(types: str) -> list[int]:
    return [width_of(name) for text in listed(types) for name in tensor_types(text)]


def _last_bytes(shapes: str, types: str) -> int:
    sizes, widths = [math.prod(one) for one in shapes_of(shapes) if len(one) >= 2], _widths(types)
    return sizes[-1] * widths[-1] if len(sizes) >= 2 and widths and widths[-1] else UNKNOWN


def _parameters(shapes: str, types: str) -> int:
    sizes = [math.prod(one) for one in shapes_of(shapes)]
    return sizes[0] if len(sizes) == 1 else UNKNOWN


def _cached_bytes(shapes: str, types: str) -> int:
    sizes, widths = [math.prod(one) for one in shapes_of(shapes)], _widths(types)
    if len(sizes) < 3 or len(widths) < 3 or not widths[1]:
        return UNKNOWN
    return sizes[1] * widths[1] + sizes[2] * widths[2]


def _new_bytes(shapes: str, types: str) -> int:
    """Keys and values of as many tokens as there are queries; no more than all."""
    whole, read = _cached_bytes(shapes, types), shapes_of(shapes)
    if whole == UNKNOWN or not read[1] or not read[1][0]:
        return UNKNOWN
    return whole // read[1][0] * min(read[0][0], read[1][0])
