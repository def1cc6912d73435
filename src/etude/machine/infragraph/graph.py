"""InfraGraph: a system of systems in six messages (Infrastructure, Device, Component, Link, Edge, Instance), expanded
by arithmetic. `etude.machine.infragraph.files` reads the files; docs/network.md lists the annotation keys.

The vertex of component j of instance copy i is first + i * size(device) + offset(component) + j, so names are made only
when someone asks. What the format leaves open (a link without bandwidth or latency, a rate in transfers) is refused
when a topology is asked for, unless an annotation fills it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError
from etude.kernels.arrays import I32, I64
from etude.machine.topology import VertexKind

SCHEMES = ("one2one", "many2many", "ring")
_KIND = {
    "xpu": VertexKind.DEVICE,
    "switch": VertexKind.SWITCH,
    "nic": VertexKind.NIC,
    "port": VertexKind.PORT,
    "cpu": VertexKind.CPU,
    "memory": VertexKind.MEMORY,
}
_GBIT, _GBYTE = 1e9 / 8, 1e9
_BANDWIDTH = {"gigabits_per_second": _GBIT, "gigabytes_per_second": _GBYTE}
_LATENCY = {"ms": 1e6, "us": 1e3, "ns": 1.0}
_PART = re.compile(r"\.?([^\[\].]+)(?:\[([^\]]*)\]|\.([0-9]+)(?![^.\[]))?")
MAX_VERTICES = 2**27
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class LinkType:
    """A named link; NaN if not in the file."""

    name: str
    owner: str
    """The device it is defined in; empty for the infrastructure's own."""
    bytes_per_s: float
    latency_ns: float
    unit: str
    """Unit of the bandwidth in the file, empty if there is none."""


@dataclass(slots=True)
class DeviceType:
    """A device, with nested devices flattened: component c has `count` copies of `stride` vertices from `offset` on."""

    name: str
    size: int = 0
    components: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    """name -> (offset, count, stride, type); type `device` is a nested device of that name."""
    kinds: list[tuple[int, int, str]] = field(default_factory=list)
    """(first vertex, count, type) of every run, including nested ones."""
    a: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    b: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    link: I64 = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class InfraGraph:
    """The expanded graph: vertices and undirected edges a[i] - b[i] of link type link[i], each pair once."""

    name: str
    instances: tuple[tuple[str, str, int, int], ...]
    """(name, device, copies, first vertex)."""
    devices: Mapping[str, DeviceType]
    type_code: NDArray[np.uint16]
    types: tuple[str, ...]
    a: I32
    b: I32
    link: I32
    links: tuple[LinkType, ...]

    def __len__(self) -> int:
        """Number of vertices."""
        return len(self.type_code)

    def type_of(self, vertex: int) -> str:
        return self.types[self.type_code[vertex]]

    def __call__(self, vertex: int) -> str:
        """The vertex's name: `host.0.xpu.3`."""
        firsts = [first for _, _, _, first in self.instances]
        name, device, _, first = self.instances[int(np.searchsorted(firsts, vertex, side="right")) - 1]
        copy, rest = divmod(vertex - first, self.devices[device].size)
        parts = [f"{name}.{copy}"]
        while True:
            part, (offset, _, stride, kind) = next(
                (part, row)
                for part, row in self.devices[device].components.items()
                if row[0] <= rest < row[0] + row[1] * row[2]
            )
            copy, rest = divmod(rest - offset, stride)
            parts.append(f"{part}.{copy}")
            if kind != "device":
                return ".".join(parts)
            device = part

    def find(self, text: str, where: str = "") -> I64:
        """Vertices of `host.0.xpu.3`, `host[0:2]xpu[:]` or `host[:].xpu[0]`; without brackets all."""
        parts = _parts(text, where)
        known = {name: (device, count, first) for name, device, count, first in self.instances}
        if parts[0][0] not in known:
            raise ClusterError(f"`{text}`: there is no instance `{parts[0][0]}`", where=where)
        device, count, first = known[parts[0][0]]
        copies = first + _indices(parts[0][1], count, text, where) * self.devices[device].size
        return (copies[:, None] + _inside(self.devices, device, parts[1:], text, where)).ravel()


def expand(document: Mapping[str, Any]) -> InfraGraph:
    """All vertices and edges of an Infrastructure document."""
    where = f"infragraph `{document.get('name', '')}`"
    links: list[LinkType] = []
    listed = {_text(d, "name", where): d for d in _list(document, "devices", where)}
    devices: dict[str, DeviceType] = {}
    for name in listed:
        _device(name, listed, devices, links, ())
    instances, first = [], 0
    for entry in _list(document, "instances", where):
        name, device, count = _text(entry, "name", where), _text(entry, "device", where), _count(entry, where)
        if device not in devices:
            raise ClusterError(f"instance `{name}` is of device `{device}`, which does not exist", where=where)
        instances.append((name, device, count, first))
        first += count * devices[device].size
        if first > MAX_VERTICES:
            raise ClusterError(f"it expands to more than {MAX_VERTICES} vertices", where=where)
    graph = _with_kinds(str(document.get("name", "")), tuple(instances), devices, first)
    own = _links(_list(document, "links", where), "", links, where)
    a, b, link = _all_edges(graph, _list(document, "edges", where), own, where)
    a, b, link = _each_pair_once(a, b, link, len(graph), tuple(links), graph)
    return InfraGraph(
        graph.name, graph.instances, devices, graph.type_code, graph.types,
        a.astype(np.int32), b.astype(np.int32), link.astype(np.int32), tuple(links),
    )  # fmt: skip


def _with_kinds(
    name: str, instances: tuple[tuple[str, str, int, int], ...], devices: Mapping[str, DeviceType], vertices: int
) -> InfraGraph:
    code = np.zeros(vertices, np.uint16)
    types: dict[str, int] = {}
    for _, device, count, first in instances:
        size = devices[device].size
        one = np.zeros(size, np.uint16)
        for offset, length, kind in devices[device].kinds:
            one[offset : offset + length] = types.setdefault(kind, len(types))
        code[first : first + count * size] = np.tile(one, count)
    none = np.zeros(0, np.int32)
    return InfraGraph(name, instances, devices, code, tuple(types), none, none, none, ())


# --- devices ---------------------------------------------------------------------------------------------------------


def _device(
    name: str,
    listed: Mapping[str, Mapping[str, Any]],
    devices: dict[str, DeviceType],
    links: list[LinkType],
    above: tuple[str, ...],
) -> DeviceType:
    if name in devices:
        return devices[name]
    where = f"device `{name}`"
    if name in above or len(above) > _MAX_DEPTH:
        raise ClusterError(f"it contains itself: {' > '.join((*above, name))}", where=where)
    made, inner = DeviceType(name), []
    for entry in _list(listed[name], "components", where):
        part, count = _text(entry, "name", where), _count(entry, where)
        kind = _component_type(entry, where)
        stride = 1
        if kind == "device":
            if part not in listed:
                raise ClusterError(f"component `{part}` is a device that does not exist", where=where)
            nested = _device(part, listed, devices, links, (*above, name))
            stride = nested.size
            inner.append((nested, count, made.size))
        if part in made.components:
            raise ClusterError(f"two components have the name `{part}`", where=where)
        made.components[part] = (made.size, count, stride, kind)
        if kind != "device":
            made.kinds.append((made.size, count, kind))
        made.size += count * stride
        if made.size > MAX_VERTICES:
            raise ClusterError(f"it has more than {MAX_VERTICES} vertices", where=where)
    devices[name] = made
    own = _links(_list(listed[name], "links", where), name, links, where)
    _device_edges(made, _list(listed[name], "edges", where), own, inner, devices)
    return made


def _component_type(entry: Mapping[str, Any], where: str) -> str:
    choice = _text(entry, "choice", where)
    if choice == "custom":
        custom = entry.get("custom")
        return str(custom.get("type", "custom")) if isinstance(custom, Mapping) else "custom"
    if choice != "device" and choice not in _KIND:
        known = ", ".join(["custom", "device", *_KIND])
        raise ClusterError(
            f"component `{entry['name']}`: unknown choice `{choice}`", where=where, hint=f"known: {known}"
        )
    return choice


def _device_edges(
    made: DeviceType,
    entries: Sequence[Mapping[str, Any]],
    own: Mapping[str, int],
    inner: Sequence[tuple[DeviceType, int, int]],
    devices: Mapping[str, DeviceType],
) -> None:
    where = f"device `{made.name}`"
    a, b, link = [], [], []
    for nested, count, offset in inner:
        for part in nested.kinds:
            made.kinds += [(offset + i * nested.size + part[0], part[1], part[2]) for i in range(count)]
        shift = offset + np.arange(count)[:, None] * nested.size
        a.append((nested.a + shift).ravel())
        b.append((nested.b + shift).ravel())
        link.append(np.tile(nested.link, count))
    for at, entry in enumerate(entries):
        here = f"{where}: edge {at}"
        ends = []
        for end in ("ep1", "ep2"):
            point = _mapping(entry, end, here)
            text = _text(point, "component", here)
            if point.get("device"):
                text = f"{point['device']}.{text}"
            ends.append(_inside(devices, made.name, _parts(text, here), text, here))
        pair = _joined(ends[0], ends[1], _scheme(entry, here), here)
        a.append(pair[0])
        b.append(pair[1])
        link.append(np.full(len(pair[0]), _link_of(entry, own, here), np.int64))
    if a:
        made.a, made.b, made.link = np.concatenate(a), np.concatenate(b), np.concatenate(link)


# --- edges -----------------------------------------------------------------------------------------------------------


def _all_edges(
    graph: InfraGraph, entries: Sequence[Mapping[str, Any]], own: Mapping[str, int], where: str
) -> tuple[I64, I64, I64]:
    a, b, link = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for _, device, count, first in graph.instances:
        made = graph.devices[device]
        shift = first + np.arange(count)[:, None] * made.size
        a.append((made.a + shift).ravel())
        b.append((made.b + shift).ravel())
        link.append(np.tile(made.link, count))
    find = _Finder(graph)
    # Fabrics list their edges one by one: single vertices stay plain numbers until all of them are there.
    one_a: list[int] = []
    one_b: list[int] = []
    one_link: list[int] = []
    for at, entry in enumerate(entries):
        try:
            ep1, ep2, name = entry["ep1"], entry["ep2"], own[entry["link"]]
            x = find(ep1["instance"], ep1["component"])
            y = find(ep2["instance"], ep2["component"])
            scheme = entry.get("scheme", "one2one")
        except (KeyError, TypeError):
            raise _bad_edge(entry, own, f"{where}: edge {at}") from None
        if type(x) is int and type(y) is int and scheme != "ring":
            one_a.append(x)
            one_b.append(y)
            one_link.append(name)
        else:
            pair = _joined(np.atleast_1d(x), np.atleast_1d(y), _scheme(entry, where), f"{where}: edge {at}")
            a.append(pair[0])
            b.append(pair[1])
            link.append(np.full(len(pair[0]), name, np.int64))
    single = np.array([one_a, one_b, one_link], np.int64)
    single = single[:, single[0] != single[1]]
    return np.concatenate([*a, single[0]]), np.concatenate([*b, single[1]]), np.concatenate([*link, single[2]])


class _Finder:
    """Endpoint -> vertices; caches both halves of it, which repeat thousands of times."""

    def __init__(self, graph: InfraGraph) -> None:
        self.graph = graph
        self.known = {name: (device, count, first) for name, device, count, first in graph.instances}
        self.copies: dict[str, tuple[str, Any]] = {}
        self.inside: dict[tuple[str, str], Any] = {}

    def __call__(self, instance: str, component: str) -> Any:
        found = self.copies.get(instance)
        if found is None:
            found = self.copies[instance] = self._copies(instance)
        device, copies = found
        inside = self.inside.get((device, component))
        if inside is None:
            parts = _parts(component, instance)
            vertices = _inside(self.graph.devices, device, parts, component, f"instance `{instance}`")
            inside = self.inside[device, component] = int(vertices[0]) if len(vertices) == 1 else vertices
        if type(copies) is int and type(inside) is int:
            return copies + inside
        return (np.atleast_1d(copies)[:, None] + np.atleast_1d(inside)).ravel()

    def _copies(self, text: str) -> tuple[str, Any]:
        [(name, index), *more] = _parts(text, "")
        if name not in self.known or more:
            raise ClusterError(f"there is no instance `{text}`", hint=f"known: {', '.join(self.known)}")
        device, count, first = self.known[name]
        copies = first + _indices(index, count, text, f"instance `{name}`") * self.graph.devices[device].size
        return device, int(copies[0]) if len(copies) == 1 else copies


def _joined(x: I64, y: I64, scheme: str, where: str) -> tuple[I64, I64]:
    """one2one pairs them up to the shorter, many2many takes all pairs, ring closes ep1 followed by ep2 to a cycle."""
    if scheme == "one2one":
        length = min(len(x), len(y))
        a, b = x[:length], y[:length]
    elif scheme == "many2many":
        if len(x) * len(y) > MAX_VERTICES:
            raise ClusterError(f"it joins {len(x)} with {len(y)} vertices, all to all", where=where)
        a, b = np.repeat(x, len(y)), np.tile(y, len(x))
    else:
        around = np.array(list(dict.fromkeys(np.concatenate((x, y)).tolist())), np.int64)
        a, b = around, np.roll(around, -1)
        if len(around) == 2:
            a, b = a[:1], b[:1]
    other = a != b
    return a[other], b[other]


def _each_pair_once(
    a: I64, b: I64, link: I64, vertices: int, links: tuple[LinkType, ...], graph: InfraGraph
) -> tuple[I64, I64, I64]:
    """The graph is simple: duplicate edges are merged. Two different links between one pair are refused."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    key = low * max(vertices, 1) + high
    order = np.lexsort((link, key))
    key, kind = key[order], link[order]
    same = np.flatnonzero((key[1:] == key[:-1]) & (kind[1:] != kind[:-1]))
    if len(same):
        at = order[same[0]]
        names = f"`{links[kind[same[0]]].name}` and `{links[kind[same[0] + 1]].name}`"
        raise ClusterError(
            f"{graph(int(a[at]))} and {graph(int(b[at]))} are joined by {names}, of which InfraGraph keeps only one",
            hint="keep one edge, and give it the bandwidth of both",
        )
    keep = np.sort(order[np.flatnonzero(np.diff(key, prepend=-1))])
    return a[keep], b[keep], link[keep]


# --- small parts -----------------------------------------------------------------------------------------------------


def _links(entries: Sequence[Mapping[str, Any]], owner: str, links: list[LinkType], where: str) -> dict[str, int]:
    own = {}
    for entry in entries:
        name = _text(entry, "name", where)
        physical = entry.get("physical") or {}
        if not isinstance(physical, Mapping):
            raise ClusterError("`physical` is not keys and values", where=f"{where}: link `{name}`")
        rate, unit = _figure(physical.get("bandwidth"), _BANDWIDTH, f"{where}: link `{name}`")
        latency, _ = _figure(physical.get("latency"), _LATENCY, f"{where}: link `{name}`")
        own[name] = len(links)
        links.append(LinkType(name, owner, rate, latency, unit))
    return own


def _figure(given: Any, scales: Mapping[str, float], where: str) -> tuple[float, str]:
    """(value, unit): NaN without a unit if nothing is given, NaN if the unit has no scale."""
    if not isinstance(given, Mapping):
        return float("nan"), ""
    units = [k for k in given if k != "choice"]
    unit = str(given.get("choice") or (units[0] if units else ""))
    if given.get(unit) is None:
        return float("nan"), ""
    try:
        value = float(given[unit])
    except (TypeError, ValueError):
        raise ClusterError(f"{unit} is `{given[unit]}`, which is not a number", where=where) from None
    return value * scales.get(unit, float("nan")), unit


def _link_of(entry: Mapping[str, Any], own: Mapping[str, int], where: str) -> int:
    name = _text(entry, "link", where)
    if name not in own:
        known = ", ".join(own) or "none"
        raise ClusterError(f"link `{name}` is not defined here", where=where, hint=f"known: {known}")
    return own[name]


def _bad_edge(entry: Any, own: Mapping[str, int], where: str) -> ClusterError:
    """Parses a broken edge slowly, to report what is wrong with it."""
    if not isinstance(entry, Mapping):
        return ClusterError("is not a mapping", where=where)
    try:
        for end in ("ep1", "ep2"):
            for part in ("instance", "component"):
                _text(_mapping(entry, end, where), part, where)
        _link_of(entry, own, where)
    except ClusterError as problem:
        return problem
    return ClusterError("cannot be read", where=where)


def _scheme(entry: Mapping[str, Any], where: str) -> str:
    scheme = entry.get("scheme", "one2one")
    if scheme not in SCHEMES:
        raise ClusterError(f"unknown scheme `{scheme}`", where=where, hint=f"known: {', '.join(SCHEMES)}")
    return str(scheme)


def _parts(text: str, where: str) -> list[tuple[str, str | None]]:
    """`host[0:2]xpu[3]`, `cx5[0].port` or `host.0.xpu.3` as (name, index or None)."""
    found, at = [], 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise ClusterError(f"`{text}` does not name a component", where=where, hint="write for example xpu[0:8]")
        found.append((match[1], match[3] if match[2] is None else match[2]))
        at = match.end()
    if not found:
        raise ClusterError("a component has no name", where=where)
    return found


def _inside(
    devices: Mapping[str, DeviceType], device: str, parts: Sequence[tuple[str, str | None]], text: str, where: str
) -> I64:
    vertices = np.zeros(1, np.int64)
    kind = "device"
    for name, index in parts:
        components = devices[device].components if kind == "device" else {}
        if name not in components:
            known = ", ".join(components) or "none"
            raise ClusterError(f"`{text}`: there is no component `{name}`", where=where, hint=f"known: {known}")
        offset, count, stride, kind = components[name]
        copies = offset + _indices(index, count, text, where) * stride
        vertices = (vertices[:, None] + copies).ravel()
        device = name
    if kind == "device":
        raise ClusterError(f"`{text}` names a device, not a component in it", where=where)
    return vertices


def _indices(index: str | None, count: int, text: str, where: str) -> I64:
    """A Python slice: the end is exclusive. A single index outside is refused; slices are cut, as in Python."""
    if index is None or index.strip() == "":
        return np.arange(count)
    try:
        parts = [int(p) if p.strip() else None for p in index.split(":")]
        if len(parts) == 1 and parts[0] is not None:
            at = parts[0] + count if parts[0] < 0 else parts[0]
            if not 0 <= at < count:
                raise ClusterError(f"`{text}`: index {parts[0]} is outside 0..{count - 1}", where=where)
            return np.array([at])
        return np.arange(count)[slice(*parts)]
    except (ValueError, TypeError):
        raise ClusterError(f"`{text}`: `[{index}]` is not a slice", where=where, hint="for example [0:8]") from None


def _list(given: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = given.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ClusterError(f"`{key}` is not a list", where=where)
    return value


def _mapping(given: Any, key: str, where: str) -> Mapping[str, Any]:
    value = given.get(key) if isinstance(given, Mapping) else None
    if not isinstance(value, Mapping):
        raise ClusterError(f"`{key}` is missing or not a mapping", where=where)
    return value


def _text(given: Any, key: str, where: str) -> str:
    value = given.get(key) if isinstance(given, Mapping) else None
    if not isinstance(value, str) or not value:
        raise ClusterError(f"`{key}` is missing", where=where)
    return value


def _count(given: Mapping[str, Any], where: str) -> int:
    value = given.get("count")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ClusterError(f"`{given.get('name', '')}`: count is `{value}`", where=where)
    return value


def vertex_kinds(graph: InfraGraph) -> NDArray[np.uint8]:
    kinds = np.array([int(_KIND.get(name, VertexKind.OTHER)) for name in graph.types] or [0], np.uint8)
    return kinds[graph.type_code]
