"""Runs of 1, 2 and 4 gloo processes, recorded by the test: linked, checked and simulated; their communications are
those of the program (programs/parallel.py), worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from collected import PROGRAMS, SCENARIOS, ranks
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.surface.cli import main
from later import TORCH, later

later("torch", TORCH)

STEPS, WIDTH, FLOAT = 2, 16, 4
LAYER = (WIDTH * WIDTH + WIDTH) * FLOAT
"""Bytes of a block's weight and bias."""

Row = tuple[Any, ...]


def expected(scenario: str, rank: int, size: int) -> list[Row]:
    """(type, input bytes, output bytes, source, destination) of every communication of the two steps."""
    if scenario == "overlapping":
        return [("ALL_REDUCE", 4 * (1000 + k), 4 * (1000 + k), -1, -1) for k in range(20)] * STEPS
    if scenario == "mesh":  # a pipeline over the ranks half the world apart; weight and bias over the others
        weights = [("ALL_REDUCE", n, n, -1, -1) for n in (WIDTH * WIDTH * FLOAT, WIDTH * FLOAT)] * STEPS
        return weights + (_pipeline(rank, rank + size // 2, rank - size // 2, size) if size > 1 else [])
    if size == 1 and scenario not in ("ddp", "batch_norm", "moe"):  # the others do not speak to themselves
        return []
    if scenario == "batch_norm":  # weight and bias twice; mean and variance, and a count, before each step
        sizes = (("ALL_REDUCE", LAYER + 2 * WIDTH * FLOAT), ("BROADCAST", 2 * WIDTH * FLOAT), ("BROADCAST", 8))
        return [(name, count, count, -1, -1) for name, count in sizes] * STEPS
    if scenario == "in_flight":  # three batches of four rows
        rows = 4 * WIDTH * FLOAT
        sends = [("SEND", rows, rows, rank, rank + 1)] if rank + 1 < size else []
        return (sends + ([("RECV", rows, rows, rank - 1, rank)] if rank else [])) * 3 * STEPS
    if scenario == "ddp":  # all gradients fit one bucket
        return [("ALL_REDUCE", 2 * LAYER, 2 * LAYER, -1, -1)] * STEPS
    if scenario == "fsdp2":  # each block: gathered forward and again backward, its gradients scattered
        gather, scatter = ("ALL_GATHER", LAYER // size, LAYER, -1, -1), ("REDUCE_SCATTER", LAYER, LAYER // size, -1, -1)
        return [gather, gather, gather, gather, scatter, scatter] * STEPS
    if scenario == "tensor_parallel":  # the second layer's partial sums, 4 rows
        return [("ALL_REDUCE", 4 * WIDTH * FLOAT, 4 * WIDTH * FLOAT, -1, -1)] * STEPS
    if scenario == "moe":  # 1 + e rows to expert e, so 1 + rank rows from everyone
        rows = WIDTH * FLOAT
        return [("ALL_TO_ALL", size * (size + 1) // 2 * rows, (1 + rank) * size * rows, -1, -1)] * STEPS
    return _pipeline(rank, rank + 1, rank - 1, size)


def _pipeline(rank: int, after: int, before: int, size: int) -> list[Row]:
    half = 2 * WIDTH * FLOAT  # two micro-batches of two rows, forth and back
    forth = [("SEND", half, half, rank, after), ("RECV", half, half, after, rank)] if after < size else []
    back = [("RECV", half, half, before, rank), ("SEND", half, half, rank, before)] if before >= 0 else []
    return (forth + back) * 2 * STEPS


def found(job: Job, rank: int, scenario: str) -> list[Row]:
    trace, peers = job.trace(rank), np.append(job.peer_slots(rank), -1)
    rows = np.flatnonzero(np.isin(trace.kind, (Kind.SEND, Kind.RECV, Kind.COLL)))
    listed = []
    for i in rows.tolist():
        kind, collective = Kind(int(trace.kind[i])), Collective(int(trace.collective[i]))
        assert trace.text("name", i).startswith("gloo:")
        if kind == Kind.COLL:
            slot = int(trace.group[i])
            assert slot >= 0
            members = job.groups.ranks(int(job.group_slots(rank)[slot]))
            assert members is not None
            half = job.world_size // 2
            stage = range(half) if rank < half else range(half, job.world_size)
            assert members.tolist() == list(stage if scenario == "mesh" else range(job.world_size))
        name = collective.name if kind == Kind.COLL else kind.name
        ends = int(peers[trace.src[i]]), int(peers[trace.dst[i]])
        listed.append((name, int(trace.in_bytes[i]), int(trace.out_bytes[i]), *ends))
    return listed


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recorded_linked_checked_simulated(
    scenario: str, size: int, captures: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "job"
    assert main(["link", str(captures(size) / scenario), "-o", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    job = etude.open(out)
    assert (len(job), job.world_size) == (size, size)
    assert [f for f in check(job) if f.severity == "error"] == []
    for rank in range(size):
        told, wanted = found(job, rank, scenario), expected(scenario, rank, size)
        # DDP tells the others how it has sorted its gradients, once
        once = [row for row in told if row[0] == "BROADCAST" and row not in wanted]
        assert sorted(row for row in told if row not in once) == sorted(wanted)
        assert scenario in ("ddp", "batch_norm") or not once
        assert scenario != "overlapping" or told == wanted  # in the order of the calls
    messages = sum(row[0] in ("SEND", "RECV") for rank in range(size) for row in found(job, rank, scenario))
    assert report["p2p"] == messages
    assert report["collectives"] == sum(len(found(job, rank, scenario)) for rank in range(size)) - messages
    if not is_no_longer(job, out, capsys):
        # One recording on two busy cores was 21% longer, for a cause that is not known; a wrong graph is longer again.
        again = tmp_path / "again"
        again.mkdir()
        ranks(size, PROGRAMS / "parallel.py", again, scenario)
        assert main(["link", str(again / scenario), "-o", str(out), "--force", "--json"]) == 0
        capsys.readouterr()
        assert is_no_longer(etude.open(out), out, capsys)


def is_no_longer(job: Job, out: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the simulated run is as long as the recorded one, at most: the network is faster than gloo, the hosts are
    as they were, and waiting is nobody's own time."""
    assert main(["simulate", str(out), "--system", "dgx-h100", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert max(rank["compute_ns"] for rank in simulated["ranks"]) <= simulated["makespan_ns"]
    assert job.timing is not None
    start, end = (np.concatenate(times) for times in (job.timing.start_ns, job.timing.end_ns))
    recorded = int(end[end != UNKNOWN].max() - start[start != UNKNOWN].min())
    return 0 < simulated["makespan_ns"] <= 1.1 * recorded
