"""Fabrics of switches: fat tree, rail-optimised Clos, dragonfly; and the graph of a System's levels.

Routes are searched: fewest hops, then widest, ECMP.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError
from etude.machine.ports import is_product, own_ports
from etude.machine.system import LINED, Level, LevelKind, System
from etude.machine.topology import Blocks, LinkList, Shape, Topology, VertexKind, Wire, product, topology_of


def _fabric(name: str, links: LinkList, runs: list[tuple[str, VertexKind, int]]) -> Topology:
    """Vertices in runs of (prefix, kind, count), devices first."""
    counts = [count for _, _, count in runs]
    first = np.cumsum([0, *counts])
    return topology_of(
        name,
        kind=np.repeat(np.array([kind for _, kind, _ in runs], np.uint8), counts),
        device=np.arange(counts[0], dtype=np.int32),
        vertex_name=Blocks(tuple(int(f) for f in first[:-1]), tuple(prefix for prefix, _, _ in runs)),
        **links.columns(),
    )


def _positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ClusterError(f"`{name}` is {count}, but must be at least 1")


def fat_tree(
    radix: int,
    wire: Wire,
    *,
    levels: int = 3,
    oversubscription: int = 1,
    devices: int | None = None,
    up: Wire | None = None,
) -> Topology:
    """A folded Clos of switches with `radix` ports.

    A leaf has radix / (1 + oversubscription) ports up and the rest down. Two levels: radix leaves, each joined to
    every spine. Three: radix pods of radix / 2 leaves. `devices` fills the first ports only; `up` is the wire between
    switches, `wire` by default.
    """
    _positive(radix=radix, oversubscription=oversubscription)
    if levels not in (1, 2, 3):
        raise ClusterError(f"a fat tree cannot have {levels} levels", hint="1, 2 or 3")
    if radix % (1 + oversubscription) or (levels == 3 and radix % 2):
        raise ClusterError(f"switches of {radix} ports cannot be split 1:{oversubscription}")
    ups = radix // (1 + oversubscription) if levels > 1 else 0
    downs, half, up = radix - ups, radix // 2, up or wire
    leaves = {1: 1, 2: radix, 3: radix * half}[levels]
    room = leaves * downs
    count = room if devices is None else devices
    if not 1 <= count <= room:
        raise ClusterError(f"{count} devices do not fit a fat tree that has room for {room}")
    links, device = LinkList(), np.arange(count)
    leaf0 = count
    links.add_both(device, leaf0 + device // downs, wire, "host")
    runs = [("device", VertexKind.DEVICE, count), ("leaf", VertexKind.SWITCH, leaves)]
    if levels == 2:
        leaf, spine = np.divmod(np.arange(leaves * ups), ups)
        links.add_both(leaf0 + leaf, leaf0 + leaves + spine, up, "spine")
        runs.append(("spine", VertexKind.SWITCH, ups))
    if levels == 3:
        aggregation0 = leaf0 + leaves
        leaf, above = np.divmod(np.arange(leaves * ups), ups)
        links.add_both(leaf0 + leaf, aggregation0 + leaf // half * ups + above, up, "aggregation")
        aggregation, port = np.divmod(np.arange(radix * ups * half), half)
        spine0 = aggregation0 + radix * ups
        links.add_both(aggregation0 + aggregation, spine0 + aggregation % ups * half + port, up, "spine")
        runs += [("aggregation", VertexKind.SWITCH, radix * ups), ("spine", VertexKind.SWITCH, ups * half)]
    return _fabric(f"fat tree {radix}x{levels}", links, runs)


def rail_clos(
    nodes: int,
    gpus_per_node: int,
    *,
    scale_up: Wire,
    scale_out: Wire,
    nodes_per_leaf: int = 32,
    spines: int = 8,
    host: Wire | None = None,
    up: Wire | None = None,
) -> Topology:
    """Nodes with one scale-up switch each; device i of a node has a NIC on the leaf of rail i.

    A leaf serves one rail of `nodes_per_leaf` nodes; leaves meet in `spines` (0: rails never meet). `host` is the wire
    between device and NIC (scale_out's rate by default), `up` that between leaf and spine.
    """
    _positive(nodes=nodes, gpus_per_node=gpus_per_node, nodes_per_leaf=nodes_per_leaf)
    links, count = LinkList(), nodes * gpus_per_node
    device = np.arange(count)
    node, rail = np.divmod(device, gpus_per_node)
    groups = -(-nodes // nodes_per_leaf)
    switch0, nic0 = count, count + nodes
    leaf0 = nic0 + count
    links.add_both(device, switch0 + node, scale_up, "scale-up")
    links.add_both(device, nic0 + device, host or scale_out, "host")
    links.add_both(nic0 + device, leaf0 + node // nodes_per_leaf * gpus_per_node + rail, scale_out, "rail")
    leaf, spine = np.divmod(np.arange(groups * gpus_per_node * spines), max(spines, 1))
    links.add_both(leaf0 + leaf, leaf0 + groups * gpus_per_node + spine, up or scale_out, "spine")
    runs = [
        ("device", VertexKind.DEVICE, count),
        ("node", VertexKind.SWITCH, nodes),
        ("nic", VertexKind.NIC, count),
        ("leaf", VertexKind.SWITCH, groups * gpus_per_node),
        ("spine", VertexKind.SWITCH, spines),
    ]
    return _fabric(f"rail clos {nodes}x{gpus_per_node}", links, runs)


def dragonfly(
    routers: int, devices: int, globals_: int, wire: Wire, *, local: Wire | None = None, far: Wire | None = None
) -> Topology:
    """a routers in a group, p devices and h links to other groups on each; a * h + 1 groups, each pair joined once."""
    _positive(routers=routers, devices=devices, globals_=globals_)
    a, p, h = routers, devices, globals_
    groups = a * h + 1
    links, count = LinkList(), groups * a * p
    device = np.arange(count)
    links.add_both(device, count + device // p, wire, "host")
    i, j = np.triu_indices(a, 1)
    group = np.arange(groups)[:, None] * a
    links.add_both(count + group + i, count + group + j, local or wire, "local")
    one, other = np.triu_indices(groups, 1)
    # A group lists its partners in order: the k-th is on its router k // h.
    links.add_both(count + one * a + (other - 1) // h, count + other * a + one // h, far or wire, "global")
    runs = [("device", VertexKind.DEVICE, count), ("router", VertexKind.SWITCH, groups * a)]
    return _fabric(f"dragonfly a={a} p={p} h={h}", links, runs)


def topology_of_system(system: System) -> Topology:
    """The graph of a System that comes as one, else that behind its levels.

    A level's bandwidth is that of one device, all its links together.

    Rings share it between both ways, full meshes between all peers. Where every switch but the innermost is a level of
    rails (or there is none), the levels are the dimensions of a product. Else they are a tree for each port of a
    device: `own_ports` says which levels begin a new port, and the others are reached through the switch below.
    """
    if system.topology is not None:
        return system.topology
    levels = system.levels
    if is_product(levels):
        core = {at: _core(level) for at, level in enumerate(levels) if level.oversubscription > 1}
        made = product([_dimension(level) for level in levels], split_ties=True, core=core)
    elif any(level.rails for level in levels):
        problem = "levels: rails cannot be combined with a switch for all"
        raise ClusterError(problem, where=f"system `{system.name}`", hint="`rails: true` on both")
    else:
        made = _Trees(system).topology()
    seats = np.array(system.placement or range(len(system)), np.int32)
    return replace(made, name=system.name, device=seats)


def _dimension(level: Level) -> tuple[Shape, int, Wire]:
    if level.oversubscription > 1 and level.kind != LevelKind.SWITCH:
        raise ClusterError(f"level `{level.name}`: oversubscription applies only to switches")
    rate, latency = level.bandwidth_bytes_per_s * level.efficiency, round(level.latency_ns)
    if level.kind == LevelKind.RING:
        return "ring", level.size, Wire(bytes_per_s=rate / (2 if level.size > 2 else 1), latency_ns=latency)
    if level.kind == LevelKind.MESH:
        return "mesh", level.size, Wire(bytes_per_s=rate / 2, latency_ns=latency)
    if level.kind == LevelKind.FULL:
        return "full", level.size, Wire(bytes_per_s=rate / max(level.size - 1, 1), latency_ns=latency)
    return "switch", level.size, Wire(bytes_per_s=rate, latency_ns=latency // 2)


def _core(level: Level) -> Wire:
    """Total rate across a switch of the level: the sum of its ports over the oversubscription."""
    rate = level.bandwidth_bytes_per_s * level.efficiency * level.size / level.oversubscription
    return Wire(bytes_per_s=rate, latency_ns=0)


class _Trees:
    """Trees of switches over the devices, one for each port of a device."""

    def __init__(self, system: System) -> None:
        self.system, self.count = system, len(system)
        self.links = LinkList()
        self.runs = [("device", VertexKind.DEVICE, self.count)]
        self.vertices = self.count

    def topology(self) -> Topology:
        below, top = 1, np.arange(self.count)  # the switch through which each unit is left
        before: Level | None = None
        hops = 0
        for level, own in zip(self.system.levels, own_ports(self.system.levels), strict=True):
            if own or before is None:
                more = self._more_hops(level, before, hops)
                top = self._port(level, below, more)
                hops = 2 + 2 * more + (_hops_between(level) if self._is_split(level, below) else 0)
            else:
                top = self._above(level, before, below, top)
                hops += _hops_between(level)
            below *= level.size
            before = level
        return _fabric(self.system.name, self.links, self.runs)

    def _more_hops(self, level: Level, before: Level | None, hops: int) -> int:
        """Hops that a port needs, so that no way over it is as short as those inside of a unit: ways have the fewest
        hops, and among equally short ones the widest."""
        if before is None or (hops <= 2 and level.rate_bytes_per_ns < before.rate_bytes_per_ns):
            return 0
        return hops // 2

    def _is_split(self, level: Level, below: int) -> bool:
        return level.kind != LevelKind.SWITCH or (level.oversubscription > 1 and below > 1)

    def _port(self, level: Level, below: int, more: int) -> NDArray[np.int64]:
        """A port of each device: to the switch of its group, or, if units are connected to one another or the level is
        oversubscribed, to a router of its unit. `more` vertices without latency lie before it. Returns the switches of
        the groups."""
        split = self._is_split(level, below)
        rate = level.bandwidth_bytes_per_s * level.efficiency
        wire = Wire(bytes_per_s=rate, latency_ns=round(level.latency_ns / (4 if split else 2)))
        units = self.count // below
        size = below if split else below * level.size
        first = self._add(f"{level.name} leaf" if split else level.name, self.count // size)
        device = np.arange(self.count)
        end = device
        for k in range(more):
            port = self._add(f"{level.name} port{k if more > 1 else ''}", self.count) + device
            self.links.add_both(end, port, replace(wire, latency_ns=0), level.name)
            end = port
        self.links.add_both(end, first + device // size, wire, level.name)
        if not split:
            return first + np.arange(self.count // size)
        return self._join(level, below, first + np.arange(units), level.latency_ns / 2)

    def _above(self, level: Level, before: Level, below: int, unit: NDArray[np.int64]) -> NDArray[np.int64]:
        """Connects the switches of the level below; units farther away have the additional latency."""
        return self._join(level, below, unit, max(level.latency_ns - before.latency_ns, 0.0))

    def _join(self, level: Level, below: int, unit: NDArray[np.int64], latency_ns: float) -> NDArray[np.int64]:
        """Connects units of `below` devices by a switch, in a ring or all to all. Returns the switches of the
        groups."""
        rate = level.bandwidth_bytes_per_s * level.efficiency * below / level.oversubscription
        if level.kind != LevelKind.SWITCH:
            _join_units(self.links, level, unit.reshape(-1, level.size), rate, round(latency_ns))
            return unit
        groups = len(unit) // level.size
        first = self._add(level.name, groups)
        up = Wire(bytes_per_s=rate, latency_ns=round(latency_ns / 2))
        self.links.add_both(unit, first + np.arange(len(unit)) // level.size, up, level.name)
        return first + np.arange(groups)

    def _add(self, name: str, count: int) -> int:
        """Adds this many switches; returns the first."""
        first = self.vertices
        self.runs.append((name, VertexKind.SWITCH, count))
        self.vertices += count
        return first


def _hops_between(level: Level) -> int:
    """Most links between the switches of two units of a level."""
    if level.kind == LevelKind.SWITCH:
        return 2
    return {LevelKind.RING: level.size // 2, LevelKind.MESH: level.size - 1}.get(level.kind, 1)


def _join_units(links: LinkList, level: Level, unit: NDArray[np.int64], rate: float, latency_ns: int) -> None:
    """Connects the units of each row, in a ring or all to all; all links of one carry `rate`."""
    n = level.size
    if level.kind in LINED:
        ring = level.kind == LevelKind.RING
        wire = Wire(bytes_per_s=rate / (1 if ring and n == 2 else 2), latency_ns=latency_ns)
        ends = np.arange(n if ring and n > 2 else n - 1)
        links.add_both(unit[:, ends], unit[:, (ends + 1) % n], wire, level.name)
        return
    i, j = np.triu_indices(n, 1)
    wire = Wire(bytes_per_s=rate / max(n - 1, 1), latency_ns=latency_ns)
    links.add_both(unit[:, i], unit[:, j], wire, level.name)
