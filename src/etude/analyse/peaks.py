"""The highest bus bandwidth that the links of a system allow a collective: the reference for utilisation.

A group of n members has m of them in each unit (node, rack) of the levels below one that it crosses, and every device
has bandwidth b at that level. What crosses the level goes through the ports of all m:

    reductions and gathers   b m                     a unit's share leaves it once, through m ports
    all-to-all               b (n - 1) / (n - m)     all but the m - 1 neighbours are reached through one's own port
    broadcast and the like   b m

The bus bandwidth is at most the minimum of that over the levels that the group crosses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.machine.system import System
from etude.model.schema import Collective


def peak_bus_bandwidth(system: System, ranks: NDArray[np.signedinteger], collective: Collective) -> float | None:
    """Bytes per second; None where there is nothing to cross, or the system has no place for a rank."""
    if len(ranks) < 2 or int(ranks.max()) >= system.num_ranks:
        return None
    device = system.device_of(ranks)
    found, below, n = [], 1, len(ranks)
    for level in system.levels:
        units = np.unique(device // below // level.size, return_counts=True)[1]
        inner = np.unique(device // below, return_counts=True)[1]
        below *= level.size
        if len(inner) == len(units):  # no two of its units meet at this level
            continue
        rate, m = level.bandwidth_bytes_per_s / level.oversubscription, int(inner.min())
        all_to_all = collective in (Collective.ALL_TO_ALL,)
        found.append(rate * (n - 1) / (n - m) if all_to_all else rate * m)
    return min(found) if found else None
