"""Large jobs that are consistent: what checks, folding and simulation are measured on. Run it to time `check`."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields
from typing import Any

import numpy as np

from etude.model.build import build_trace
from etude.model.fold import expand
from etude.model.job import Groups, Job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

TP = 8
BLOCK = 8
"""Nodes of a layer: seven kernels and a tensor-parallel all-reduce."""
SLOTS = ("tp", "dp")
NEXT, PREV = 0, 1
"""Peer slots."""


def _stage(stage: int, stages: int, nodes: int, micro_batches: int) -> Trace:
    """One pipeline stage: each micro-batch receives, runs its layers and sends; gradients are summed at the end.

    Node i waits for node i-1, and by a control dependency for node i-BLOCK.
    """
    kind = np.full(nodes, Kind.COMP, np.uint8)
    position = np.arange(nodes)
    coll = position % BLOCK == BLOCK - 1
    kind[coll] = Kind.COLL
    per = nodes // micro_batches
    batch = np.minimum(position // per, micro_batches - 1)
    recv = (position % per == 0) & (position < per * micro_batches) & (stage > 0)
    send = (position % per == per - 2) & (position < per * micro_batches) & (stage < stages - 1)
    kind[recv], kind[send] = Kind.RECV, Kind.SEND
    last = position == nodes - 1
    kind[last] = Kind.COLL
    coll = kind == Kind.COLL
    comm = coll | recv | send
    group = np.where(coll, np.where(last, 1, 0), -1)
    unknown = np.iinfo(np.int64).min
    return build_trace(
        {
            "kind": kind,
            "name": (np.where(comm, 1, 0), ["kernel", "communication"]),
            "duration_ns": np.where(comm, unknown, 1000 + stage + position % 97),
            "collective": np.where(coll, Collective.ALL_REDUCE, 0),
            "in_bytes": np.where(comm, np.where(last, 1 << 28, 1 << 20), unknown),
            "group": group,
            "src": np.where(recv, PREV, -1),
            "dst": np.where(send, NEXT, -1),
            "tag": np.where(recv | send, batch, -1),
            "micro_batch": batch,
        },
        data=(np.maximum(np.arange(nodes + 1) - 1, 0), np.arange(nodes - 1)),
        ctrl=(np.maximum(np.arange(nodes + 1) - BLOCK, 0), np.arange(nodes - BLOCK)),
        group_slots=SLOTS,
        peer_slots=2,
    )


def folded_job(ranks: int = 16_384, traces: int = 8, nodes: int = 10_000, micro_batches: int = 32) -> Job:
    """`traces` pipeline stages of ranks / traces ranks each: tensor parallel by 8, data parallel by the rest."""
    width = ranks // traces
    dp = width // TP
    if width * traces != ranks or dp * TP != width:
        raise ValueError(f"{ranks} ranks are not {traces} stages of groups of {TP}")
    rank = np.arange(ranks)
    stage, inside = rank // width, rank % width
    tp_group, dp_group = rank // TP, stage * TP + inside % TP
    entries: list[tuple[str, list[int]]] = [(f"tp{g}", list(range(g * TP, g * TP + TP))) for g in range(ranks // TP)]
    for g in range(traces * TP):
        first = g // TP * width + g % TP
        entries.append((f"dp{g}", list(range(first, g // TP * width + width, TP))))
    return Job(
        name="folded",
        traces=tuple(_stage(s, traces, nodes, micro_batches) for s in range(traces)),
        ranks=rank.astype(np.int32),
        trace_of=stage.astype(np.int32),
        groups=Groups.of(entries),
        group_start=np.arange(ranks + 1, dtype=np.int64) * 2,
        group_of=np.stack([tp_group, ranks // TP + dp_group], 1).reshape(-1).astype(np.int32),
        peer_start=np.arange(ranks + 1, dtype=np.int64) * 2,
        peer_of=np.stack([(rank + width) % ranks, (rank - width) % ranks], 1).reshape(-1).astype(np.int64),
        id_base=np.zeros(ranks, np.uint64),
        tag_base=np.zeros(ranks, np.int64),
        world_size=ranks,
        metadata=(b"",),
        metadata_of=np.zeros(ranks, np.int32),
    )


def unfolded_job(ranks: int = 1_024, nodes: int = 4_000, traces: int = 8) -> Job:
    """The same with a trace for each rank, and columns of its own in each of them."""
    job = expand(folded_job(ranks, traces, nodes))
    return job.replace(name="unfolded", traces=tuple(_copied(trace) for trace in job.traces))


def _copied(trace: Trace) -> Trace:
    own: dict[str, Any] = {}
    for f in fields(trace):
        value = getattr(trace, f.name)
        if isinstance(value, np.ndarray) and value.strides != (0,):
            own[f.name] = value.copy()
    return trace.replace(**own)


def main() -> None:
    from etude.model.check.whole import check
    from etude.model.match import match

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--unfolded-ranks", type=int, default=1_024)
    parser.add_argument("--unfolded-nodes", type=int, default=4_000)
    given = parser.parse_args()
    check(folded_job(128, 2, 400))  # compile
    for make, size in (
        (folded_job, {"ranks": given.ranks, "nodes": given.nodes}),
        (unfolded_job, {"ranks": given.unfolded_ranks, "nodes": given.unfolded_nodes}),
    ):
        job = make(**size)  # type: ignore[operator]
        for verb in (match, check):
            begin = time.process_time()
            found = verb(job)
            took = time.process_time() - begin
            note = f", {len(found)} findings" if isinstance(found, list) else ""
            print(f"{verb.__name__:5s} {took:6.3f} s CPU  {job!r}{note}")


if __name__ == "__main__":
    main()
