"""The topology of a node that NCCL writes (NCCL_TOPO_DUMP_FILE), as a graph of one or several such nodes.

Rates: of PCIe from `link_speed` and `link_width`, as NCCL counts them (16 GT/s on 16 lanes: 24 GB/s); of network cards
from `speed`, in Mbit/s; of NVLink from `count` times what NCCL takes for the GPU's generation (`sm`); between CPUs what
it takes for the vendor. The file has no latencies, and nothing beyond the cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

from etude.base.errors import ClusterError, FormatError
from etude.machine.dumps.graph import GraphBuilder
from etude.machine.topology import Topology, VertexKind, Wire

Element = ElementTree.Element

_PCI_MBIT: Final = {2.5: 1500, 5.0: 3000, 8.0: 6000, 16.0: 12000, 32.0: 24000, 64.0: 48000}
"""Mbit/s of a lane, by GT/s."""
_NVLINK_GB: Final = ((100, 40.1), (90, 20.6), (86, 12.0), (70, 20.0), (60, 18.0))
"""GB/s of one NVLink, from this compute capability on."""
_BETWEEN_CPUS_GB: Final = {"GenuineIntel": 10.0, "AuthenticAMD": 16.0}
_OTHER_CPUS_GB: Final = 6.0
_NVSWITCH = "0x068000"
_DEEPEST: Final = 64
"""Bridges of PCIe below one another."""
_MOST_NODES: Final = 1 << 14
_MOST: Final = 10**9
"""Largest number in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNodes:
    """How many such nodes, and what the file leaves open."""

    nodes: int = 1
    rails: bool = False
    """Card i of all nodes is on switch i, and these switches do not meet; else one switch joins all cards."""
    latency_ns: Mapping[str, int] | None = None
    """By kind of link: nvlink, pci, cpu, network."""


LATENCY_NS: Final = {"nvlink": 300, "pci": 500, "cpu": 500, "network": 1000}
"""Assumptions, for each link on the way."""


def read_nccl(text: str, name: str, asked: NcclNodes) -> Topology:
    if "<!DOCTYPE" in text:
        raise FormatError("has a DOCTYPE, which topologies do not have")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as problem:
        raise FormatError(f"is not XML: {problem}") from None
    if not 1 <= asked.nodes <= _MOST_NODES:
        raise ClusterError(f"{asked.nodes:,} nodes", hint=f"nodes: 2; up to {_MOST_NODES:,}")
    cpus = root.findall("cpu")
    if root.tag != "system" or not cpus:
        raise FormatError("is no topology of NCCL: expected a <system> with <cpu>", hint="NCCL_TOPO_DUMP_FILE=topo.xml")
    latency = {**LATENCY_NS, **(asked.latency_ns or {})}
    build, device = GraphBuilder(), list[int]()
    for node in range(asked.nodes):
        one = _Node(build, f"node{node}/" if asked.nodes > 1 else "", latency)
        device += one.add(cpus)
        one.to_network(asked.rails)
    if not device:
        raise ClusterError("has no gpu")
    return build.topology(name, device)


class _Node:
    """One node, and the network beyond its cards."""

    def __init__(self, build: GraphBuilder, prefix: str, latency: Mapping[str, int]) -> None:
        self.build, self.prefix, self.latency = build, prefix, latency
        self.at: dict[str, int] = {}
        self.gpus: list[tuple[int, int, Element]] = []
        self.cards: list[tuple[str, int, float]] = []

    def add(self, cpus: list[Element]) -> list[int]:
        """The node's devices in the order of ranks, or of `dev` where these are not given."""
        roots = list[int]()
        for cpu in cpus:
            vertex = self.build.vertex(f"{self.prefix}cpu.{cpu.get('numaid', len(roots))}", VertexKind.CPU)
            roots.append(vertex)
            self._below(cpu, vertex)
        rate = _BETWEEN_CPUS_GB.get(cpus[0].get("vendor", ""), _OTHER_CPUS_GB)
        for k, one in enumerate(roots):
            for other in roots[k + 1 :]:
                self.build.connect(one, other, self._wire(rate, "cpu"), "cpu")
        self._nvlinks()
        ranks = [rank for rank, _, _ in self.gpus]
        if twice := {rank for rank in ranks if ranks.count(rank) > 1}:
            raise ClusterError(f"several gpus have rank {min(twice)}")
        return [vertex for _, vertex, _ in sorted(self.gpus, key=lambda gpu: gpu[0])]

    def _below(self, parent: Element, above: int, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise FormatError(f"has more than {_DEEPEST} <pci> inside one another")
        for pci in parent.findall("pci"):
            busid = pci.get("busid", "")
            wire = self._wire(_pci_gb(pci), "pci")
            gpu, nics = pci.find("gpu"), list(_cards(pci))
            kind = VertexKind.DEVICE if gpu is not None else VertexKind.NIC if nics else VertexKind.PORT
            called = f"gpu.{gpu.get('dev')}" if gpu is not None else f"{'nic' if nics else 'pci'}.{busid}"
            vertex = self.build.vertex(f"{self.prefix}{called}", kind)
            self.at[busid.lower()] = vertex
            self.build.connect(vertex, above, wire, "pci")
            if gpu is not None:
                order = gpu.get("rank", gpu.get("dev", "0"))
                self.gpus.append((_whole(order, "gpu: rank"), vertex, gpu))
            for net in nics:
                self.cards.append((net.get("dev", "0"), vertex, _whole(net.get("speed", ""), "net: speed") / 8000))
            self._below(pci, vertex, depth + 1)

    def _nvlinks(self) -> None:
        switch, done = -1, set[tuple[int, int]]()
        for _, gpu, element in self.gpus:
            sm = _whole(element.get("sm", "0"), "gpu: sm")
            each = next((rate for least, rate in _NVLINK_GB if sm >= least), 0.0)
            for nvlink in element.findall("nvlink"):
                count = _whole(nvlink.get("count", "1"), "nvlink: count")
                if not each:
                    raise ClusterError(f"gpu of compute capability {sm} has an NVLink of no known rate")
                if nvlink.get("tclass", "").startswith(_NVSWITCH):
                    switch = self.build.vertex(f"{self.prefix}nvswitch", VertexKind.SWITCH) if switch < 0 else switch
                    other = switch
                elif (target := nvlink.get("target", "").lower()) in self.at:
                    other = self.at[target]
                else:
                    continue  # to a CPU, or to a GPU that the program did not use
                pair = min(gpu, other), max(gpu, other)
                if pair not in done:
                    done.add(pair)
                    self.build.connect(gpu, other, self._wire(count * each, "nvlink"), "nvlink")

    def to_network(self, rails: bool) -> None:
        for dev, vertex, rate in self.cards:
            name = f"network.{dev}" if rails else "network"
            switch = self.build.number.get(name)
            if switch is None:
                switch = self.build.vertex(name, VertexKind.SWITCH)
            self.build.connect(vertex, switch, self._wire(rate, "network"), "network")

    def _wire(self, gbyte_per_s: float, what: str) -> Wire:
        return Wire(bytes_per_s=gbyte_per_s * 1e9, latency_ns=self.latency[what])


def _cards(pci: Element) -> Iterator[Element]:
    for nic in pci.findall("nic"):
        yield from nic.findall("net")


def _pci_gb(pci: Element) -> float:
    """GB/s of the link to what is above; NCCL takes PCIe 3 on 16 lanes where a virtual machine does not say."""
    speed, lanes = pci.get("link_speed", "").split(" ")[0], pci.get("link_width", "")
    if not speed or not lanes or lanes == "0":
        return 12.0
    try:
        lane = _PCI_MBIT[float(speed)]
    except (ValueError, KeyError):
        problem = f"pci {pci.get('busid')}: unknown `link_speed` `{pci.get('link_speed')}`"
        raise ClusterError(problem) from None
    return _whole(lanes, "pci: link_width") * lane / 8000


def _whole(text: str, what: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text) or int(text) > _MOST:
        raise ClusterError(f"{what}: `{text[:40]}` is not a whole number up to {_MOST:,}")
    return int(text)


def nodes_asked(given: Mapping[str, Any]) -> NcclNodes:
    """From the keys of a system's file."""
    from etude.base.units import parse_time

    nodes, rails, latency = given.get("nodes", 1), given.get("rails", False), given.get("latency") or {}
    if type(nodes) is not int or not isinstance(rails, bool) or not isinstance(latency, Mapping):
        raise ClusterError(
            "nodes, rails or latency is not as it should be", hint="nodes: 4, rails: true, latency: {pci: 1us}"
        )
    for key in latency:
        if key not in LATENCY_NS:
            raise ClusterError(f"latency: unknown kind of link `{key}`", hint=f"known: {', '.join(LATENCY_NS)}")
    times = {str(key): round(parse_time(str(value))) for key, value in latency.items()}
    return NcclNodes(nodes=nodes, rails=rails, latency_ns=times)
