"""What links did over time: utilisation, waiting and sharing, and when each collective was done."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.results import marked
from etude.kernels.arrays import F64, I64
from etude.machine.topology import Topology
from etude.model.match import WORLD
from etude.model.schema import Collective
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.state import VISIT, WHOLE, LinkState, Table
from etude.run.simulate.operations import Operations
from etude.run.simulate.packets.samples import over_time
from etude.run.simulate.packets.state import PacketState

PARTS: Final = 64
"""Intervals that the time of a run is divided into, each a row of `links`."""
MOST_VISITS: Final = 30_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LinkStats:
    links: pa.Table
    """For each link and interval of the run: from_ns, to_ns, utilisation (bytes on the wire, with the protocol and
    efficiency of their operation, over capacity), under_way and waiting (transfers on it, and those that had not begun,
    on average), operations (distinct ones). With packets instead of these three: queue_bytes (on average),
    most_queue_bytes, marks, cut, dropped, pauses, and paused, a share of the interval."""
    visits: pa.Table
    """For each transfer and link of its route: link, operation, size_bytes, came_ns, begin_ns, end_ns. With packets
    only for the first link, until the transfer has arrived."""
    operations: pa.Table
    """For each collective and message: operation, what, group, size_bytes, members, came_ns (the first member),
    begin_ns (the last), end_ns."""

    def tables(self) -> dict[str, pa.Table]:
        return {name: getattr(self, name) for name in LinkStats.__slots__}

    def write(self, folder: str | PathLike[str]) -> None:
        import pyarrow.parquet as pq

        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, table in self.tables().items():
            pq.write_table(
                marked(table, "etude link statistics 1"), Path(folder) / f"{name}.parquet", compression="zstd"
            )


def room_for_visits(carried: Table, transfers: I64, most_hops: int, asked: bool = True) -> Table:
    """A table large enough for all visits of these operations; `transfers` are those of each plan. Without one where
    there are too many, unless they were asked for."""
    rows = int(transfers[carried["plan"]].sum()) * most_hops
    if rows > MOST_VISITS and not asked:
        return np.zeros(0, VISIT)
    if rows > MOST_VISITS:
        problem = f"statistics of links would have up to {rows:,} rows, but the limit is {MOST_VISITS:,}"
        raise UsageError(problem, hint="use fewer ranks, steps or chunks")
    return np.zeros(max(rows, 1), VISIT)


def link_stats(
    lowered: Lowered, ops: Operations, nodes: Table, links: LinkState, topology: Topology, carried_op: I64
) -> LinkStats:
    """Statistics of all links. `carried_op` maps carried operations to operations."""
    visits = links.visits[: int(links.clock["visits"][0])]
    visits = visits[(visits["end_ns"] >= 0)]
    names = np.array([topology.link_name(i) for i in range(len(topology.src))])
    operation = carried_op[visits["operation"]]
    until_ns = max(int(nodes["end_ns"].max(initial=0)), int(visits["end_ns"].max(initial=0)), 1)
    wire = visits["size_bytes"] * (links.carried["wire_ppm"][visits["operation"]] / WHOLE)
    if links.packets is not None:
        spent = _of_ports(links.packets, names, until_ns)
    else:
        spent = _over_time(visits, wire, operation, names, topology.bytes_per_s / 1e9, until_ns)
    columns = {name: np.ascontiguousarray(visits[name]) for name in ("size_bytes", "came_ns", "begin_ns", "end_ns")}
    return LinkStats(
        spent,
        pa.table({"link": names[visits["link"]], "operation": operation, **columns}),
        _operations(lowered, ops, nodes),
    )


def _of_ports(packets: PacketState, names: NDArray[np.str_], until_ns: int) -> pa.Table:
    """The same of packets: what happened at the port of each link that carried any, interval by interval."""
    edges_ps, ports = over_time(packets, until_ns * 1000)
    used = np.flatnonzero((packets.ports["carried_bytes"] > 0) | (packets.ports["most_queue_bytes"] > 0))
    length_ps = np.tile(np.diff(edges_ps), len(used)).astype(np.float64)
    mine = ports[:, used].T.ravel()
    many = len(edges_ps) - 1
    return pa.table(
        {
            "link": pa.array(names[np.repeat(used, many)].tolist(), pa.string()),
            "from_ns": np.tile(edges_ps[:-1] // 1000, len(used)),
            "to_ns": np.tile(edges_ps[1:] // 1000, len(used)),
            "utilisation": mine["busy_ps"] / length_ps,
            "queue_bytes": mine["queue_byte_ps"] / length_ps,
            "most_queue_bytes": np.ascontiguousarray(mine["peak_bytes"]),
            "marks": np.ascontiguousarray(mine["marks"]),
            "cut": np.ascontiguousarray(mine["trims"]),
            "dropped": np.ascontiguousarray(mine["drops"]),
            "pauses": np.ascontiguousarray(mine["pauses"]),
            "paused": mine["paused_ps"] / length_ps,
        }
    )


def _over_time(visits: Table, wire: F64, operation: I64, names: NDArray[np.str_], rate: F64, until_ns: int) -> pa.Table:
    edges = np.unique(np.linspace(0, until_ns, PARTS + 1).astype(np.int64))
    length = np.diff(edges)
    used, which = np.unique(visits["link"], return_inverse=True)
    came, begin, end = (visits[name].astype(np.float64) for name in ("came_ns", "begin_ns", "end_ns"))
    moving = np.maximum(end - begin, 1.0)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(used) + 1))
    shape = (len(used), len(length))
    moved, under_way, waiting = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for i in range(len(used)):
        mine = order[bounds[i] : bounds[i + 1]]
        moved[i] = _between(edges, begin[mine], begin[mine] + moving[mine], wire[mine] / moving[mine])
        under_way[i] = _between(edges, came[mine], end[mine], np.ones(len(mine)))
        waiting[i] = _between(edges, came[mine], begin[mine], np.ones(len(mine)))
    number = np.repeat(np.arange(len(used)), len(length))
    return pa.table(
        {
            "link": names[used[number]] if len(used) else pa.array([], pa.string()),
            "from_ns": np.tile(edges[:-1], len(used)),
            "to_ns": np.tile(edges[1:], len(used)),
            "utilisation": (moved / (rate[used][:, None] * length)).ravel(),
            "under_way": (under_way / length).ravel(),
            "waiting": (waiting / length).ravel(),
            "operations": _different(which, operation, came, end, edges, shape).ravel(),
        }
    )


def _between(edges: I64, start: F64, end: F64, rate: F64) -> F64:
    """Integral between edges of things that run at a rate from start to end."""
    up_to = np.zeros(len(edges))
    for at, sign in ((start, 1.0), (end, -1.0)):
        order = np.argsort(at)
        rates, weighed = np.cumsum(rate[order]), np.cumsum(rate[order] * at[order])
        before = np.searchsorted(at[order], edges)
        some = before > 0
        up_to[some] += sign * (rates[before[some] - 1] * edges[some] - weighed[before[some] - 1])
    return np.maximum(np.diff(up_to), 0.0)


def _different(which: I64, operation: I64, came: F64, end: F64, edges: I64, shape: tuple[int, int]) -> I64:
    """Distinct operations on each link in each interval."""
    first = np.searchsorted(edges, came, "right") - 1
    last = np.maximum(np.searchsorted(edges, end, "left") - 1, first)
    parts = np.unique(np.stack([which, operation, first, last], 1), axis=0)
    spans = parts[:, 3] - parts[:, 2] + 1
    at = np.repeat(parts[:, 2], spans) + np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
    at = np.minimum(at, shape[1] - 1)
    seen = np.unique(np.stack([np.repeat(parts[:, 0], spans), at, np.repeat(parts[:, 1], spans)], 1), axis=0)
    found = np.zeros(shape, np.int64)
    np.add.at(found, (seen[:, 0], seen[:, 1]), 1)
    return found


def _operations(lowered: Lowered, ops: Operations, nodes: Table) -> pa.Table:
    start, end = nodes["start_ns"][ops.node], nodes["end_ns"][ops.node]
    came, begin = np.full(len(ops), np.iinfo(np.int64).max), np.full(len(ops), -1)
    over = np.full(len(ops), -1)
    np.minimum.at(came, ops.of, start)
    np.maximum.at(begin, ops.of, start)
    np.maximum.at(over, ops.of, end)
    links, groups, job = lowered.matching.links, lowered.groups.group, lowered.job
    message = ops.is_message.tolist()
    place = ops.place
    named = [
        f"{links.src[p]}-{links.dst[p]}" if m else "world" if groups[p] == WORLD else job.groups.names[int(groups[p])]
        for p, m in zip(place.tolist(), message, strict=True)
    ]
    what = [
        "message" if m else Collective(c).name.lower() for c, m in zip(ops.collective.tolist(), message, strict=True)
    ]
    return pa.table({
        "operation": np.arange(len(ops)), "what": pa.array(what, pa.string()), "group": pa.array(named, pa.string()),
        "size_bytes": ops.size_bytes, "members": np.bincount(ops.of, minlength=len(ops)),
        "came_ns": came, "begin_ns": begin, "end_ns": over,
    })  # fmt: skip
