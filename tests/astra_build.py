"""Small workloads by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.astra import Network, SystemConfig, Workload
from etude.astra.config import COLLECTIVES, parse_algorithm
from etude.astra.workload import COLL, COMP, RECV, SEND

WIRE = {"all-reduce": 0, "all-gather": 2, "broadcast": 5, "all-to-all": 6, "reduce-scatter": 7}
BYTES_PER_NS = (1 << 30) / 1e9  # of a link of 1 GB/s
DTYPES = {
    "source_id": np.uint64,
    "kind": np.uint8,
    "is_cpu": np.bool_,
    "duration_us": np.int64,
    "num_ops": np.int64,
    "tensor_size": np.int64,
    "comm_type": np.int64,
    "comm_size": np.int64,
    "src": np.int32,
    "dst": np.int32,
    "tag": np.int32,
    "group": np.int32,
    "involved_dims": np.int16,
}
ABSENT = {
    "is_cpu": False,
    "duration_us": 0,
    "num_ops": -1,
    "tensor_size": -1,
    "comm_type": -1,
    "comm_size": -1,
    "src": -1,
    "dst": -1,
    "tag": -1,
    "group": -1,
    "involved_dims": -1,
}

Node = dict[str, Any]


def comp(us: int, *deps: int, **more: Any) -> Node:
    return {"kind": COMP, "duration_us": us, "deps": deps, **more}


def coll(name: str, size: int, *deps: int, group: int = -1, **more: Any) -> Node:
    return {"kind": COLL, "comm_type": WIRE[name], "comm_size": size, "group": group, "deps": deps, **more}


def send(dst: int, size: int, *deps: int, tag: int = 0) -> Node:
    return {"kind": SEND, "dst": dst, "comm_size": size, "tag": tag, "deps": deps}


def recv(src: int, size: int, *deps: int, tag: int = 0) -> Node:
    return {"kind": RECV, "src": src, "comm_size": size, "tag": tag, "deps": deps}


def workload(ranks: Sequence[Sequence[Node]], groups: dict[int, Sequence[int]] | None = None) -> Workload:
    """Ranks of nodes; a node's id is its place in its rank, and dependencies are such places."""
    nodes = [{**ABSENT, "source_id": i, **node} for rank in ranks for i, node in enumerate(rank)]
    rank_start = np.concatenate([[0], np.cumsum([len(r) for r in ranks])]).astype(np.int64)
    base = np.repeat(rank_start[:-1], np.diff(rank_start))
    deps = [[int(b) + d if d >= 0 else -1 for d in node["deps"]] for b, node in zip(base, nodes, strict=True)]
    groups = groups or {}
    return Workload(
        rank_start=rank_start,
        dep_start=np.concatenate([[0], np.cumsum([len(d) for d in deps])]).astype(np.int64),
        dep=np.array([d for each in deps for d in each], np.int32),
        groups=tuple(np.array(g, np.int64) for g in groups.values()),
        group_ids=tuple(groups),
        **{k: np.array([n[k] for n in nodes], t) for k, t in DTYPES.items()},
    )


def network(*dims: tuple[str, int, float, float]) -> Network:
    """Dimensions as (topology, NPUs, GB/s, ns)."""
    return Network(
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
