"""Graph networks whose features are in storage: what is read and written in a pass, by method.

- `gather`: for each part of the nodes, the pages that hold the features of its neighbours, through a cache of pages.
- `partitions`: the same by whole parts, as they are stored.
- `stream`: one pass over all features in their order, each sent to its neighbours; sums that wait for more messages
  are kept, and go to storage where they do not fit.

In training, what a part gathered is kept for the backward pass, in the same memory or, where that is full, in storage;
or it is gathered again.

A graph is read from a file, or drawn: each edge ends at any node, and begins in the same part with probability
`locality`, else in one of the parts up to `reach` away, or anywhere. With an `exponent` both ends are drawn by weights
that fall off as a power of their rank, so that degrees do as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.cost.tiers.graph_parts import GraphEdges, Parted, parted, read_edges
from etude.cost.tiers.residency import held
from etude.kernels.arrays import I64

READS: Final = ("gather", "partitions", "stream")
MOST_EDGES: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGraph:
    nodes: int
    edges: int
    partitions: int
    feature_bytes: int
    locality: float = 0.5
    reach: int = 0
    """Parts that are near each part; 0: all."""
    exponent: float = 0.0
    """Exponent of the degree distribution, above 2; 0: all nodes equal."""
    shuffle: bool = False
    """Numbers of nodes are unrelated to their parts."""
    partitioner: str = "order"
    seed: int = 0
    given: GraphEdges | None = None
    """Used instead of a drawn graph."""

    def __post_init__(self) -> None:
        if not 0 < self.partitions <= self.nodes or self.nodes % self.partitions:
            raise UsageError(
                f"{self.nodes:,} nodes in {self.partitions:,} equal parts", hint="use a divisor of the number of nodes"
            )
        if not 0 < self.edges <= MOST_EDGES or self.feature_bytes < 1 or not 0 <= self.locality <= 1:
            problem = f"{self.edges:,} edges, features of {self.feature_bytes:,} B, locality {self.locality:g}"
            raise UsageError(problem, hint=f"1 to {MOST_EDGES:,} edges; a larger graph by its ratios")
        if self.exponent and not self.exponent > 2:
            raise UsageError(
                f"an exponent of degrees of {self.exponent:g}", hint="above 2, or 0: all nodes have the same degree"
            )

    @classmethod
    def read(cls, path: Path, *, partitions: int, **more: Any) -> FeatureGraph:
        """The graph of a file; nodes without edges fill up the last part."""
        edges = read_edges(path)
        nodes = int(max(edges.source.max(), edges.target.max())) + 1
        whole = ceil(nodes / partitions) * partitions
        return cls(nodes=whole, edges=len(edges.source), partitions=partitions, given=edges, **more)

    @property
    def size(self) -> int:
        """Nodes of a part."""
        return self.nodes // self.partitions

    @property
    def parted(self) -> Parted:
        if self.given is None:
            return _drawn(self)
        return parted(self.given, self.nodes, self.partitions, self.partitioner)

    @property
    def inside(self) -> float:
        """The fraction of the edges inside a part."""
        source, target = self.parted.edges
        return float((source // self.size == target // self.size).mean())

    def drawn(self) -> tuple[I64, I64]:
        """(source, target) of each edge."""
        rng = np.random.default_rng(self.seed)
        source, target = self._by_degree(rng) if self.exponent else self._alike(rng)
        if self.shuffle:
            number = rng.permutation(self.nodes)
            return number[source], number[target]
        return source, target

    def _alike(self, rng: np.random.Generator) -> tuple[I64, I64]:
        size = self.size
        target = rng.integers(0, self.nodes, self.edges)
        near = target // size * size + rng.integers(0, size, self.edges)
        far = rng.integers(0, self.nodes, self.edges)
        if self.reach:
            away = rng.integers(1, self.reach + 1, self.edges) * rng.choice([-1, 1], self.edges)
            far = (near + away * size) % self.nodes
        return np.where(rng.random(self.edges) < self.locality, near, far), target

    def _by_degree(self, rng: np.random.Generator) -> tuple[I64, I64]:
        weight = rng.permutation(np.arange(1, self.nodes + 1) ** (-1 / (self.exponent - 1)))
        up_to = np.append(0, np.cumsum(weight))

        def drawn(first: I64 | int, last: I64 | int) -> I64:
            at = up_to[first] + rng.random(self.edges) * (up_to[last] - up_to[first])
            return np.clip(np.searchsorted(up_to, at, side="right") - 1, first, np.asarray(last) - 1)

        target = drawn(0, self.nodes)
        begin = target // self.size * self.size
        is_far = rng.random(self.edges) >= self.locality
        if not self.reach:
            return np.where(is_far, drawn(0, self.nodes), drawn(begin, begin + self.size)), target
        away = rng.integers(1, self.reach + 1, self.edges) * rng.choice([-1, 1], self.edges)
        begin = np.where(is_far, begin + away * self.size, begin) % self.nodes
        return drawn(begin, begin + self.size), target


@lru_cache(maxsize=2)
def _drawn(graph: FeatureGraph) -> Parted:
    """Cached: studies use one graph many times."""
    return parted(GraphEdges(*graph.drawn()), graph.nodes, graph.partitions, graph.partitioner)


class TurnWork(NamedTuple):
    """The work of each turn: a part of a layer, or, for a stream, as many nodes as a part has."""

    read_bytes: I64
    written_bytes: I64
    gathered: I64
    """Nodes whose features are read."""
    edges: I64
    nodes: I64
    """Nodes whose results are computed."""
    is_backward: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPass:
    """All layers, forward and, in training, backward."""

    used_bytes: int
    """Features of neighbours, each counted once for each part that needs it."""
    gathered_bytes: int
    """Gathered bytes of one layer."""
    spilled_bytes: int = 0
    """Bytes kept for the backward pass that did not fit: written, and read again."""
    partitioner_bytes: int = 0
    """Memory of the partitioner."""
    steps: TurnWork
    turns: int
    """Turns of a layer."""
    feature_bytes: int
    item_bytes: int
    """Bytes of a request to the tier."""
    is_stream: bool = False

    @property
    def read_bytes(self) -> int:
        return int(self.steps.read_bytes.sum())

    @property
    def written_bytes(self) -> int:
        return int(self.steps.written_bytes.sum())

    @property
    def width(self) -> int:
        """Numbers of two bytes in a node's features, and in its results."""
        return max(self.feature_bytes // 2, 1)

    @property
    def amplification(self) -> float:
        return self.read_bytes / self.used_bytes


def out_of_core(
    graph: FeatureGraph, *, layers: int, room_bytes: int, read: str, policy: str = "lru", page_bytes: int = 0,
    train: bool = False, regather: bool = False,
) -> GraphPass:  # fmt: skip
    """`room_bytes` of the host hold features, or sums that wait. Results of a layer are written once, and are the
    features of the next."""
    if read not in READS:
        raise UsageError(f"unknown method of reading `{read}`", hint=f"known: {', '.join(READS)}")
    if train and read == "stream":
        raise UsageError("a stream of features applies only to inference", hint="--read partitions with --train")
    (source, target), partitioner_bytes = graph.parted
    pairs = np.unique(target // graph.size * graph.nodes + source)  # part that needs it, node
    gathered = np.bincount(pairs // graph.nodes, minlength=graph.partitions)
    passes = layers * (2 if train else 1)
    facts: dict[str, Any] = {
        "used_bytes": passes * len(pairs) * graph.feature_bytes,
        "gathered_bytes": len(pairs) * graph.feature_bytes,
        "partitioner_bytes": partitioner_bytes,
        "turns": graph.partitions,
        "feature_bytes": graph.feature_bytes,
    }
    if read == "stream":
        one = _streamed(graph, source, target, room_bytes)
        spilled = layers * int(one.read_bytes.sum() - graph.nodes * graph.feature_bytes)
        columns: Any = [np.tile(column, layers) for column in one]
        steps = TurnWork(*columns)
        item_bytes = graph.size * graph.feature_bytes
        return GraphPass(spilled_bytes=spilled, steps=steps, item_bytes=item_bytes, is_stream=True, **facts)
    nodes_each = graph.size if read == "partitions" else max((page_bytes or 4096) // graph.feature_bytes, 1)
    need = np.unique(pairs // graph.nodes * graph.nodes + pairs % graph.nodes // nodes_each)
    item_bytes, count = nodes_each * graph.feature_bytes, -(-graph.nodes // nodes_each)
    if item_bytes > room_bytes:
        raise UsageError(
            f"{'a part' if read == 'partitions' else 'a page'} of {format_bytes(item_bytes)} does not fit "
            f"{format_bytes(room_bytes)}",
            hint="use more memory, or smaller parts",
        )
    walk = _walk(graph, need, count, layers, item_bytes, gathered * graph.feature_bytes, train, regather)
    fits = walk.size <= room_bytes
    some = _Accesses(walk.item[fits], walk.size[fits], walk.makes[fits], walk.turn[fits])
    found = held(some.item, some.size, room_bytes, policy, some.makes)
    turns = passes * graph.partitions
    misses = np.append(np.flatnonzero(fits)[found.missed & ~some.makes], np.flatnonzero(~fits & ~walk.makes))
    gone = np.flatnonzero(found.is_dirty & some.makes)  # written when something else takes its place
    never = ~fits & walk.makes
    spilled_at = _sums(some.turn[found.gone_at[gone]], some.size[gone], turns)
    spilled_at += _sums(walk.turn[never], walk.size[never], turns)
    results = np.zeros(turns, np.int64)
    results[: layers * graph.partitions] = graph.size * graph.feature_bytes
    part = np.tile(np.arange(graph.partitions), passes)
    if train and not regather:
        part[layers * graph.partitions :] = np.tile(np.arange(graph.partitions)[::-1], layers)
    steps = TurnWork(
        read_bytes=_sums(walk.turn[misses], walk.size[misses], turns),
        written_bytes=results + spilled_at,
        gathered=gathered[part],
        edges=np.bincount(target // graph.size, minlength=graph.partitions)[part],
        nodes=np.full(turns, graph.size),
        is_backward=np.arange(turns) >= layers * graph.partitions,
    )
    return GraphPass(spilled_bytes=int(spilled_at.sum()), steps=steps, item_bytes=item_bytes, **facts)


def _sums(at: I64, values: I64, count: int) -> I64:
    found = np.zeros(count, np.int64)
    np.add.at(found, at, values)
    return found


class _Accesses(NamedTuple):
    """Accesses in their order."""

    item: I64
    size: I64
    makes: NDArray[np.bool_]
    turn: I64


def _reads(items: I64, item_bytes: int, turn: I64) -> _Accesses:
    return _Accesses(items, np.full(len(items), item_bytes), np.zeros(len(items), bool), turn)


def _walk(
    graph: FeatureGraph, need: I64, count: int, layers: int, item_bytes: int, kept: I64, train: bool, regather: bool
) -> _Accesses:
    """Forward, part by part and layer by layer; in training what each part produced (`kept` bytes) is needed again, the
    last first, or the features once more."""
    part, parts = need // graph.nodes, np.arange(graph.partitions)
    found = [_reads(np.zeros(0, np.int64), item_bytes, np.zeros(0, np.int64))]
    for layer in range(layers):
        reads = _reads(need % graph.nodes + layer * count, item_bytes, layer * graph.partitions + part)
        if train and not regather:  # behind the reads of each part
            turn = layer * graph.partitions + parts
            made = _Accesses(layers * count + turn, kept, np.ones(graph.partitions, bool), turn)
            order = np.argsort(np.append(part * 2, parts * 2 + 1), kind="stable")
            reads = _Accesses(*(np.append(a, b)[order] for a, b in zip(reads, made, strict=True)))
        found.append(reads)
    first = layers * graph.partitions
    if train and not regather:
        back = np.arange(first)[::-1]
        found.append(
            _Accesses(
                layers * count + back, np.tile(kept, layers)[::-1], np.zeros(first, bool), first + np.arange(first)
            )
        )
    elif train:
        for layer in reversed(range(layers)):
            turn = first + (layers - 1 - layer) * graph.partitions + part
            found.append(_reads(need % graph.nodes + layer * count, item_bytes, turn))
    return _Accesses(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _streamed(graph: FeatureGraph, source: I64, target: I64, room_bytes: int) -> TurnWork:
    """One layer: messages arrive in the order of their sources; among waiting sums, those with the fewest remaining
    messages are evicted first, and complete ones leave for good. An evicted sum is read when its next message
    arrives."""
    if room_bytes < graph.feature_bytes:
        raise UsageError(
            f"a sum of {graph.feature_bytes:,} B does not fit {format_bytes(room_bytes)}", hint="more room"
        )
    order = np.argsort(source, kind="stable")
    items, turn = target[order], source[order] // graph.size
    sizes = np.full(len(items), graph.feature_bytes)
    found = held(items, sizes, room_bytes, "min_pending", np.ones(len(items), bool))
    by_item = np.argsort(items, kind="stable")
    starts = np.append(True, np.diff(items[by_item]) != 0)
    is_first, is_last = np.zeros(len(items), bool), np.zeros(len(items), bool)
    is_first[by_item], is_last[by_item] = starts, np.append(starts[1:], True)
    out, back = found.is_dirty & ~is_last, found.missed & ~is_first
    done = np.bincount(turn[is_last], minlength=graph.partitions)
    alone = np.setdiff1d(np.arange(graph.nodes), items)  # without a message: done when they are read
    done += np.bincount(alone // graph.size, minlength=graph.partitions)
    each, size = np.full(graph.partitions, graph.size), graph.feature_bytes
    return TurnWork(
        read_bytes=(each + np.bincount(turn[back], minlength=graph.partitions)) * size,
        written_bytes=(done + np.bincount(turn[found.gone_at[out]], minlength=graph.partitions)) * size,
        gathered=each,
        edges=np.bincount(turn, minlength=graph.partitions),
        nodes=done,
        is_backward=np.zeros(graph.partitions, bool),
    )
