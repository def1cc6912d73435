"""Closed forms against the same algorithms carried out over links: ratio of `links` and `flow` to the closed form.

    python benchmarks/validate_networks.py                      every algorithm, collective and topology
    python benchmarks/validate_networks.py torus all_reduce     lines in which all the words stand
    python benchmarks/validate_networks.py --default [system]   what `auto` takes over nodes, against each algorithm

One operation alone on its network: 1.00 is what the closed form says. Topologies have round figures (1 byte/ns a
device and level, 10 ns a step) or are those of the catalogue.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from etude.base.errors import EtudeError
from etude.cost.collectives import AUTO, choose
from etude.cost.collectives.table import BY_COLLECTIVE
from etude.cost.collectives.times import tried
from etude.cost.groups import group_shape
from etude.machine import open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.system import Device, Level, LevelKind, System
from etude.model.schema import Collective
from etude.run.simulate.networks import run_operations
from etude.run.simulate.networks.carrier import Carrier, schedulable

KINDS = [k for k in BY_COLLECTIVE if k != Collective.REDUCE_SCATTER_BLOCK]
SIZES = (1 << 16, 1 << 24)


def toy(name: str, *levels: tuple[str, int, float]) -> System:
    """Levels of (kind, size, bytes/ns)."""
    made = [
        Level(name=f"l{i}", kind=LevelKind(kind), size=size, bandwidth_bytes_per_s=rate * 1e9, latency_ns=10.0)
        for i, (kind, size, rate) in enumerate(levels)
    ]
    return System(name=name, device=Device(name="toy"), levels=tuple(made))


SYSTEMS: dict[str, tuple[System, int]] = {
    "switch-8": (toy("switch-8", ("switch", 8, 1.0)), 8),
    "full-8": (toy("full-8", ("full", 8, 1.0)), 8),
    "ring-8": (toy("ring-8", ("ring", 8, 1.0)), 8),
    "ring-6": (toy("ring-6", ("ring", 6, 1.0)), 6),
    "mesh-8": (toy("mesh-8", ("mesh", 8, 1.0)), 8),
    "torus-4x4": (toy("torus-4x4", ("ring", 4, 1.0), ("ring", 4, 1.0)), 16),
    "mesh-4x4": (toy("mesh-4x4", ("mesh", 4, 1.0), ("mesh", 4, 1.0)), 16),
    "torus-4x4x4": (toy("torus-4x4x4", *[("ring", 4, 1.0)] * 3), 64),
    "tree-4x4": (toy("tree-4x4", ("switch", 4, 1.0), ("switch", 4, 1.0)), 16),
    "nodes-4x4": (toy("nodes-4x4", ("switch", 4, 8.0), ("switch", 4, 1.0)), 16),
    "dgx-h100 1 node": (open_system("dgx-h100"), 8),
    "dgx-h100 4 nodes": (open_system("dgx-h100"), 32),
    "fat-tree-h100 4 nodes": (open_system("fat-tree-h100"), 32),
    "tpu-v6e 4x4": (open_system("tpu-v6e-pod").for_ranks(16), 16),
    "mi300x 2 nodes": (open_system("mi300x-node"), 16),
    "trn1 1 node": (open_system("trn1"), 32),
    "trn2 2 nodes": (open_system("trn2"), 32),
}


NODES = (16, 32, 64, 128)
OVER_NODES = tuple(1 << bits for bits in range(16, 31, 2))
MODELS = ("closed", "links", "flow")


def alone_us(system: System, ranks: int, kind: Collective, size: int, algorithm: str, model: str) -> float:
    """Of one collective alone, in closed form or carried out."""
    members = np.arange(ranks)
    shape = group_shape(system, members)
    if model == "closed":
        return int(choose(system, kind, [size], shape, algorithm).time_ns[0]) / 1e3
    topology = topology_of_system(system)
    operation = Carrier(system, topology).collective(kind, size, members, shape, algorithm).operation(members, size)
    return run_operations(topology, [operation], model=model).end_ns / 1e3


def default_over_nodes(name: str) -> None:
    """The all-reduce that `auto` takes against every one that it chooses from, in closed form and carried out."""
    kind, worst = Collective.ALL_REDUCE, dict.fromkeys(MODELS, (1.0, ""))
    print(f"all-reduce on {name}, us; x: what the default takes over the fastest of those that it chooses from")
    for ranks in NODES:
        system = open_system(name).resized(ranks)
        shape = group_shape(system, range(ranks))
        names = tried(system, kind, shape)
        others = [a for a in BY_COLLECTIVE[kind] if a not in (*names, "in_switch")]
        print(f"{ranks:4} ranks  " + "".join(f"{m + ' ' + a:>20}" for m in MODELS for a in (*names, "x")))
        for size in OVER_NODES:
            line, taken = "", str(choose(system, kind, [size], shape).algorithm[0])
            for model in MODELS:
                times = {a: alone_us(system, ranks, kind, size, a, model) for a in names}
                ratio = times[taken] / min(times.values())
                worst[model] = max(worst[model], (ratio, f"{size >> 10} KiB on {ranks}"))
                line += "".join(f"{t:19.1f}{'*' if a == taken else ' '}" for a, t in times.items()) + f"{ratio:20.3f}"
            other = min(others, key=lambda a: alone_us(system, ranks, kind, size, a, "closed"))
            more = alone_us(system, ranks, kind, size, other, "closed")
            print(f"{size >> 10:8} KiB{line}   not chosen from: {other} {more:.1f}", flush=True)
    for model, (ratio, where) in worst.items():
        print(f"{model}: the default takes at most {ratio:.3f} of the fastest ({where or 'everywhere'})")


def ratios(system: System, ranks: int, kind: Collective, algorithm: str) -> Iterator[float]:
    """`links` and `flow` over the closed form, for each size."""
    topology, members = topology_of_system(system), np.arange(ranks)
    shape = group_shape(system, members)
    for size in SIZES if kind != Collective.BARRIER else (0, 0):
        closed = int(choose(system, kind, [size], shape, algorithm).time_ns[0])
        for model in ("links", "flow"):
            carriage = Carrier(system, topology).collective(kind, size, members, shape, algorithm)
            operation = carriage.operation(members, size)
            yield run_operations(topology, [operation], model=model).end_ns / max(closed, 1)


def main() -> None:
    words, worst = sys.argv[1:], (1.0, "")
    if words[:1] == ["--default"]:
        for name in words[1:] or ["dgx-h100"]:
            default_over_nodes(name)
        return
    columns = [f"{model} {size >> 10} KiB" for size in SIZES for model in ("links", "flow")]
    print(f"{'topology':24}{'collective':16}{'algorithm':18}" + "".join(f"{c:>17}" for c in columns))
    for name, (system, ranks) in SYSTEMS.items():
        for kind in KINDS:
            for algorithm in (AUTO, *dict.fromkeys((*BY_COLLECTIVE[kind], *schedulable(kind)))):
                line = f"{name:24}{kind.name.lower():16}{algorithm:18}"
                if not all(word in line for word in words):
                    continue
                try:
                    found = list(ratios(system, ranks, kind, algorithm))
                except EtudeError as problem:
                    print(line + f"  {problem.problem}", flush=True)
                    continue
                worst = max(worst, (max(max(found), 1 / min(found)), line))
                print(line + "".join(f"{r:17.2f}" for r in found), flush=True)
    print(f"farthest from its closed form: {worst[0]:.2f} ({' '.join(worst[1].split())})")


if __name__ == "__main__":
    main()
