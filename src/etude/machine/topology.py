"""Topology: what is wired to what. Directed links between vertices; a device is the vertex that a rank sits on.

    ring(8, Wire(bytes_per_s=50e9, latency_ns=500))       one dimension; also full, switch
    torus((4, 4, 4), wire)                                 rings in every dimension; mesh: lines, without wraps
    product([("ring", 4, a), ("full", 4, b), ("switch", 2, c)])

Rank r of a product has coordinates a1 + n1 * (a2 + n2 * a3 ...): the first dimension varies fastest. Every link is
one direction: full duplex is two links. `etude.machine.fabrics` builds fat trees, rail-optimised Clos and dragonflies,
`etude.machine.infragraph.graph` any graph; `etude.machine.routes` finds the ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError
from etude.kernels.arrays import F64, I32, I64, U8

Shape = Literal["ring", "full", "switch", "mesh"]
SHAPES: tuple[Shape, ...] = ("ring", "full", "switch", "mesh")


class VertexKind(IntEnum):
    NONE = 0
    DEVICE = 1
    SWITCH = 2
    NIC = 3
    PORT = 4
    CPU = 5
    MEMORY = 6
    OTHER = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What one direction of a connection can do."""

    bytes_per_s: float
    latency_ns: int = 500

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < float("inf"):
            raise ClusterError(f"link: bandwidth {self.bytes_per_s} B/s is not a positive number")
        if self.latency_ns < 0:
            raise ClusterError(f"link: latency {self.latency_ns} ns is negative")


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a product: every line of `size` devices along it is joined in this shape."""

    shape: Shape
    size: int
    first_link: int
    """Its links follow from here; `etude.machine.routes` knows their order."""
    split_ties: bool = False
    """For a ring: half of the pairs that are equally far both ways go down; otherwise all go up."""
    has_core: bool = False
    """For a switch: everything between its ports crosses one additional link."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Names of vertices in runs: those from `first[i]` on are `<prefix>.<k>`."""

    first: tuple[int, ...]
    prefix: tuple[str, ...]

    def __call__(self, vertex: int) -> str:
        block = int(np.searchsorted(np.array(self.first), vertex, side="right")) - 1
        return f"{self.prefix[block]}.{vertex - self.first[block]}"


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """What devices have in flight, as the first link of their ways. No search goes over these links."""

    way_ns: F64
    """Latencies of classes, ascending: a way belongs to the first that is as long, or to the last."""
    vertex: I32
    way: I64
    """Class of each window."""
    bytes_per_s: F64
    latency_ns: I64

    def on(self, src: I64, start: I64, links: I32, topology: Topology) -> tuple[I64, I32]:
        """Ways of vertices `src`, as `Routes.paths` finds them, through the windows."""
        number = np.full((len(topology.kind), len(self.way_ns)), -1, np.int32)
        number[self.vertex, self.way] = topology.wires + np.arange(len(self.vertex))
        along = np.append(0, np.cumsum(topology.latency_ns[links]))
        took = along[start[1:]] - along[start[:-1]]
        way = np.minimum(np.searchsorted(self.way_ns, took), len(self.way_ns) - 1)
        window = np.where(np.diff(start) > 0, number[src, way], -1)
        has = np.flatnonzero(window >= 0)
        return start + np.append(0, np.cumsum(window >= 0)), np.insert(links, start[has], window[has])


@dataclass(frozen=True, slots=True, eq=False)
class ForwardingTables:
    """The link by which each vertex sends on what is for a device: link[vertex, column[goal]], -1 where it has none."""

    column: I32
    link: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Link i goes from vertex src[i] to dst[i]; those that leave vertex v are out_link[out_start[v]:out_start[v + 1]].

    Rank r sits on vertex device[r]. A vertex that does not forward is only the beginning or the end of a way.
    """

    name: str
    kind: U8
    forwards: NDArray[np.bool_]
    src: I32
    dst: I32
    bytes_per_s: F64
    latency_ns: I64
    link_type: I32
    """Index in `link_names`."""
    link_names: tuple[str, ...]
    device: I32
    out_start: I64
    out_link: I32
    vertex_name: Callable[[int], str]
    dimensions: tuple[Dimension, ...] = ()
    """Dimensions of a product, which routes in dimension order; empty if routes are searched."""
    windows: Windows | None = None
    tables: ForwardingTables | None = None
    """Where they are given, ways are not searched."""

    def __post_init__(self) -> None:
        _check(self)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def wires(self) -> int:
        """Links that ways are searched on; windows follow them."""
        return len(self.src) - (len(self.windows.vertex) if self.windows else 0)

    def __len__(self) -> int:
        """Devices."""
        return len(self.device)

    def __repr__(self) -> str:
        return f"Topology(`{self.name}`: {len(self)} devices, {len(self.kind)} vertices, {len(self.src)} links)"

    def link_name(self, link: int) -> str:
        ends = f"{self.vertex_name(int(self.src[link]))} -> {self.vertex_name(int(self.dst[link]))}"
        kind = self.link_names[self.link_type[link]]
        return f"{kind}: {ends}" if kind else ends


def _check(topology: Topology) -> None:
    where, vertices = topology.name, len(topology.kind)
    if len(topology.device) == 0:
        raise ClusterError("it has no device", where=where)
    for name in ("src", "dst"):
        ends = getattr(topology, name)
        if len(ends) and not 0 <= ends.min() <= ends.max() < vertices:
            raise ClusterError(f"a link's `{name}` is not one of its {vertices} vertices", where=where)
    if not 0 <= topology.device.min() <= topology.device.max() < vertices:
        raise ClusterError(f"a rank is not on any of its {vertices} vertices", where=where)
    if len(np.unique(topology.device)) != len(topology.device):
        raise ClusterError("two ranks are on the same vertex", where=where)
    bad = np.flatnonzero(~((topology.bytes_per_s > 0) & np.isfinite(topology.bytes_per_s)))
    if len(bad):
        rate = topology.bytes_per_s[bad[0]]
        raise ClusterError(f"link {topology.link_name(bad[0])}: bandwidth {rate} B/s is not a positive number")
    bad = np.flatnonzero(topology.latency_ns < 0)
    if len(bad):
        raise ClusterError(f"link {topology.link_name(bad[0])}: latency {topology.latency_ns[bad[0]]} ns is negative")


def topology_of(name: str, *, kind: U8, src: I32, dst: I32, device: I32, **more: Any) -> Topology:
    """A Topology of any graph. Without `forwards`, all but devices forward."""
    order = np.argsort(src, kind="stable").astype(np.int32)
    out_start = np.zeros(len(kind) + 1, np.int64)
    if len(src) and src.min() >= 0 and src.max() < len(kind):  # else Topology refuses it
        np.cumsum(np.bincount(src, minlength=len(kind)), out=out_start[1:])
    more.setdefault("forwards", kind != VertexKind.DEVICE)
    more.setdefault("link_type", np.zeros(len(src), np.int32))
    more.setdefault("link_names", ("",))
    return Topology(name, kind=kind, src=src, dst=dst, device=device, out_start=out_start, out_link=order, **more)


def with_windows(topology: Topology, windows: Windows) -> Topology:
    count = len(windows.vertex)
    return replace(
        topology,
        src=np.append(topology.src, windows.vertex),
        dst=np.append(topology.dst, windows.vertex),
        bytes_per_s=np.append(topology.bytes_per_s, windows.bytes_per_s),
        latency_ns=np.append(topology.latency_ns, windows.latency_ns),
        link_type=np.append(topology.link_type, np.full(count, len(topology.link_names), np.int32)),
        link_names=(*topology.link_names, "in flight"),
        windows=windows,
    )


class LinkList:
    """Links gathered in runs, each with its wire."""

    def __init__(self) -> None:
        self.count = 0
        self.src: list[I64] = []
        self.dst: list[I64] = []
        self.wires: list[tuple[Wire, str, int]] = []

    def add(self, src: NDArray[Any], dst: NDArray[Any], wire: Wire, name: str = "") -> int:
        """One direction; returns the number of its first link."""
        first = self.count
        self.src.append(np.asarray(src, np.int64).ravel())
        self.dst.append(np.asarray(dst, np.int64).ravel())
        self.wires.append((wire, name, self.src[-1].size))
        self.count += self.src[-1].size
        return first

    def add_both(self, a: NDArray[Any], b: NDArray[Any], wire: Wire, name: str = "") -> None:
        self.add(a, b, wire, name)
        self.add(b, a, wire, name)

    def columns(self) -> dict[str, Any]:
        names = tuple(dict.fromkeys(name for _, name, _ in self.wires)) or ("",)
        length = [size for _, _, size in self.wires]
        empty = [np.zeros(0, np.int64)]
        return {
            "src": np.concatenate(self.src or empty).astype(np.int32),
            "dst": np.concatenate(self.dst or empty).astype(np.int32),
            "bytes_per_s": np.repeat(np.array([w.bytes_per_s for w, _, _ in self.wires], np.float64), length),
            "latency_ns": np.repeat(np.array([w.latency_ns for w, _, _ in self.wires], np.int64), length),
            "link_type": np.repeat(np.array([names.index(n) for _, n, _ in self.wires], np.int32), length),
            "link_names": names,
        }


def ring(size: int, wire: Wire) -> Topology:
    return product([("ring", size, wire)])


def full(size: int, wire: Wire) -> Topology:
    """Every device joined to every other."""
    return product([("full", size, wire)])


def switch(size: int, wire: Wire) -> Topology:
    """Devices around one switch; the wire is that between a device and the switch."""
    return product([("switch", size, wire)])


def torus(sizes: Sequence[int], wire: Wire) -> Topology:
    return product([("ring", size, wire) for size in sizes])


def mesh(sizes: Sequence[int], wire: Wire) -> Topology:
    """A torus without wraps."""
    return product([("mesh", size, wire) for size in sizes])


def product(
    dimensions: Sequence[tuple[Shape, int, Wire]], *, split_ties: bool = False, core: Mapping[int, Wire] | None = None
) -> Topology:
    """Devices in a grid; along each dimension, every line of them is joined in that dimension's shape.

    `split_ties` as in `Dimension`; `core[d]` is what all between the ports of a switch of dimension d goes over.
    """
    for at, (shape, size, _) in enumerate(dimensions):
        if shape not in SHAPES:
            raise ClusterError(f"dimension {at}: unknown shape `{shape}`", hint=f"known: {', '.join(SHAPES)}")
        if size < 1:
            raise ClusterError(f"dimension {at}: {size} devices", hint="each dimension needs at least one")
    devices = prod(size for _, size, _ in dimensions)
    links, made, vertices, names = LinkList(), [], devices, Blocks((0,), ("device",))
    step = 1
    for at, (shape, size, wire) in enumerate(dimensions):
        middle = (core or {}).get(at)
        made.append(Dimension(shape, size, links.count, split_ties, middle is not None))
        grid = Grid(shape, size, step, devices)
        switches = _add_dimension(links, grid, vertices, wire, f"dimension{at}", middle)
        if switches:
            names = Blocks((*names.first, vertices), (*names.prefix, f"switch{at}"))
        vertices += switches
        step *= size
    kind = np.full(vertices, VertexKind.SWITCH, np.uint8)
    kind[:devices] = VertexKind.DEVICE
    return topology_of(
        "x".join(f"{shape}{size}" for shape, size, _ in dimensions) or "one device",
        kind=kind,
        forwards=np.ones(vertices, np.bool_),
        device=np.arange(devices, dtype=np.int32),
        vertex_name=names,
        dimensions=tuple(made),
        **links.columns(),
    )


class Grid(NamedTuple):
    """One dimension of a grid of devices: neighbours along it are `step` apart."""

    shape: Shape
    size: int
    step: int
    devices: int


def _add_dimension(links: LinkList, grid: Grid, first_switch: int, wire: Wire, name: str, core: Wire | None) -> int:
    """Returns how many switches it adds. The order of the links is the one `routes.walk_product` relies on."""
    shape, size, step, devices = grid
    if size == 1:
        return 0
    device = np.arange(devices)
    along = device // step % size
    if shape == "switch":
        line, lines = device % step + device // (step * size) * step, devices // size
        out = first_switch + (lines if core else 0)  # what comes from the ports, and what goes to them
        links.add(device, first_switch + line, wire, name)
        links.add(out + line, device, wire, name)
        if core:
            links.add(first_switch + np.arange(lines), out + np.arange(lines), core, name)
        return lines * (2 if core else 1)
    if shape == "mesh":
        # Line by line: the links up, then the links down.
        begin = device[along == 0]
        up = begin[:, None] + np.arange(size - 1) * step
        links.add(np.hstack((up, up + step)), np.hstack((up + step, up)), wire, name)
        return 0
    ahead = np.array([1, size - 1] if shape == "ring" and size > 2 else range(1, size if shape == "full" else 2))
    to = device[:, None] + ((along[:, None] + ahead) % size - along[:, None]) * step
    links.add(np.repeat(device, len(ahead)), to, wire, name)
    return 0
