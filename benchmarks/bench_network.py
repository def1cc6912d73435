"""Speed of the network models: many messages, large collectives. Words on the command line choose lines."""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from etude.cost.collectives import schedule
from etude.machine import open_system
from etude.machine.fabrics import dragonfly, fat_tree, rail_clos
from etude.machine.topology import Topology, Wire, switch
from etude.make.generate import MicroOptions, micro
from etude.model.schema import Collective
from etude.run.simulate import simulate
from etude.run.simulate.networks import Operation, run_operations

WIRE = Wire(bytes_per_s=50e9, latency_ns=500)


def messages(t: Topology, count: int, over_ns: int, model: str, **more: Any) -> str:
    rng = np.random.default_rng(1)
    src = rng.integers(0, len(t), count)
    dst = (src + rng.integers(1, len(t), count)) % len(t)
    size = rng.integers(1 << 16, 1 << 22, count)
    ops = [Operation.message(int(a), int(b), int(c), i) for i, (a, b, c) in enumerate(zip(src, dst, size, strict=True))]
    times = run_operations(t, ops, rng.integers(0, over_ns + 1, count).tolist(), model=model, **more)
    return f"{times.end_ns / 1e6:.3f} ms"


def rails() -> Topology:
    return rail_clos(32, 8, scale_up=Wire(bytes_per_s=450e9, latency_ns=300), scale_out=WIRE)


def collective(t: Topology, kind: Collective, algorithm: str, model: str, **more: Any) -> str:
    s = schedule(kind, algorithm, len(t), **more)
    return f"{run_operations(t, [Operation(s, range(len(t)), 1 << 28)], model=model).end_ns / 1e6:.3f} ms"


def over_time(model: str) -> str:
    return messages(fat_tree(40, WIRE), 100_000, 20_000_000, model)


def at_once(model: str) -> str:
    """With a tolerance of 1 %: exact rates of 100,000 flows at once take minutes."""
    return messages(fat_tree(40, WIRE), 100_000, 0, model, tolerance=0.01)


def exchange(model: str) -> str:
    return collective(rails(), Collective.ALL_TO_ALL, "direct", model)


def around(model: str) -> str:
    return collective(fat_tree(16, WIRE), Collective.ALL_REDUCE, "ring", model)


def in_two(model: str) -> str:
    return collective(rails(), Collective.ALL_REDUCE, "hierarchical", model, dims=(8, 32), chunks=8)


def nodes(system: str, model: str) -> str:
    """CPU of a job whose nodes are 65,280 sends and receives, against one of the same transfers in an all-to-all."""
    cpu_s = {}
    for pattern, each in (("all_pairs", 1), ("all_to_all", RANKS)):
        for ranks in (8, RANKS):  # the first compiles, or reads what is compiled
            job = micro(pattern, MicroOptions(ranks=ranks, sizes=(each << 20,)))
            begin = time.process_time()
            simulate(job, open_system(system), network=model, collective={"all_to_all": "direct"})
            cpu_s[pattern] = time.process_time() - begin
    sent, met = cpu_s["all_pairs"], cpu_s["all_to_all"]
    return f"messages {sent:.2f} : collective {met:.2f} s of CPU = {sent / met:.1f}"


RANKS = 256
LOADS = {
    "100,000 messages in 20 ms, 16,000 devices": over_time,
    "100,000 messages at once, 16,000 devices": at_once,
    "all-to-all of 256 on rails, direct": exchange,
    "ring all-reduce of 1,024": around,
    "hierarchical all-reduce of 256 (8 x 32), 8 chunks": in_two,
    "all pairs of 256 as nodes, dgx-h100": partial(nodes, "dgx-h100"),
    "all pairs of 256 as nodes, dgx-a100": partial(nodes, "dgx-a100"),
    "all pairs of 256 as nodes, fat-tree-h100": partial(nodes, "fat-tree-h100"),
}


def main(argv: list[str]) -> int:
    run_operations(switch(2, WIRE), [Operation.message(0, 1, 1)])  # compiles, or reads what is compiled
    cases: list[tuple[str, Callable[[], object]]] = [
        ("build a fat tree of 16,000 devices", lambda: fat_tree(40, WIRE)),
        ("build a dragonfly of 16,512 devices", lambda: dragonfly(16, 8, 8, WIRE)),
    ]
    for model in ("links", "flow"):
        cases += [(f"{model}: {name}", partial(run, model)) for name, run in LOADS.items()]
    for name, run in cases:
        if argv and not any(word in name for word in argv):
            continue
        begin, cpu = time.perf_counter(), time.process_time()
        result = run()
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        print(f"{name:<62} {wall_s:8.2f} s {cpu_s:8.2f} s of CPU   {result}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
