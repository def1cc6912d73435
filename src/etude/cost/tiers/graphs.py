"""Graph networks whose features lie in storage: what is read and written in a pass, by how it is done.

- `gather`: for each part of the nodes, the pages that hold the features of its neighbours, through a cache of pages.
- `partitions`: the same by whole parts, as they are stored.
- `stream`: one pass over all features in their order, each sent to its neighbours; sums that wait for more messages
  are kept, and go to storage where they do not fit.

In training, what a part gathered is kept for the backward pass, in the same memory or, where that is full, in storage;
or it is gathered again.

A graph is drawn: each edge ends at any node, and begins in the same part with probability `locality`, else in one of
the parts up to `reach` away, or anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.cost.tiers.residency import held
from etude.cost.tiers.transfers import tier_of
from etude.errors import UsageError
from etude.machine.system import System
from etude.units import format_bytes

I64 = NDArray[np.int64]

READS: Final = ("gather", "partitions", "stream")
MOST_EDGES: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    nodes: int
    edges: int
    partitions: int
    feature_bytes: int
    locality: float = 0.5
    reach: int = 0
    """Parts that others are near; 0: all are."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.partitions <= self.nodes or self.nodes % self.partitions:
            raise UsageError(f"{self.nodes:,} nodes in {self.partitions:,} equal parts", hint="a divisor of the nodes")
        if not 0 < self.edges <= MOST_EDGES or self.feature_bytes < 1 or not 0 <= self.locality <= 1:
            raise UsageError(f"{self.edges:,} edges, features of {self.feature_bytes:,} B, locality {self.locality:g}",
                             hint=f"1 to {MOST_EDGES:,} edges; a larger graph by its ratios")  # fmt: skip

    def drawn(self) -> tuple[I64, I64]:
        """(source, target) of each edge."""
        rng, size = np.random.default_rng(self.seed), self.nodes // self.partitions
        target = rng.integers(0, self.nodes, self.edges)
        near = target // size * size + rng.integers(0, size, self.edges)
        far = rng.integers(0, self.nodes, self.edges)
        if self.reach:
            away = rng.integers(1, self.reach + 1, self.edges) * rng.choice([-1, 1], self.edges)
            far = (near + away * size) % self.nodes
        return np.where(rng.random(self.edges) < self.locality, near, far), target


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Bytes of all layers, forward and, in training, backward."""

    read_bytes: int
    written_bytes: int
    used_bytes: int
    """Features of neighbours, each counted once for each part that needs it."""
    gathered_bytes: int
    """Those of one layer."""
    spilled_bytes: int = 0
    """What was kept and did not fit: written, and read again."""

    @property
    def amplification(self) -> float:
        return self.read_bytes / self.used_bytes

    def time_ns(self, system: System, tier: str) -> float:
        place = tier_of(system, tier)
        return self.read_bytes * 1e9 / place.read_bytes_per_s + self.written_bytes * 1e9 / place.write_bytes_per_s


def out_of_core(
    graph: Graph, *, layers: int, room_bytes: int, read: str, policy: str = "lru", page_bytes: int = 0,
    train: bool = False, regather: bool = False,
) -> Pass:  # fmt: skip
    """`room_bytes` of the host hold features, or sums that wait. Results of a layer are written once, and are the
    features of the next."""
    if read not in READS:
        raise UsageError(f"no such way to read `{read}`", hint=f"known: {', '.join(READS)}")
    if train and read == "stream":
        raise UsageError("a stream of features is of inference", hint="--read partitions with --train")
    source, target = graph.drawn()
    size = graph.nodes // graph.partitions
    pairs = np.unique(target // size * graph.nodes + source)  # part that needs it, node
    gathered = len(pairs) * graph.feature_bytes
    results = layers * graph.nodes * graph.feature_bytes
    if read == "stream":
        spilled = layers * _spilled(graph, source, target, room_bytes)
        once = layers * graph.nodes * graph.feature_bytes
        return Pass(read_bytes=once + spilled, written_bytes=results + spilled, used_bytes=layers * gathered,
                    gathered_bytes=gathered, spilled_bytes=spilled)  # fmt: skip
    nodes_each = size if read == "partitions" else max((page_bytes or 4096) // graph.feature_bytes, 1)
    need = np.unique(pairs // graph.nodes * graph.nodes + pairs % graph.nodes // nodes_each)
    item_bytes, count = nodes_each * graph.feature_bytes, -(-graph.nodes // nodes_each)
    if item_bytes > room_bytes:
        raise UsageError(f"{'a part' if read == 'partitions' else 'a page'} of {format_bytes(item_bytes)} does not fit "
                         f"{format_bytes(room_bytes)}", hint="more room, or smaller parts")  # fmt: skip
    kept = np.bincount(pairs // graph.nodes, minlength=graph.partitions) * graph.feature_bytes
    walk = _walk(graph, need, count, layers, item_bytes, kept if train and not regather else None)
    if train and regather:
        again = np.concatenate([need % graph.nodes + layer * count for layer in reversed(range(layers))])
        walk = _Walk(*(np.append(a, b) for a, b in zip(walk, _reads(again, item_bytes), strict=True)))
    fits = walk.size <= room_bytes
    found = held(walk.item[fits], walk.size[fits], room_bytes, policy, walk.makes[fits])
    missed = found.missed & ~walk.makes[fits]
    spilled = int(walk.size[fits][found.is_dirty & walk.makes[fits]].sum()) + int(walk.size[~fits & walk.makes].sum())
    misses = int(walk.size[fits][missed].sum()) + int(walk.size[~fits & ~walk.makes].sum())
    passes = layers * (2 if train else 1)
    return Pass(read_bytes=misses, written_bytes=results + spilled, used_bytes=passes * gathered,
                gathered_bytes=gathered, spilled_bytes=spilled)  # fmt: skip


class _Walk(NamedTuple):
    """Accesses in their order."""

    item: I64
    size: I64
    makes: NDArray[np.bool_]


def _reads(items: I64, item_bytes: int) -> _Walk:
    return _Walk(items, np.full(len(items), item_bytes), np.zeros(len(items), bool))


def _walk(graph: Graph, need: I64, count: int, layers: int, item_bytes: int, kept: I64 | None) -> _Walk:
    """Forward, part by part and layer by layer; `kept`: bytes that each part made and needs again, the last first."""
    part, parts = need // graph.nodes, np.arange(graph.partitions)
    found = [_reads(np.zeros(0, np.int64), item_bytes)]
    for layer in range(layers):
        reads = _reads(need % graph.nodes + layer * count, item_bytes)
        if kept is not None:  # behind the reads of each part
            made = (layers * count + layer * graph.partitions + parts, kept, np.ones(graph.partitions, bool))
            order = np.argsort(np.append(part * 2, parts * 2 + 1), kind="stable")
            reads = _Walk(*(np.append(a, b)[order] for a, b in zip(reads, made, strict=True)))
        found.append(reads)
    if kept is not None:
        back = layers * count + np.arange(layers * graph.partitions)[::-1]
        found.append(_Walk(back, np.tile(kept, layers)[::-1], np.zeros(len(back), bool)))
    return _Walk(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _spilled(graph: Graph, source: I64, target: I64, room_bytes: int) -> int:
    """Of one layer: messages come in the order of their sources; of sums that wait, those with the fewest messages to
    come leave first, and those that are complete leave for good."""
    if room_bytes < graph.feature_bytes:
        raise UsageError(
            f"a sum of {graph.feature_bytes:,} B does not fit {format_bytes(room_bytes)}", hint="more room"
        )
    items = target[np.argsort(source, kind="stable")]
    sizes = np.full(len(items), graph.feature_bytes)
    found = held(items, sizes, room_bytes, "min_pending", np.ones(len(items), bool))
    order = np.argsort(items, kind="stable")
    ordered = items[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    waits = np.zeros(len(items), bool)
    waits[order] = ~is_last
    return int((found.is_dirty & waits).sum()) * graph.feature_bytes
