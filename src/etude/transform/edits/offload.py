"""offload: what selected nodes need lies in a tier of memory below the device's, and is loaded before they run.

offload what=weights to=host prefetch=1       each product's weights, while the product before it runs
offload what=activations module=layers.*      results of forward work, stored and loaded again for the backward pass
offload what=optimizer size=12GB              with the bytes where the job does not say them
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.cost.aten_inputs import listed, shapes_of, tensor_types, width_of
from etude.cost.ops import OpClass
from etude.cost.tiers.transfers import tier_of
from etude.cost.traces import ops_of
from etude.errors import ClusterError, UsageError
from etude.model.schema import UNKNOWN, Collective, Kind, Why
from etude.model.trace import Trace
from etude.transform.edits.compress import CLASSES as SENT
from etude.transform.edits.compress import tensor_classes
from etude.transform.edits.definition import (
    Definition,
    Here,
    Parameter,
    choice,
    number,
    rate,
    rounded,
    size,
    time,
    whole,
)
from etude.transform.edits.fuse import result_bytes
from etude.transform.edits.recompute import backward_of
from etude.transform.rewrite.rewriting import AFTER, BEFORE, free_stream

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

CLASSES: Final = {
    "weights": (OpClass.GEMM, OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM),
    "experts": (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM),
    "features": (OpClass.EMBEDDING,),
    "optimizer": (OpClass.OPTIMIZER,),
    "kv": (OpClass.ATTENTION, OpClass.ATTENTION_DECODE),
    "activations": (),
}
"""Which operators need it; activations are results of any."""
SAID: Final = ("weights", "experts", "features", "activations")
"""What a job's shapes say the bytes of."""
_MADE_OF_INPUTS: Final = "backward-weight"
"""The phase whose products have no weights: gradients of them, from activations."""


class Moved(NamedTuple):
    """Bytes that are loaded before the node `user[i]` runs, and stored behind `source[i]`, if that is not -1."""

    user: I64
    source: I64
    size_bytes: I64


class Way(NamedTuple):
    """Between the device and the tier."""

    read: float
    write: float
    """Bytes per ns."""
    read_latency_ns: float
    write_latency_ns: float
    capacity_bytes: int


def rewrite(
    here: Here, what: str, to: str, part: float, prefetch: int, size: int, rate: float | None, latency: int
) -> None:
    if not part:
        return
    moved = _moved(here, what, size)
    if not len(moved.user):
        here.note(f"offload: none of the selected nodes needs {what}")
        return
    moved = moved._replace(size_bytes=rounded(moved.size_bytes * part))
    if what in ("weights", "experts") and _gathers(here):
        here.note(f"offload: {what} are gathered from shards too; whole ones are loaded, on every rank")
    way = _way(here, to, rate, latency)
    _check_room(here.trace, what, to, moved, way)
    loads = _load(here, moved, way, prefetch)
    stored = np.flatnonzero(moved.source >= 0)
    if len(stored):
        stores = _store(here, moved, way, stored)
        later = moved.source[stored] != moved.user[stored]  # what is written back behind its own user is for later
        here.made.wait(loads[stored][later], stores[later])


def _gathers(here: Here) -> bool:
    """Do copies of the model gather weights?"""
    calls = np.flatnonzero(here.trace.collective == int(Collective.ALL_GATHER))
    return bool((tensor_classes(here, calls) == SENT.index("weights")).any())


def _moved(here: Here, what: str, given: int) -> Moved:
    trace, rows = here.trace, here.rows[here.trace.lane[here.rows] >= 0]
    rows = rows[trace.cpu[rows] != 1]
    if what == "activations":
        source, user = backward_of(trace, rows)
        size_bytes = np.full(len(source), given, np.int64) if given else result_bytes(trace)[source]
        return _known(what, Moved(user, source, size_bytes))
    if given and what in ("weights", "experts", "features"):  # the selector says which nodes
        return Moved(rows, np.full(len(rows), -1, np.int64), np.full(len(rows), given, np.int64))
    rows = rows[np.isin(ops_of(trace).op_class[rows], [int(one) for one in CLASSES[what]])]
    if not given and what not in SAID:
        raise UsageError(f"a job does not say the bytes of {what}", hint="size=12GB, for each node that needs them")
    if given:
        sizes = np.full(len(rows), given, np.int64)
    elif what == "features":
        sizes = result_bytes(trace)[rows]
    else:
        rows = rows[_has_weights(trace, rows, what)]
        sizes = _weight_bytes(trace, rows)
    source = rows if what == "optimizer" else np.full(len(rows), -1, np.int64)
    return _known(what, Moved(rows, source, sizes))


def _known(what: str, moved: Moved) -> Moved:
    if (moved.size_bytes == UNKNOWN).any():
        raise UsageError(f"the job does not say the bytes of {what}: some nodes have no shapes or data types",
                         hint="size=100MB, for each selected node")  # fmt: skip
    return moved


def _has_weights(trace: Trace, rows: I64, what: str) -> Bool:
    phases, words = trace.coded("phase")
    if (phases[rows] < 0).any():
        raise UsageError(f"the job does not say which products have {what}: it has no phases",
                         hint="size=100MB, for each selected node")  # fmt: skip
    return np.array([*(word != _MADE_OF_INPUTS for word in words), False])[phases[rows]]


def _weight_bytes(trace: Trace, rows: I64) -> I64:
    """Of the last input of each product."""
    (shape, shapes), (kind, kinds) = trace.coded("in_shapes"), trace.coded("in_types")
    pairs, which = np.unique(np.stack([shape[rows], kind[rows]], 1), axis=0, return_inverse=True)
    found = [UNKNOWN if s < 0 or k < 0 else _last_bytes(shapes[s], kinds[k]) for s, k in pairs.tolist()]
    return np.array(found or [UNKNOWN], np.int64)[which.reshape(-1)]


def _last_bytes(shapes: str, types: str) -> int:
    sizes = [math.prod(one) for one in shapes_of(shapes) if len(one) >= 2]
    widths = [width_of(name) for text in listed(types) for name in tensor_types(text)]
    return sizes[-1] * widths[-1] if len(sizes) >= 2 and widths and widths[-1] else UNKNOWN


def _way(here: Here, to: str, given: float | None, latency_ns: int) -> Way:
    if given is not None:
        return Way(given, given, latency_ns, latency_ns, 0)
    if here.system is None:
        raise UsageError(f"how fast `{to}` is read is not known", hint="--system h200-server, or rate=55GB/s")
    try:
        tier = tier_of(here.system, to)
    except ClusterError as problem:
        raise UsageError(problem.problem, hint=f"{problem.hint}; or rate=55GB/s") from None
    read, write = tier.read_bytes_per_s / 1e9, tier.write_bytes_per_s / 1e9
    more = float(latency_ns)
    return Way(read, write, tier.latency_ns + more, tier.write_latency_ns + more, tier.capacity_bytes)


def _check_room(trace: Trace, what: str, to: str, moved: Moved, way: Way) -> None:
    """What one rank has there: of weights those of a module once, of a module's results those of a step."""
    modules, _ = trace.coded("module")
    places = np.stack(
        [modules[moved.user], moved.size_bytes, moved.source if what == "activations" else moved.user * 0]
    )
    held = int(np.unique(places, axis=1)[1].sum())
    if way.capacity_bytes and held > way.capacity_bytes:
        raise UsageError(f"{what} of {held:,} B do not fit `{to}`, which has {way.capacity_bytes:,} B",
                         hint="part=0.5, or fewer modules")  # fmt: skip


def _load(here: Here, moved: Moved, way: Way, prefetch: int) -> I64:
    """A load before each user: behind the load before it, and behind the user whose buffer it takes."""
    made, order = here.made, np.lexsort((moved.source, moved.user))
    user, size_bytes = moved.user[order], moved.size_bytes[order]
    took = rounded(way.read_latency_ns + size_bytes / way.read, up=True)
    loads = made.add(user, BEFORE, "load", kind=int(Kind.MEM_LOAD), tensor_bytes=size_bytes, duration_ns=took, cpu=0,
                     stream=free_stream(here.trace))  # fmt: skip
    made.wait(user, loads)
    made.wait(loads[1:], loads[:-1], Why.STREAM, data=False)
    users, turn = np.unique(user, return_inverse=True)
    waits = np.flatnonzero(turn > prefetch)
    made.wait(loads[waits], users[turn[waits] - prefetch - 1], Why.PROGRAM, data=False)
    found = np.empty(len(loads), np.int64)
    found[order] = loads
    return found


def _store(here: Here, moved: Moved, way: Way, stored: I64) -> I64:
    source, size_bytes = moved.source[stored], moved.size_bytes[stored]
    took = rounded(way.write_latency_ns + size_bytes / way.write, up=True)
    stores = here.made.add(source, AFTER, "store", kind=int(Kind.MEM_STORE), tensor_bytes=size_bytes, duration_ns=took,
                           cpu=0, stream=free_stream(here.trace) + 1)  # fmt: skip
    here.made.wait(stores, source)
    return stores


EDIT = Definition(
    doc="what selected nodes need lies in the tier `to`: loaded on a stream of its own, up to `prefetch` nodes ahead; "
    "results of forward work and the optimizer's state are stored there too",
    cannot="the memory that it frees; shards of weights: whole ones are loaded; other traffic on the link to the host",
    parameters={
        "what": Parameter(read=choice(*CLASSES), doc="weights, experts, features, activations, optimizer or kv"),
        "to": Parameter(read=str, default="host", doc="a tier of the system"),
        "part": Parameter(read=number(), default="1", doc="of the bytes that lie there: 0.5"),
        "prefetch": Parameter(read=whole(0), default="1", doc="nodes ahead; 0: loads wait for the node before"),
        "size": Parameter(read=size, default="0", doc="for each node, where the job does not say them: 100MB"),
        "rate": Parameter(read=lambda text: None if text == "tier" else rate(text), default="tier", doc="55GB/s"),
        "latency": Parameter(read=time, default="0", doc="of a copy, beside that of the tier: 5us"),
    },
    selects="compute",
    rewrite=rewrite,
)  # fmt: skip
