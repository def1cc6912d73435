"""A graph under construction, vertex by vertex and connection by connection."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.errors import ClusterError
from etude.machine.topology import LinkList, Topology, VertexKind, Wire, topology_of


class GraphBuilder:
    """Named vertices, and connections in both directions."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[VertexKind] = []
        self.number: dict[str, int] = {}
        self.links = LinkList()

    def vertex(self, name: str, kind: VertexKind) -> int:
        if name in self.number:
            raise ClusterError(f"`{name}` is there twice")
        self.number[name] = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        return self.number[name]

    def connect(self, a: int, b: int, wire: Wire, name: str) -> tuple[int, int]:
        """The link from a to b, and the one back."""
        one, other = np.array([a]), np.array([b])
        return self.links.add(one, other, wire, name), self.links.add(other, one, wire, name)

    def topology(self, name: str, device: list[int], **more: Any) -> Topology:
        """Devices pass nothing on."""
        names = tuple(self.names)
        return topology_of(
            name,
            kind=np.array(self.kinds, np.uint8),
            device=np.array(device, np.int32),
            vertex_name=names.__getitem__,
            **self.links.columns(),
            **more,
        )
