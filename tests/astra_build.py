"""Small workloads by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.model.build import TraceBuilder
from etude.model.job import Job, Part, assemble
from etude.model.schema import Collective, Kind
from etude.run import astra
from etude.run.astra.config import COLLECTIVES, AstraOptions, NetworkConfig, SystemConfig, parse_algorithm

OF_NAME = {
    "all-reduce": Collective.ALL_REDUCE,
    "all-gather": Collective.ALL_GATHER,
    "broadcast": Collective.BROADCAST,
    "all-to-all": Collective.ALL_TO_ALL,
    "reduce-scatter": Collective.REDUCE_SCATTER,
}
COLUMNS = {"num_ops": "flops", "tensor_size": "tensor_bytes", "comm_size": "in_bytes", "tag": "tag"}

Node = dict[str, Any]


def comp(us: int, *deps: int, **more: Any) -> Node:
    return {"kind": Kind.COMP, "duration_us": us, "deps": deps, **more}


def coll(name: str, size: int, *deps: int, group: int = -1, **more: Any) -> Node:
    return {"kind": Kind.COLL, "comm_type": OF_NAME[name], "comm_size": size, "group": group, "deps": deps, **more}


def send(dst: int, size: int, *deps: int, tag: int = 0) -> Node:
    return {"kind": Kind.SEND, "dst": dst, "comm_size": size, "tag": tag, "deps": deps}


def recv(src: int, size: int, *deps: int, tag: int = 0) -> Node:
    return {"kind": Kind.RECV, "src": src, "comm_size": size, "tag": tag, "deps": deps}


def _part(rank: int, nodes: Sequence[Node], names: dict[int, str], groups: dict[str, list[int]]) -> Part:
    builder = TraceBuilder()
    for node in nodes:
        columns = {COLUMNS[k]: v for k, v in node.items() if k in COLUMNS}
        if "comm_type" in node:
            columns["collective"] = node["comm_type"]
        if node.get("duration_us"):
            columns["duration_ns"] = node["duration_us"] * 1000
        builder.add(
            node["kind"],
            data=[max(d, 0) for d in node["deps"]],
            group=names.get(node.get("group", -1)),
            src=node.get("src"),
            dst=node.get("dst"),
            cpu=1 if node.get("is_cpu") else 0,
            **columns,
        )
    part = builder.part(rank, groups)
    deps = [d for node in nodes for d in node["deps"]]
    if -1 not in deps:
        return part
    trace = part.trace.replace(data=np.array(deps, np.int32), missing=np.array([12345], np.uint64))
    return Part(rank, trace, part.groups, part.peers)


def workload(ranks: Sequence[Sequence[Node]], groups: dict[int, Sequence[int]] | None = None) -> Job:
    """Ranks of nodes; a node's id is its place in its rank, and dependencies are such places, -1 one that is missing.
    The group of a node is a place among the groups, -2 one that nobody knows."""
    groups = groups or {}
    names = {i: str(number) for i, number in enumerate(groups)} | {-2: "77777"}
    known = {str(number): list(members) for number, members in groups.items()}
    parts = [_part(rank, nodes, names, known) for rank, nodes in enumerate(ranks)]
    return assemble("w", parts, more_groups=list(known.items()))


def run(job: Job, net: NetworkConfig, sys_: SystemConfig, **options: Any) -> astra.AstraResult:
    return astra.run(job, net, sys_, AstraOptions(**options))


def starts(result: astra.AstraResult) -> NDArray[np.int64]:
    """Starts of the nodes of all ranks, rank after rank."""
    return np.concatenate(result.timing.start_ns)


def ends(result: astra.AstraResult) -> NDArray[np.int64]:
    return np.concatenate(result.timing.end_ns)


def network(*dims: tuple[str, int, float, float]) -> NetworkConfig:
    """Dimensions as (topology, NPUs, GB/s, ns)."""
    return NetworkConfig(
        topology=tuple(d[0] for d in dims),
        npus_count=tuple(d[1] for d in dims),
        bandwidth_gibyte_per_s=tuple(float(d[2]) for d in dims),
        latency_ns=tuple(float(d[3]) for d in dims),
    )


def system(
    *algorithms: str, splits: int = 1, endpoint_ns: float = 10, memory: float | None = 1600, **more: Any
) -> SystemConfig:
    """The same implementation list for every collective."""
    listed = tuple(parse_algorithm(a, "") for a in algorithms)
    return SystemConfig(
        algorithms=dict.fromkeys(COLLECTIVES, listed),
        splits=splits,
        endpoint_delay_ns=endpoint_ns,
        local_mem_gbyte_per_s=memory,
        optimization="localBWAware",
        **more,
    )


def hop_ns(size: int, gbyte_per_s: float, latency_ns: float, hops: int = 1) -> int:
    return int(hops * latency_ns + size / (gbyte_per_s * (1 << 30) / 1_000_000_000))


def reduce_ns(size: int, gbyte_per_s: float = 1600) -> int:
    return 3 * int(size / (gbyte_per_s * 1e9) * 1e9)
