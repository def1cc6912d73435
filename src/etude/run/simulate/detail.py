"""Which transfers go by packets, and which are flows: `--packets`.

What is chosen is a collective (`all_to_all`, or `message`), a window of time in which transfers begin (`5ms-8ms`), the
links of a vertex (`leaf.3`), the link between two (`leaf.3/spine.1`), `all`, or `auto`: links that flows exceed.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I64
from etude.machine.faults import links_between, links_of
from etude.machine.topology import Topology
from etude.run.simulate.networks.state import LinkState, PacketDetail
from etude.run.simulate.operations import Operations
from etude.run.simulate.scope import PacketScope


def chosen_links(topology: Topology, scope: PacketScope) -> I64:
    """The links of the vertices that were chosen."""
    found = [np.zeros(0, np.int64)]
    for place in scope.places:
        a, between, b = place.partition("/")
        found.append(links_between(topology, (_end(a), _end(b))) if between else links_of(topology, _end(a)))
    return np.unique(np.concatenate(found))


def _end(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def packet_detail(links: LinkState, ops: Operations, carried_op: I64, scope: PacketScope, over: I64) -> PacketDetail:
    """As kernels take it; `over` are the links that were chosen."""
    p = links.paths
    of_path = np.zeros(len(p.start), np.uint8)
    path = np.repeat(np.arange(len(p.start) - 1), np.diff(p.start))
    of_path[path[np.isin(p.link, over)]] = 1
    of_operation = np.full(len(links.carried), scope.all, np.uint8)
    of_operation[np.isin(ops.collective[carried_op], [int(c) for c in scope.collectives])] = 1
    if scope.messages:
        of_operation[ops.is_message[carried_op]] = 1
    windows = np.array(scope.windows, np.int64).reshape(-1, 2)
    return PacketDetail(of_operation, of_path, windows[:, 0].copy(), windows[:, 1].copy())
