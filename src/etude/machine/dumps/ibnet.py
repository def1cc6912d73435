"""An InfiniBand fabric as `ibnetdiscover` writes it, with the routing tables of its switches.

    Switch  41 "S-b8cef60300aabbcc"   # "MF0;leaf01:MQM8700/U1" enhanced port 0 lid 5 lmc 0
    [1]     "H-0c42a10300112233"[1](c42a10300112233)   # "node01 mlx5_0" lid 12 4xHDR
    Ca      1 "H-0c42a10300112233"    # "node01 mlx5_0"
    [1](c42a10300112233)   "S-b8cef60300aabbcc"[1]     # lid 12 lmc 0 "MF0;leaf01" lid 5 4xHDR

A rank is a port of a host's card, in order of their names. Tables are those of `ibroute` or `dump_lfts.sh`: with them
a message takes the way that the subnet manager chose, without them the shortest ones are searched.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np

from etude.base.errors import ClusterError, FormatError
from etude.machine.dumps.graph import GraphBuilder
from etude.machine.topology import ForwardingTables, Topology, VertexKind, Wire

LATENCY_NS: Final = 500
"""Assumption, for each link."""
_SPEEDS: Final = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
_LANE_GBIT: Final = dict(zip(_SPEEDS, (2.0, 4.0, 8.0, 10.0, 13.64, 25.0, 50.0, 100.0, 200.0), strict=True))
"""Of data, of one lane."""
_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*#\s*"([^"]*)"(.*)$')
_PORT = re.compile(r'^\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+"([^"]+)"\[(\d+)\](?:\([0-9a-fA-F]+\))?\s*#(.*)$')
_RATE = re.compile(r"\b(\d+)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_LID = re.compile(r"\blid (\d+)\b")
_TABLE = re.compile(r"^Unicast lids .*?switch (?:DR path slid .*?|Lid (\d+) )guid 0x([0-9a-fA-F]+)")
_ENTRY = re.compile(r"^0x([0-9a-fA-F]+)\s+(\d+)\s*:")


def read_ibnet(text: str, name: str, tables: str | None, latency_ns: int = LATENCY_NS) -> Topology:
    found = _Fabric(latency_ns)
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.line(line)
        except ClusterError as problem:
            raise ClusterError(problem.problem, where=f"line {number}", hint=problem.hint) from None
    return found.topology(name, tables)


Ends = dict[tuple[str, int], int]
"""By node and port: a vertex, a link, a lid."""


class _Fabric:
    def __init__(self, latency_ns: int) -> None:
        self.build, self.latency_ns = GraphBuilder(), latency_ns
        self.about: dict[str, tuple[str, str]] = {}  # of each node: its kind and its description
        self.ports: dict[tuple[str, int], tuple[str, int, float]] = {}
        self.lid: Ends = {}
        self.node = ""

    def line(self, text: str) -> None:
        if head := _HEAD.match(text):
            kind, _, self.node, about, rest = head.groups()
            self.about[self.node] = kind, about
            if kind == "Switch" and (lid := _LID.search(rest)):
                self.lid[self.node, 0] = int(lid[1])
        elif port := _PORT.match(text):
            if not self.node:
                raise ClusterError("a port before any switch or card")
            here, other, there, rest = int(port[1]), port[2], int(port[3]), port[4]
            rate = _RATE.search(rest)
            if rate is None:
                raise ClusterError(f"port {here} of `{self.node}` has no rate", hint="4xHDR; run ibnetdiscover again")
            lid = _LID.search(rest)
            if self.about[self.node][0] == "Ca" and lid:
                self.lid[self.node, here] = int(lid[1])
            self.ports[self.node, here] = other, there, int(rate[1]) * _LANE_GBIT[rate[2]] / 8 * 1e9
        elif text.startswith("["):
            raise ClusterError(f"not a port: `{text[:80]}`")

    def topology(self, name: str, tables: str | None) -> Topology:
        vertex, device = self._vertices()
        out: Ends = {}
        for (node, port), (other, there, rate) in self.ports.items():
            if (node, port) in out:
                continue
            if other not in self.about:
                raise ClusterError(f"`{node}` port {port} leads to `{other}`, which is not there")
            back = self.ports.get((other, there), (node, port))
            if (other, there) in out or back[:2] != (node, port):
                raise ClusterError(f"`{node}` port {port} leads to `{other}` port {there}, which leads elsewhere")
            wire = Wire(bytes_per_s=rate, latency_ns=self.latency_ns)
            ends = vertex[self._end(node, port)], vertex[self._end(other, there)]
            out[node, port], out[other, there] = self.build.connect(*ends, wire, "infiniband")
        ranks = [vertex[end] for end in device]
        if not ranks:
            raise FormatError("has no cards of hosts (`Ca`)")
        more = {}
        if tables is not None:
            more["tables"] = self._tables(tables, vertex, out, device)
        return self.build.topology(name, ranks, **more)

    def _end(self, node: str, port: int) -> tuple[str, int]:
        return node, port if self.about[node][0] == "Ca" else 0

    def _vertices(self) -> tuple[Ends, list[tuple[str, int]]]:
        """Ports of cards first, in order of their names, then switches."""
        cards = [end for end in self.ports if self.about[end[0]][0] == "Ca"]
        cards.sort(key=lambda end: (_natural(self.about[end[0]][1]), end[0], end[1]))
        vertex: Ends = {}
        nodes = Counter(node for node, _ in cards)
        alike = len({self.about[node][1] for node in nodes}) < len(nodes)
        for node, port in cards:
            about = self.about[node][1] or node
            called = f"{about} {node}[{port}]" if alike or nodes[node] > 1 else about
            vertex[node, port] = self.build.vertex(called, VertexKind.DEVICE)
        switches = {node: about for node, (kind, about) in self.about.items() if kind != "Ca"}
        often = Counter(switches.values())
        for node, about in switches.items():
            short = about.split(";")[-1].split(":")[0] or node
            unique = about and often[about] == 1 and short not in self.build.number
            vertex[node, 0] = self.build.vertex(short if unique else node, VertexKind.SWITCH)
        return vertex, cards

    def _tables(self, text: str, vertex: Ends, out: Ends, device: list[tuple[str, int]]) -> ForwardingTables:
        by_guid = {node.partition("-")[2].lower().lstrip("0"): node for node in self.about if node.startswith("S-")}
        of_lid = {self.lid[end]: k for k, end in enumerate(device) if end in self.lid}
        if len(of_lid) < len(device):
            raise ClusterError("not all ports of cards have a lid, which routing tables go by")
        column = np.full(len(self.build.names), -1, np.int32)
        column[[vertex[end] for end in device]] = np.arange(len(device))
        link = np.full((len(self.build.names), len(device)), -1, np.int32)
        switch = ""
        for line in text.splitlines():
            if head := _TABLE.match(line):
                switch = by_guid.get(head[2].lower().lstrip("0"), "")
                if not switch:
                    raise ClusterError(f"routing table of switch 0x{head[2]}, which is not in the fabric")
            elif (entry := _ENTRY.match(line)) and switch:
                lid, port = int(entry[1], 16), int(entry[2])
                if lid in of_lid and (switch, port) in out:
                    link[vertex[switch, 0], of_lid[lid]] = out[switch, port]
        if not switch:
            raise FormatError("has no routing table", hint="`ibroute LID` or dump_lfts.sh: `Unicast lids ...`")
        for end in device:
            link[vertex[end], :] = out[end]
        return ForwardingTables(column, link)


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """`node9` before `node10`."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text))
