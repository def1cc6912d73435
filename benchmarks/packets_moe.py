"""A step of a mixture of experts on a fabric with half the rate between its leaves: shares, and queues.

    python benchmarks/packets_moe.py [--layers 1] [--seq 256]

64 GPUs, one port of 400 Gb/s each, on 4 leaves with 8 ports up and 16 down (2:1), experts over all of them, so that
every all-to-all crosses the fabric, directly from each to each. Printed are the step, the all-to-alls (from the last
rank's begin to its end on each rank), and what queues did. A system without hosts or other traffic:
it is the network that is compared.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from etude import generate, open_system, simulate
from etude.extend import topology as fabrics
from etude.machine.topology import Wire
from etude.make.generate.model import open_model
from etude.model.schema import Collective, Kind
from etude.run.simulate.result import Simulated

WIRE = Wire(bytes_per_s=50e9, latency_ns=1000)
CASES = (
    ("flow", {}),
    ("packets", {"fabric": "roce"}),
    ("packets", {"fabric": "roce", "routing": "spray"}),
    ("packets", {"fabric": "roce", "routing": "adaptive"}),
    ("packets", {"fabric": "infiniband"}),
    ("packets", {"fabric": "ultra-ethernet"}),
    ("packets", {"fabric": "ultra-ethernet", "routing": "adaptive"}),
)


def exchanges_us(found: Simulated) -> np.ndarray:
    """For each all-to-all and each rank in us: from the last rank's begin to its own end. A row each all-to-all."""
    starts, ends = [], []
    for part in found.parts():
        trace = part.trace
        mine = np.flatnonzero((trace.kind == Kind.COLL) & (trace.collective == Collective.ALL_TO_ALL))
        starts.append(part.start_ns[mine])
        ends.append(part.end_ns[mine])
    start, end = np.array(starts).T, np.array(ends).T
    return (end - start.max(axis=1, keepdims=True)) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=2048, help="small, so that gradients of embeddings are")
    given = parser.parse_args()
    model = replace(open_model(given.model), layers=given.layers, vocab=given.vocab)
    job = generate(model, gpus=64, ep=64, seq=given.seq, global_batch=64).job
    fabric = fabrics.fat_tree(24, WIRE, levels=2, oversubscription=2, devices=64)
    system = open_system("dgx-h100").resized(64).replace(topology=fabric)
    about = f"{given.layers} layers, {given.vocab} words; {given.seq} tokens on each of 64 ranks"
    print(f"{model.name}, {about}; {fabric.name}")
    print(
        f"{'network':<32} {'step ms':>8} {'all-to-all: median us':>22} {'p99':>7} {'longest':>8} {'pauses':>7}"
        f" {'cut':>7} {'longest queue KB':>17} {'CPU s':>6}"
    )
    for network, more in CASES:
        began = time.process_time()
        found = simulate(job, system, network=network, collective={"all_to_all": "direct"}, **more)
        took = time.process_time() - began
        each = exchanges_us(found)
        queues = found.queues
        print(
            f"{' '.join((network, *more.values())):<32} {found.makespan_ns / 1e6:>8.3f} {np.median(each):>22.1f}"
            f" {np.percentile(each, 99):>7.1f} {each.max():>8.1f} {sum(q.pauses for q in queues):>7,}"
            f" {sum(q.cut for q in queues):>7,} {max((q.longest_bytes for q in queues), default=0) / 1e3:>17,.0f}"
            f" {took:>6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
