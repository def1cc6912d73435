"""A System as the files that ASTRA-sim's binaries read with a workload: network, system, memory, logical dimensions,
and a topology for its ns-3 backend.

Figures are those of the levels: a rate is what payload reaches, a ring's is shared by its two ways, that of full
meshes by all peers. ASTRA-sim counts a switch as two hops, so that each has half of the latency. What its files cannot
say is refused.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.machine.fabrics import topology_of_system
from etude.machine.system import Level, LevelKind, System
from etude.machine.topology import Topology, VertexKind

NETWORK, SYSTEM, MEMORY = "network.yml", "system.json", "memory.json"
LOGICAL, TOPOLOGY, ABOUT = "logical.json", "topology.txt", "README.md"
ENDPOINT_DELAY_NS: Final = 10
"""ASTRA-sim's own default; 0 makes it abort."""
_GIBI: Final = 2.0**30


def astra_files(system: System, ranks: int, *, name: str, groups: bool, roofline: bool) -> dict[str, str]:
    """File name -> text, for a job of this many ranks whose files are `name.{rank}.et`. `roofline`: compute nodes have
    operations and bytes; otherwise they have durations."""
    part = _part(system, ranks)
    levels = [level for level in part.levels if level.size > 1]
    files = {
        NETWORK: _network(levels),
        SYSTEM: _system(part, levels, roofline),
        MEMORY: _memory(part),
        LOGICAL: json.dumps({"logical-dims": [str(level.size) for level in levels]}, indent=4) + "\n",
        TOPOLOGY: ns3_topology(topology_of_system(part)),
    }
    return {**files, ABOUT: _about(system, ranks, name, groups=groups, roofline=roofline)}


def _part(system: System, ranks: int) -> System:
    """As much of the system as the ranks need, checked for what ASTRA-sim can express."""
    where = f"system `{system.name}`"
    if system.topology is not None or system.irregular:
        problem = "a graph has no dimensions, and ASTRA-sim's network is a product of them"
        raise ClusterError(problem, where=where, hint="use a system with levels")
    if len(system.all_kinds) > 1:
        raise ClusterError("several kinds of devices, but ASTRA-sim supports one", where=where)
    if system.placement and list(system.placement) != list(range(len(system))):
        raise ClusterError("a placement, but in ASTRA-sim rank r is on device r", where=where)
    if ranks < 2:
        raise UsageError("one rank has no network, which ASTRA-sim needs", hint="a job of at least 2 ranks")
    part = system.resized(ranks)
    for level in part.levels:
        if level.kind == LevelKind.MESH and level.size > 1:
            raise ClusterError(
                f"level `{level.name}` is a line, but ASTRA-sim has only rings, full meshes and switches", where=where
            )
    return part


def _kind(level: Level) -> str:
    if level.kind == LevelKind.SWITCH:
        return "Switch"
    # A ring of two is one connection; ASTRA-sim's congestion-aware backend aborts on a ring of two.
    return "FullyConnected" if level.kind == LevelKind.FULL or level.size == 2 else "Ring"


def _network(levels: list[Level]) -> str:
    rates, latencies = [], []
    for level in levels:
        kind = _kind(level)
        ways = {"Switch": 1, "Ring": 2, "FullyConnected": level.size - 1}[kind]
        rates.append(level.rate_bytes_per_ns * 1e9 / _GIBI / ways)
        latencies.append(level.latency_ns / (2 if kind == "Switch" else 1))
    rows = {
        "topology": [_kind(level) for level in levels],
        "npus_count": [str(level.size) for level in levels],
        "bandwidth": [_decimal(rate) for rate in rates],
        "latency": [_decimal(latency) for latency in latencies],
    }
    return "".join(f"{key}: [ {', '.join(values)} ]\n" for key, values in rows.items())


def _decimal(value: float) -> str:
    """Digits without an exponent; the same number when it is read."""
    text = repr(float(value))
    return text if "e" not in text else np.format_float_positional(value, trim="0")


def _system(part: System, levels: list[Level], roofline: bool) -> str:
    ring = ["direct" if _kind(level) == "FullyConnected" else "ring" for level in levels]
    spread = ["ring" if _kind(level) == "Ring" else "direct" for level in levels]
    device = part.device
    said: dict[str, object] = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": ENDPOINT_DELAY_NS,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "all-reduce-implementation": ring,
        "all-gather-implementation": ring,
        "reduce-scatter-implementation": ring,
        "all-to-all-implementation": spread,
        "collective-optimization": "localBWAware",
        "local-mem-bw": device.memory_bandwidth_bytes_per_s / 1e9,
        "roofline-enabled": int(roofline),
        "peak-perf": device.peak("bf16") / 1e12,
    }
    if roofline and not (said["local-mem-bw"] and said["peak-perf"]):
        problem = f"device `{device.name}` has no peak rate or no memory bandwidth, and the job has no times"
        raise ClusterError(problem, where=f"system `{part.name}`")
    return json.dumps(said, indent=4) + "\n"


def _memory(part: System) -> str:
    link = part.device.host_link
    if link is None:
        return json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=4) + "\n"
    said = {
        "memory-type": "PER_NPU_MEMORY_EXPANSION",
        "remote-mem-latency": max(round(link.latency_ns), 1),
        "remote-mem-bw": max(int(link.read_bytes_per_s / 1e9), 1),
    }
    return json.dumps(said, indent=4) + "\n"


def ns3_topology(topology: Topology) -> str:
    """Vertices, switches and connections: `total switches links`, the switches, then `a b rate delay error` for each
    connection, whose two ways are alike. Devices come first."""
    order = np.argsort(topology.kind != VertexKind.DEVICE, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    devices = int((topology.kind == VertexKind.DEVICE).sum())
    wires = len(topology.src) if topology.windows is None else topology.wires
    ends = number[topology.src[:wires]], number[topology.dst[:wires]]
    both: dict[tuple[int, int], list[tuple[float, int]]] = {}
    columns = (*ends, topology.bytes_per_s[:wires], topology.latency_ns[:wires])
    for a, b, rate, latency in zip(*(column.tolist() for column in columns), strict=True):
        both.setdefault((a, b), []).append((rate, latency))
    lines = []
    for (a, b), ways in both.items():
        if a == b or sorted(both.get((b, a), [])) != sorted(ways):
            problem = f"`{topology.name}`: the link between vertices {a} and {b} differs between directions"
            raise ClusterError(problem, hint="an internally oversubscribed switch cannot be written")
        if a < b:
            lines += [f"{a} {b} {_gbps(rate)}Gbps {_decimal(latency / 1e6)}ms 0" for rate, latency in ways]
    switches = " ".join(str(v) for v in range(devices, len(order)))
    return "\n".join([f"{len(order)} {len(order) - devices} {len(lines)}", switches, *lines]) + "\n"


def _gbps(bytes_per_s: float) -> str:
    return _decimal(bytes_per_s * 8 / 1e9).removesuffix(".0")


def _about(system: System, ranks: int, name: str, *, groups: bool, roofline: bool) -> str:
    given = {
        "workload": name,
        "system": SYSTEM,
        "network": NETWORK,
        "remote-memory": MEMORY,
        **({"comm-group": f"{name}.json"} if groups else {}),
    }
    flags = " \\\n".join(f"    --{key}-configuration={value}" for key, value in given.items())
    compute = (
        f"compute nodes by roofline, with the peak of `{system.device.name}` in bf16"
        if roofline
        else "compute nodes by their times, in whole microseconds"
    )
    return f"""# {name} for ASTRA-sim

{ranks} ranks on `{system.name}`; {compute}. Written by `etude convert --to astra`.

In this folder:

```
AstraSim_Analytical_Congestion_Unaware \\
{flags}
```

With one dimension and groups it may abort with exit code 134 after all results are printed, because it frees shared
objects twice: the results are right.

The same in Etude:

```
etude simulate astra . --network {NETWORK} --system {SYSTEM} --remote-memory {MEMORY}
```

The ns-3 backend takes `{TOPOLOGY}` as TOPOLOGY_FILE of its network configuration, and
`--logical-topology-configuration={LOGICAL}`. The congestion-aware analytical backend takes one dimension only.
Endpoint delay {ENDPOINT_DELAY_NS} ns, one chunk: Etude's systems do not define them. Direct all-to-alls on a switch are
too fast without congestion: ASTRA-sim then has no limit for what a device sends.
"""
