"""What an InfraGraph leaves open, filled by its own Annotation message with our keys: docs/network.md has the list.

links: [{name: nvlink, attributes: [{attribute: etude.bandwidth, value: 450GB/s}]}]
nodes: [{name: "host[:]xpu[:]", attributes: [{attribute: etude.flops.bf16, value: 989T}]}]
graph: [{attribute: etude.latency, value: 500ns}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.base.units import parse_bandwidth, parse_bytes, parse_count, parse_time
from etude.machine.infragraph.graph import InfraGraph, vertex_kinds
from etude.machine.topology import Topology, VertexKind, topology_of

OURS = "etude."
GRAPH_KEYS = ("etude.latency",)
LINK_KEYS = ("etude.bandwidth", "etude.latency")
NODE_KEYS = ("etude.rank", "etude.kind", "etude.forwards")
FIGURES = {
    "etude.memory": parse_bytes,
    "etude.memory_bandwidth": parse_bandwidth,
    "etude.launch": parse_time,
    "etude.power_w": parse_count,
}
FLOPS = "etude.flops."
"""Followed by a data type: `etude.flops.bf16`."""


@dataclass(frozen=True, slots=True, eq=False)
class AnnotatedTopology:
    """A topology, and what the annotations say about the device of each rank: `flops.bf16`, `memory`, ..."""

    topology: Topology
    figures: tuple[Mapping[str, int], ...]
    figure_of: NDArray[np.int32]

    def device(self, rank: int) -> Mapping[str, int]:
        """FLOP/s, bytes, bytes per second, ns and W of the rank's device, as far as given."""
        return self.figures[self.figure_of[rank]]


def cluster_of(graph: InfraGraph, annotation: Mapping[str, Any] | None = None) -> AnnotatedTopology:
    """The directed topology of an InfraGraph. Refuses links without a rate or latency."""
    notes = annotation or {}
    rate, latency = _links(graph, notes)
    kind, forwards, rank, figures = _nodes(graph, notes)
    _edges(graph, notes, rate, latency)
    device = _devices(graph, kind, rank)
    _refuse_open(graph, rate, latency)
    topology = topology_of(
        graph.name or "infragraph",
        kind=kind,
        forwards=_forwards(graph, kind, forwards),
        src=np.concatenate((graph.a, graph.b)),
        dst=np.concatenate((graph.b, graph.a)),
        bytes_per_s=np.tile(rate, 2),
        latency_ns=np.tile(np.rint(latency).astype(np.int64), 2),
        link_type=np.tile(graph.link, 2),
        link_names=tuple(link.name for link in graph.links) or ("",),
        device=device,
        vertex_name=graph,
    )
    distinct = {tuple(sorted(f.items())): f for f in figures.values()} or {(): {}}
    distinct.setdefault((), {})
    at = {key: i for i, key in enumerate(distinct)}
    which = [at[tuple(sorted(figures.get(int(v), {}).items()))] for v in device] if figures else [at[()]] * len(device)
    return AnnotatedTopology(topology, tuple(distinct.values()), np.array(which, np.int32))


def _links(graph: InfraGraph, notes: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rate = np.array([link.bytes_per_s for link in graph.links], np.float64)
    latency = np.array([link.latency_ns for link in graph.links], np.float64)
    for key, value in _attributes(notes.get("graph"), GRAPH_KEYS, "annotation of the graph"):
        latency[np.isnan(latency)] = _parsed(key, value, parse_time, "annotation of the graph")
    for entry in _entries(notes, "links"):
        name = str(entry.get("name", ""))
        where = f"annotation of link `{name}`"
        meant = [i for i, link in enumerate(graph.links) if link.name == name]
        if not meant:
            raise ClusterError("there is no such link", where=where)
        for key, value in _attributes(entry.get("attributes"), LINK_KEYS, where):
            if key == "etude.bandwidth":
                rate[meant] = _parsed(key, value, parse_bandwidth, where)
            else:
                latency[meant] = _parsed(key, value, parse_time, where)
    if not len(graph.link):
        return np.zeros(0), np.zeros(0)
    return rate[graph.link], latency[graph.link]


def _edges(
    graph: InfraGraph, notes: Mapping[str, Any], rate: NDArray[np.float64], latency: NDArray[np.float64]
) -> None:
    for entry in _entries(notes, "edges"):
        ends = [str(entry.get(end, "")) for end in ("ep1", "ep2")]
        where = f"annotation of edge {ends[0]} - {ends[1]}"
        one, other = np.zeros(len(graph), np.bool_), np.zeros(len(graph), np.bool_)
        one[graph.find(ends[0], where)] = True
        other[graph.find(ends[1], where)] = True
        meant = (one[graph.a] & other[graph.b]) | (one[graph.b] & other[graph.a])
        if not meant.any():
            raise ClusterError("there is no such edge", where=where)
        for key, value in _attributes(entry.get("attributes"), LINK_KEYS, where):
            if key == "etude.bandwidth":
                rate[meant] = _parsed(key, value, parse_bandwidth, where)
            else:
                latency[meant] = _parsed(key, value, parse_time, where)


def _nodes(graph: InfraGraph, notes: Mapping[str, Any]) -> tuple[Any, dict[int, bool], dict[int, int], Any]:
    kind = vertex_kinds(graph).copy()
    forwards: dict[int, bool] = {}
    rank: dict[int, int] = {}
    figures: dict[int, dict[str, int]] = {}
    known = (*NODE_KEYS, "rank", *FIGURES)
    for entry in _entries(notes, "nodes"):
        where = f"annotation of node `{entry.get('name', '')}`"
        vertices = graph.find(str(entry.get("name", "")), where)
        for key, value in _attributes(entry.get("attributes"), known, where):
            if key in ("etude.rank", "rank"):
                rank |= dict(zip(vertices.tolist(), _ranks(value, len(vertices), where), strict=True))
            elif key == "etude.kind":
                kind[vertices] = _kind(value, where)
            elif key == "etude.forwards":
                forwards |= dict.fromkeys(vertices.tolist(), _yes(value, where))
            else:
                parse = FIGURES.get(key, parse_count)
                figure = int(_parsed(key, value, parse, where))
                for v in vertices.tolist():
                    figures.setdefault(v, {})[key.removeprefix(OURS)] = figure
    return kind, forwards, rank, figures


def _ranks(value: str, count: int, where: str) -> range:
    """One rank; or `8:` for several vertices, which then get 8, 9, ..."""
    try:
        first = int(value.removesuffix(":"))
    except ValueError:
        raise ClusterError(f"rank `{value}` is not a number", where=where) from None
    if count > 1 and not value.endswith(":"):
        raise ClusterError(
            f"{count} nodes cannot all be rank {first}", where=where, hint=f"`{first}:` numbers them from there"
        )
    return range(first, first + count)


def _kind(value: str, where: str) -> VertexKind:
    known = [k.name.lower() for k in VertexKind if k]
    if value not in known:
        raise ClusterError(f"unknown kind `{value}`", where=where, hint=f"known: {', '.join(known)}")
    return VertexKind[value.upper()]


def _yes(value: str, where: str) -> bool:
    if value not in ("true", "false"):
        raise ClusterError(f"`{value}` is neither true nor false", where=where)
    return value == "true"


def _forwards(graph: InfraGraph, kind: NDArray[np.uint8], given: Mapping[int, bool]) -> NDArray[np.bool_]:
    """Devices forward only if devices are connected directly: then nothing else can."""
    device = kind == VertexKind.DEVICE
    forwards = ~device
    direct = device[graph.a] & device[graph.b]
    forwards[graph.a[direct]] = True
    forwards[graph.b[direct]] = True
    for vertex, yes in given.items():
        forwards[vertex] = yes
    return forwards


def _devices(graph: InfraGraph, kind: NDArray[np.uint8], rank: Mapping[int, int]) -> NDArray[np.int32]:
    where = f"infragraph `{graph.name}`"
    if not rank:
        device = np.flatnonzero(kind == VertexKind.DEVICE).astype(np.int32)
        if not len(device):
            raise ClusterError(
                "it has no devices (xpu)", where=where, hint="annotate its devices: `etude.kind` `device`"
            )
        return device
    device = np.full(len(rank), -1, np.int32)
    for vertex, r in rank.items():
        if not 0 <= r < len(rank) or device[r] >= 0:
            raise ClusterError(
                f"rank {r} of {graph(vertex)} appears twice, or is not in 0..{len(rank) - 1}", where=where
            )
        device[r] = vertex
    return device


def _refuse_open(graph: InfraGraph, rate: NDArray[np.float64], latency: NDArray[np.float64]) -> None:
    where = f"infragraph `{graph.name}`"
    for values, what, key in ((rate, "bandwidth", "etude.bandwidth"), (latency, "latency", "etude.latency")):
        left = np.unique(graph.link[np.isnan(values)])
        if not len(left):
            continue
        links = [graph.links[i] for i in left]
        link = links[0]
        unit = f" in bytes or bits, only in {link.unit}" if what == "bandwidth" and link.unit else ""
        owner = f" of device `{link.owner}`" if link.owner else ""
        others = f"; nor have {', '.join(f'`{o.name}`' for o in links[1:])}" if len(links) > 1 else ""
        example = "450GB/s" if what == "bandwidth" else "500ns"
        hint = f"annotate it: links: [{{name: {link.name}, attributes: [{{attribute: {key}, value: {example}}}]}}]"
        raise ClusterError(f"link `{link.name}`{owner} has no {what}{unit}{others}", where=where, hint=hint)


def _entries(notes: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    entries = notes.get(section) or []
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        raise ClusterError(f"`{section}` is not a list of mappings", where="annotation")
    return entries


def _attributes(given: Any, known: tuple[str, ...], where: str) -> Iterator[tuple[str, str]]:
    """Pairs with our keys; keys of others are ignored, an unknown one of ours is refused."""
    if not isinstance(given or [], list):
        raise ClusterError("`attributes` is not a list", where=where)
    for pair in given or []:
        if not isinstance(pair, Mapping) or "attribute" not in pair:
            raise ClusterError("an attribute has no `attribute`", where=where)
        key, value = str(pair["attribute"]), pair.get("value", "")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key in known or (key.startswith(FLOPS) and "etude.rank" in known):
            yield key, text
        elif key.startswith(OURS):
            raise ClusterError(f"unknown key `{key}`", where=where, hint=f"known: {', '.join(known)}")


def _parsed(key: str, value: str, parse: Any, where: str) -> float:
    try:
        figure = parse(value)
    except UsageError as problem:
        raise ClusterError(f"{key}: {problem.problem}", where=where, hint=problem.hint) from None
    if figure <= 0 and key not in ("etude.latency", "etude.launch"):
        raise ClusterError(f"{key} is `{value}`, but must be positive", where=where)
    return float(figure)
