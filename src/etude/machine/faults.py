"""Slow or failed links: the same topology with less capacity. Traffic over failed links takes another route."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import ClusterError, UsageError
from etude.base.units import counted
from etude.kernels.arrays import I64
from etude.machine.routes import check_connected
from etude.machine.topology import Topology, topology_of, with_windows

End = int | str
RUNS_SHOWN: Final = 8
"""Kinds of vertices that a hint names."""


def with_faults(topology: Topology, slow: Mapping[tuple[End, End], float]) -> tuple[Topology, list[str]]:
    """The topology with links between two ends slower by a factor, or removed (math.inf), and notes on it.

    An end is a rank, which is its device, or the name of a vertex. Both directions are meant. Refuses ends that are not
    connected, and failures that disconnect a rank from the others.
    """
    if not slow:
        return topology, []
    rate = topology.bytes_per_s.copy()
    failed = np.zeros(len(rate), np.bool_)
    for pair, factor in slow.items():
        links = links_between(topology, pair)
        if math.isinf(factor):
            failed[links] = True
        else:
            rate[links] /= factor
    if not failed.any():
        return replace(topology, bytes_per_s=rate), [f"links between {counted(len(slow), 'pair')} of ends are slow"]
    made, _ = without(topology, failed, rate)
    try:
        check_connected(made)
    except ClusterError as problem:
        gone = ", ".join(f"{a}/{b}" for (a, b), factor in slow.items() if math.isinf(factor))
        raise ClusterError(
            f"{problem.problem} without the failed links: {gone}", where=topology.name, hint="there is no other path"
        ) from None
    return made, [f"{int(failed.sum()):,} directed links have failed, and routes avoid them"]


def without(topology: Topology, failed: NDArray[np.bool_], bytes_per_s: NDArray[np.float64]) -> tuple[Topology, I64]:
    """The topology without these links, the others at these rates, and their old numbers. Routes in it are searched."""
    keep, windows = np.flatnonzero(~failed[: topology.wires]), topology.windows
    names = topology.link_names[:-1] if windows else topology.link_names
    made = topology_of(
        topology.name, kind=topology.kind, forwards=topology.forwards, src=topology.src[keep], dst=topology.dst[keep],
        bytes_per_s=bytes_per_s[keep], latency_ns=topology.latency_ns[keep], link_type=topology.link_type[keep],
        link_names=names, device=topology.device, vertex_name=topology.vertex_name,
    )  # fmt: skip
    if windows is None:
        return made, keep
    return with_windows(made, windows), np.append(keep, np.arange(topology.wires, len(topology.src)))


def links_between(topology: Topology, pair: tuple[End, End]) -> I64:
    """The links that connect two ends, in both directions."""
    a, b = (_vertex(topology, end) for end in pair)
    ends = ((topology.src == a) & (topology.dst == b)) | ((topology.src == b) & (topology.dst == a))
    found = np.flatnonzero(ends)
    if not len(found):
        names = [topology.vertex_name(v) for v in (a, b)]
        near = [topology.vertex_name(int(v)) for v in topology.dst[topology.src == a][:4]]
        raise UsageError(
            f"no link joins {names[0]} and {names[1]}",
            where=topology.name,
            hint=f"{names[0]} is joined to {', '.join(near)}: name a link by its ends, `{names[0]}/{near[0]}`"
            if near
            else "",
        )
    return found


def links_of(topology: Topology, end: End) -> I64:
    """The links from and to a rank's device or a vertex."""
    vertex = _vertex(topology, end)
    return np.flatnonzero((topology.src == vertex) | (topology.dst == vertex))


def _vertex(topology: Topology, end: End) -> int:
    if isinstance(end, int):
        if not 0 <= end < len(topology):
            raise UsageError(f"rank {end} is not on any of the {len(topology):,} devices", where=topology.name)
        return int(topology.device[end])
    names = [topology.vertex_name(vertex) for vertex in range(len(topology.kind))]
    if end in names:
        return names.index(end)
    raise UsageError(f"there is no vertex `{end}`", where=topology.name, hint=f"there are {_runs(names)}")


def _runs(names: list[str]) -> str:
    """The first and the last name of each kind of vertex, as `leaf.0` to `leaf.7`."""
    ends: dict[str, list[str]] = {}
    for name in names:
        ends.setdefault(name.rpartition(".")[0] or name, []).append(name)
    told = [f"`{of[0]}` to `{of[-1]}`" if len(of) > 1 else f"`{of[0]}`" for of in ends.values()]
    return ", ".join(told[:RUNS_SHOWN]) + (", ..." if len(told) > RUNS_SHOWN else "")
