"""offload: what selected nodes need is in a tier of memory below the device's, and is loaded before they run.

offload what=weights to=host prefetch=1               each product's weights, while the product before it runs
offload what=weights by=layer                         a layer's at once, while the layer before it runs
offload what=weights policy=belady room=8GB           with room for some of them, which stay as the policy says
offload what=activations module=layers.*              results of forward work, stored and loaded again for the backward
offload what=optimizer                                state that is read and written back
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.cost.tiers.residency import POLICIES, AccessOutcome, held
from etude.kernels.arrays import I64, Bool
from etude.make.transform.edits.below import Below, asked_tier
from etude.make.transform.edits.definition import (
    Definition,
    Freed,
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
from etude.make.transform.edits.needed import CLASSES, Needed, Users, by_layer, needed
from etude.make.transform.rewrite.rewriting import AFTER, BEFORE, free_stream
from etude.model.memory import named
from etude.model.schema import Kind, Why

STREAM: Final = "stream"
"""No policy: a loaded item is dropped after its node."""
LAYER: Final = "layer"
LAYERED: Final = ("weights", "experts", "optimizer")
"""Items that a layer can load at once."""


class TierPath(NamedTuple):
    """The path between the device and the tier."""

    read: float
    write: float
    """Bytes per ns."""
    read_latency_ns: float
    write_latency_ns: float


def rewrite(
    here: Here, what: str, to: str, part: float, by: str, prefetch: int, policy: str, room: int, size: int,
    rate: float | None, latency: int,
) -> None:  # fmt: skip
    if part > 1:
        raise UsageError(f"part={part:g} of the bytes", hint="from 0 to 1")
    if by == LAYER and what not in LAYERED:
        raise UsageError(f"by=layer with what={what}", hint=f"by=layer needs one of {', '.join(LAYERED)}")
    whole = needed(here, what, size)
    if not whole.load_bytes.any() and not whole.write_bytes.any():
        here.note(f"offload: none of the selected nodes needs {what}")
        return
    users = Users(whole.row, np.arange(len(whole.row)))
    if by == LAYER:
        whole, users = by_layer(here.trace, whole)
    found, names = whole.scaled(part), _Tensors(here, what, users)
    names.stay(whole, found)
    if not part:
        names.write()
        here.freed.append(Freed(what, here.ranks, 0))
        return
    way = _way(here, to, rate, latency)
    if rate is None:
        here.below.append(Below(what, to, here.ranks, _below_bytes(here, what, found)))
    kept = _kept(here, found, policy, room)
    loads = np.flatnonzero(kept.missed & ~found.makes & (found.load_bytes > 0))
    stores = np.flatnonzero((found.write_bytes > 0) & (kept.is_dirty | (what == "kv")))  # a cache is written through
    load = _load(here, found, users, way, loads, prefetch)
    store = _store(here, found, way, stores)
    _order(here, found, kept, (loads, load), (stores, store))
    names.move(found, kept, (loads, load), (stores, store))
    names.write()
    here.freed.append(Freed(what, here.ranks, _freed_bytes(here, what, found, kept, loads, prefetch, room)))


def _kept(here: Here, found: Needed, policy: str, room: int) -> AccessOutcome:
    if policy == STREAM:
        if room:
            raise UsageError("room needs a policy", hint=f"policy={'|'.join(POLICIES)}")
        n = len(found.row)
        return AccessOutcome(~found.makes, np.arange(n), found.write_bytes > 0)
    if not room:
        raise UsageError(f"policy={policy} needs a room", hint="room=8GB, of the device's memory")
    memory = here.system.device.memory_bytes if here.system is not None else 0
    if memory and room > memory:
        raise UsageError(f"a room of {format_bytes(room)} in a device of {format_bytes(memory)}", hint="use less room")
    return held(found.item, found.hold_bytes, room, policy, found.write_bytes > 0)


def _way(here: Here, to: str, given: float | None, latency_ns: int) -> TierPath:
    if given is not None:
        return TierPath(given, given, latency_ns, latency_ns)
    tier = asked_tier(here.system, to, "rate=55GB/s")
    part, more = tier.part(here.beside) / 1e9, float(latency_ns)
    if tier.part(here.beside) < 1:
        here.note(f"offload: {here.beside} ranks at a time share the rates of `{to}`")
    read, write = tier.read_bytes_per_s * part, tier.write_bytes_per_s * part
    return TierPath(read, write, tier.latency_ns + more, tier.write_latency_ns + more)


def _below_bytes(here: Here, what: str, found: Needed) -> int:
    """Bytes of one rank in the tier: every item once; for results those of a step."""
    steps = here.trace.step[found.row] if what == "activations" else np.zeros(len(found.row), np.int64)
    return max(int(found.largest(steps == step).sum()) for step in np.unique(steps).tolist())


def _freed_bytes(
    here: Here, what: str, found: Needed, kept: AccessOutcome, loads: I64, prefetch: int, room: int
) -> int:
    """Bytes freed in the device: all items (for results, those of a micro-batch) minus what is there at once: the room,
    and for items without room the bytes of the running node and of those that are prefetched."""
    batch = np.stack([here.trace.step[found.row], here.trace.micro_batch[found.row]])
    one = (batch == batch[:, :1]).all(0) if what == "activations" else np.ones(len(found.row), bool)
    total = int(found.largest(one).sum())
    if room:  # items that pass through have separate buffers
        loads, total = loads[kept.gone_at[loads] == loads], total - room
    ahead = np.append(0, np.cumsum(found.hold_bytes[loads]))
    window = ahead[prefetch + 1 :] - ahead[: -prefetch - 1] if len(loads) > prefetch else ahead[-1:]
    return max(total - int(window.max()), 0)


def _load(here: Here, found: Needed, users: Users, way: TierPath, loads: I64, prefetch: int) -> I64:
    """Adds a load before each of these accesses: after the previous load, and after the node whose buffer it takes."""
    made, user, size_bytes = here.made, found.row[loads], found.load_bytes[loads]
    took = rounded(way.read_latency_ns + size_bytes / way.read, up=True)
    nodes = made.add(user, BEFORE, "load", kind=int(Kind.MEM_LOAD), tensor_bytes=size_bytes, duration_ns=took, cpu=0,
                     stream=free_stream(here.trace))  # fmt: skip
    load_of = np.full(len(found.row), -1, np.int64)
    load_of[loads] = nodes
    waits = load_of[users.access] >= 0
    made.wait(users.row[waits], load_of[users.access[waits]])
    made.wait(nodes[1:], nodes[:-1], Why.STREAM, data=False)
    _, first, turn = np.unique(user, return_index=True, return_inverse=True)
    ends = found.last[loads[first]]
    late = np.flatnonzero(turn > prefetch)
    made.wait(nodes[late], ends[turn[late] - prefetch - 1], Why.PROGRAM, data=False)
    return nodes


def _store(here: Here, found: Needed, way: TierPath, stores: I64) -> I64:
    if not len(stores):
        return stores
    source, size_bytes = found.last[stores], found.write_bytes[stores]
    took = rounded(way.write_latency_ns + size_bytes / way.write, up=True)
    nodes = here.made.add(source, AFTER, "store", kind=int(Kind.MEM_STORE), tensor_bytes=size_bytes, duration_ns=took,
                          cpu=0, stream=free_stream(here.trace) + 1)  # fmt: skip
    here.made.wait(nodes, source)
    return nodes


def _order(here: Here, found: Needed, kept: AccessOutcome, loads: tuple[I64, I64], stores: tuple[I64, I64]) -> None:
    """A load waits for the last store of its item, and for the item that it evicts: the node that used that last, and
    its store. A node whose result takes a place waits for that store too."""
    made, n = here.made, len(found.row)
    load_of, store_of = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    load_of[loads[0]], store_of[stores[0]] = loads[1], stores[1]
    if len(stores[0]):
        order = np.lexsort((np.arange(n), found.item))
        last = np.maximum.accumulate(np.where(store_of[order] >= 0, np.arange(n), -1))
        before = np.append(-1, last[:-1])
        there = (before >= 0) & (load_of[order] >= 0)
        there &= found.item[order[np.maximum(before, 0)]] == found.item[order]
        made.wait(load_of[order[there]], store_of[order[before[there]]])
    gone = np.flatnonzero((kept.gone_at >= 0) & (kept.gone_at != np.arange(n)))
    taker = kept.gone_at[gone]
    loaded = load_of[taker] >= 0
    made.wait(load_of[taker[loaded]], found.last[gone[loaded]], Why.PROGRAM, data=False)
    stored = store_of[gone] >= 0
    takes = np.where(loaded, load_of[taker], found.row[taker])[stored]
    made.wait(takes, store_of[gone[stored]], Why.PROGRAM, data=False)


# -- what is in the device ---------------------------------------------------------------------------------------------


class _Tensors:
    """Accesses as tensors that nodes name: a load outputs one, its users read it, so that a run shows the memory in
    use."""

    def __init__(self, here: Here, what: str, users: Users) -> None:
        self._made, self._users, self._count = here.made, users, 0
        # Of its own for each edit: by the stream of its loads, and if it has none by the first node that it is of.
        self._prefix = f"{what}.{free_stream(here.trace)}.{here.trace.source_id[users.row[0]]}."
        self._said: dict[str, list[tuple[I64, I64, I64]]] = {"inputs": [], "outputs": []}
        """(node, tensor, bytes)"""

    def _say(self, side: str, node: I64, tensor: I64, size_bytes: I64) -> None:
        self._said[side].append((node, tensor, size_bytes))

    def _take(self, access: Bool, tensor: I64, size_bytes: I64) -> None:
        """The nodes of these accesses read the tensor of each."""
        row, at = self._users.row[access[self._users.access]], self._users.access[access[self._users.access]]
        self._say("inputs", row, tensor[at], size_bytes[at])

    def stay(self, whole: Needed, found: Needed) -> None:
        """The part of each item that is not in the tier: always there, or from its producer on."""
        left = (whole.largest() - found.largest())[whole.item]
        there = left > 0
        tensor = self._count + whole.item
        self._count += int(whole.item.max(initial=-1)) + 1
        self._take(there & ~whole.makes, tensor, left)
        made = there & whole.makes
        self._say("outputs", whole.row[made], tensor[made], left[made])

    def move(self, found: Needed, kept: AccessOutcome, loads: tuple[I64, I64], stores: tuple[I64, I64]) -> None:
        """The other part, each time it is in the device: from the start of its load, or of its producer, to the end of
        the last user before its eviction, or of its store."""
        n, size = len(found.row), found.hold_bytes
        begins = kept.missed | found.makes
        order = np.lexsort((np.arange(n), found.item))
        tensor = np.empty(n, np.int64)
        tensor[order] = self._count + np.cumsum(begins[order]) - 1
        made = begins.copy()
        made[loads[0]] = False
        self._take(~made & ~self._stays(found, kept, tensor), tensor, size)
        self._say("outputs", loads[1], tensor[loads[0]], size[loads[0]])
        self._say("outputs", found.row[made], tensor[made], size[made])
        self._say("inputs", stores[1], tensor[stores[0]], size[stores[0]])
        # What goes for a load is there until that load begins: no less than until the load before it is over.
        gone = np.flatnonzero((kept.gone_at >= 0) & (kept.gone_at != np.arange(n)))
        turn = np.searchsorted(loads[0], kept.gone_at[gone])
        turn = np.where(np.append(loads[0], -1)[turn] == kept.gone_at[gone], turn, 0)
        gone, turn = gone[turn > 0], turn[turn > 0]
        self._say("inputs", loads[1][turn - 1], tensor[gone], size[gone])

    def _stays(self, found: Needed, kept: AccessOutcome, tensor: I64) -> Bool:
        """Accesses to items that are never evicted: they stay to the end, except results, which are no longer
        needed."""
        goes, results = np.zeros(int(tensor.max()) + 1, bool), np.zeros(int(tensor.max()) + 1, bool)
        goes[tensor[kept.gone_at >= 0]] = True
        results[tensor[found.makes]] = True
        return ~(goes | results)[tensor]

    def write(self) -> None:
        for side, said in self._said.items():
            node, tensor, size_bytes = (np.concatenate(column) for column in zip(*said, strict=True))
            self._made.extend(side, node, named(self._prefix, tensor, size_bytes))


EDIT = Definition(
    machine=lambda **_: True,
    doc="the data of selected nodes is in the tier `to`: loaded on its own stream, up to `prefetch` nodes ahead; new "
    "data is stored there; with `policy` and `room` some of it stays on the device",
    cannot="other traffic on the link to the host, except with `--share`; ranks of a host that load at different times",
    parameters={
        "what": Parameter(read=choice(*CLASSES), doc="weights, experts, features, activations, optimizer or kv"),
        "to": Parameter(read=str, default="host", doc="a tier of the system"),
        "part": Parameter(read=number(), default="1", doc="fraction of the bytes that is there: 0.5"),
        "by": Parameter(read=choice("node", LAYER), default="node", doc="unit of loading: a node or a layer"),
        "prefetch": Parameter(read=whole(0), default="1", doc="nodes (layers) loaded ahead; 0: after the previous one"),
        "policy": Parameter(read=choice(STREAM, *POLICIES), default=STREAM, doc=f"what stays: {', '.join(POLICIES)}"),
        "room": Parameter(read=size, default="0", doc="device memory for what stays: 8GB"),
        "size": Parameter(read=size, default="0", doc="bytes per node, if the job does not give them: 100MB"),
        "rate": Parameter(read=lambda text: None if text == "tier" else rate(text), default="tier", doc="55GB/s"),
        "latency": Parameter(read=time, default="0", doc="fixed time of a copy, in addition to that of the tier: 5us"),
    },
    selects="compute",
    tier="to",
    rewrite=rewrite,
)
